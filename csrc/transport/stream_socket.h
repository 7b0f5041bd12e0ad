// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What both ends of an index stream ask of their socket.
#pragma once

#include <cstddef>
#include <span>

#include "base/error.h"
#include "base/fd.h"
#include "transport/peer_reader.h"

namespace radixshmem {

// Takes `fd` over: makes it non-blocking and close-on-exec, and TCP send at once and notice a host
// that is gone. Returns: INVALID_ARGUMENT when it is no connected stream socket (it is closed
// then).
Result<Fd> adopt_stream(int fd);

// Send or receive all of `bytes` over an adopted stream, waiting until the deadline.
// Returns: false, with errno, when that was not possible: ETIMEDOUT at the deadline, EPIPE at the
// end of the stream.
[[nodiscard]] bool send_all(int fd, std::span<const std::byte> bytes, Deadline deadline) noexcept;
[[nodiscard]] bool receive_all(int fd, std::span<std::byte> bytes, Deadline deadline) noexcept;

}  // namespace radixshmem
