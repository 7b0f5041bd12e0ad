// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bench/simulation/names.h"

#include <numeric>

#include "base/check.h"

namespace radixshmem::bench {

Names::Names(std::size_t nodes, const std::vector<Rank>& keepers)
    : plain_(nodes <= kMaxPeers), fixed_(plain_ ? nodes : keepers.size()), names_(nodes, kNoRank) {
  if (plain_) {
    nodes_.resize(nodes);
    std::iota(nodes_.begin(), nodes_.end(), Rank{0});
    names_ = nodes_;
    return;
  }
  RADIX_CHECK(keepers.size() < kMaxPeers, keepers.size());
  for (const Rank keeper : keepers) RADIX_CHECK(name(keeper) != kNoRank, keeper);
}

void Names::begin() {
  for (std::size_t i = fixed_; i < nodes_.size(); ++i) names_[nodes_[i]] = kNoRank;
  nodes_.resize(fixed_);
}

Rank Names::name(Rank node) {
  Rank& name = names_[node];
  if (name == kNoRank && nodes_.size() < kMaxPeers) {
    name = static_cast<Rank>(nodes_.size());
    nodes_.push_back(node);
  }
  return name;
}

}  // namespace radixshmem::bench
