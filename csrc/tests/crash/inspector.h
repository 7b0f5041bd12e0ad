// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Looks into, and damages, the private parts of a Tree for tests. Under the lock.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tree/tree.h"

namespace radixshmem {

struct TreeBlock {
  BlockHash hash = 0;
  Component component{};
  SlotId slot = 0;
  SegmentId segment = 0;
  friend auto operator<=>(const TreeBlock&, const TreeBlock&) = default;
};

class TreeInspector final {
 public:
  // Every visible block of every LIVE segment, FULL and aux.
  [[nodiscard]] static std::vector<TreeBlock> blocks(const Tree& tree) {
    std::vector<TreeBlock> found;
    tree.arena_.for_each([&](SegmentId id, Segment segment) {
      const SegmentHead head = segment.head();
      if (!head.live()) return;
      const SideId side = segment->side.load(std::memory_order_relaxed);
      for (std::uint32_t i = 0; i < head.count; ++i) {
        found.push_back({segment.hash(i), Component::kFull, segment.slot(i), id});
        for (std::uint32_t q = 0; side != 0 && q < tree.aux_pools(); ++q) {
          const std::uint64_t word = tree.sides_.word(side, q, i).load(std::memory_order_relaxed);
          if (AuxWord::present(word)) {
            found.push_back({segment.hash(i), tree.aux_component(q), AuxWord::slot(word), id});
          }
        }
      }
    });
    return found;
  }

  // Ids of LIVE segments that start at `from` or later.
  [[nodiscard]] static std::vector<SegmentId> live_segments(const Tree& tree, Position from) {
    std::vector<SegmentId> found;
    tree.arena_.for_each([&](SegmentId id, Segment segment) {
      if (segment.head().live() && segment.start() >= from) found.push_back(id);
    });
    return found;
  }

  [[nodiscard]] static SegmentId find(const Tree& tree, BlockHash hash, Position start) {
    return tree.table_.find(hash, start);
  }
  [[nodiscard]] static SideId side_of(const Tree& tree, SegmentId id) {
    return tree.arena_.header(id)->side.load(std::memory_order_relaxed);
  }
  [[nodiscard]] static std::uint32_t free_sides(const Tree& tree) {
    return tree.sides_.free_count();
  }

  // Makes the table as small as its entries allow, by a rebuild under its intent.
  static void shrink_table(Tree& tree) {
    tree.control_->intent.store(kIntentRebuild, std::memory_order_release);
    tree.table_.begin_move();
    tree.table_.clear();
    tree.table_.set_lines_in_use(1);
    tree.repair();
  }

  // The undo log as it lies in the region.
  [[nodiscard]] static UndoLogShared& log(Tree& tree) {
    return *reinterpret_cast<UndoLogShared*>(tree.region_ +
                                             tree.layout_.area(AreaKind::kUndoLog).offset);
  }
  // The tag of the word that was logged last. Requires: an open transaction.
  [[nodiscard]] static std::uint64_t last_logged(Tree& tree) {
    const UndoLogShared& shared = log(tree);
    return shared.entry[shared.entries.load() - 1].where.load() & 0xff;
  }
};

}  // namespace radixshmem
