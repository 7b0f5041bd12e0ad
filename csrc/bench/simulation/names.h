// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Ranks for more nodes than the peer table has records.
//
// A rank of up to kMaxPeers nodes is the node's number. With more of them a lookup sees those that
// it meets under names: the keepers of shards always the same ones, others as they come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "directory/peer_table.h"
#include "transport/peer_reader.h"

namespace radixshmem::bench {

class Names final {
 public:
  // `keepers`: their nodes; above kMaxPeers nodes there must be fewer of them than names.
  Names(std::size_t nodes, const std::vector<Rank>& keepers);

  // Forgets who is no keeper.
  void begin();
  // Returns: the name of `node`, which gets one if it has none; kNoRank when there are no more.
  [[nodiscard]] Rank name(Rank node);
  [[nodiscard]] Rank node(Rank name) const noexcept { return nodes_[name]; }
  [[nodiscard]] std::size_t count() const noexcept { return nodes_.size(); }

 private:
  bool plain_;
  std::size_t fixed_;
  std::vector<Rank> names_;  // by node
  std::vector<Rank> nodes_;  // by name
};

}  // namespace radixshmem::bench
