// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Reads a peer through its responder, over a connected and authenticated stream (index_stream.h).
//
// One request per batch, sent in post(); the bytes are received into their destinations. abandon()
// breaks a reader that waits for an answer.
#pragma once

#include <memory>

#include "base/error.h"
#include "transport/peer_reader.h"

namespace radixshmem {

class TcpReader final {
 public:
  // Takes `fd` over. INVALID_ARGUMENT: it is no connected stream socket.
  static Result<std::unique_ptr<PeerReader>> make(int fd);
};

}  // namespace radixshmem
