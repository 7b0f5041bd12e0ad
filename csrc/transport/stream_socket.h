// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What both ends of an index stream ask of their socket.
#pragma once

#include "base/error.h"
#include "base/fd.h"

namespace radixshmem {

// Takes `fd` over: makes it non-blocking and close-on-exec, and TCP send at once and notice a host
// that is gone. Returns: INVALID_ARGUMENT when it is no connected stream socket (it is closed
// then).
Result<Fd> adopt_stream(int fd);

}  // namespace radixshmem
