// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Reads a peer on the same host by mapping its regions.
//
// Nobody is believed to be on the same host because of a name: the regions are taken only if they
// carry the incarnation and the nonce that the peer itself told.
// post() copies before it returns. It fails once the region says that its life is over: closed,
// superseded, or adopted by a new server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "transport/peer_reader.h"

namespace radixshmem {

struct ShmPeer {
  std::string index_name;
  std::uint64_t incarnation = 0;
  std::string data_name;  // empty: no reads of slots
  std::string data_hugepage_path;
  std::uint64_t nonce = 0;
};

class ShmReader final {
 public:
  // Returns: NOT_READY when the regions are not here, or are another peer's of the same name.
  static Result<std::unique_ptr<PeerReader>> open(const ShmPeer& peer);
};

}  // namespace radixshmem
