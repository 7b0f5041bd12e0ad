// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A consumer of the change ring that believes the events and nothing else.
#pragma once

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sync/change_ring.h"
#include "tests/crash/inspector.h"

namespace radixshmem::crash {

class EventFollower final {
 public:
  explicit EventFollower(const ChangeRing& ring) : ring_(ring), cursor_(ring.at_head()) {}

  void follow() {
    std::array<Change, 256> changes;
    for (;;) {
      bool resync = false;
      const std::size_t got = ring_.drain(cursor_, changes, resync);
      lost_ = lost_ || resync;
      for (std::size_t i = 0; i < got; ++i) apply(changes[i]);
      if (got == 0) return;
    }
  }

  // Under the lock: compares what was told with what is there, or starts from it after a demand to
  // resync. Returns: what is wrong, empty if nothing.
  std::string compare(const std::vector<TreeBlock>& blocks, bool& resynced) {
    follow();
    Blocks now;
    for (const TreeBlock& block : blocks) now[{block.hash, block.component}] = block.segment;
    resynced = lost_;
    if (lost_) {
      believed_ = std::move(now);
      cursor_ = ring_.at_head();
      lost_ = false;
      return {};
    }
    if (believed_ == now) return {};
    return "change events and tree differ: " + std::to_string(believed_.size()) + " blocks told, " +
           std::to_string(now.size()) + " there";
  }

 private:
  using Blocks = std::map<std::pair<BlockHash, Component>, SegmentId>;

  void apply(const Change& change) {
    switch (change.kind) {
      case ChangeKind::kStored:
        believed_[{change.hash, change.component}] = change.segment;
        break;
      case ChangeKind::kRemoved:
        believed_.erase({change.hash, change.component});
        break;
      case ChangeKind::kCleared:
        believed_.clear();
        break;
    }
  }

  const ChangeRing& ring_;
  ChangeRing::Cursor cursor_;
  Blocks believed_;
  bool lost_ = true;
};

}  // namespace radixshmem::crash
