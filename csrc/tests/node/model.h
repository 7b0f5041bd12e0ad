// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The reference model: what an index holds, as plainly as it can be said. One map from hash to
// block; FULL is prefix-closed; SWA and MAMBA slots hang at blocks. It predicts what is determined
// and is told by change events what was evicted, which it then checks by rule: only leaves of what
// is left, never under a pin.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "sync/change_ring.h"

namespace radixshmem {

struct ModelBlock {
  BlockHash hash = 0;
  Position position = 0;
  ModelBlock* parent = nullptr;
  std::uint32_t children = 0;
  std::array<std::int32_t, kComponents> slot{-1, -1, -1};
  std::uint32_t pins_below = 0;                       // pins of this block or of any after it
  std::array<std::uint32_t, kComponents> aux_pins{};  // pins of its own SWA or MAMBA slot
};

class Model final {
 public:
  explicit Model(std::uint32_t window_blocks) : window_blocks_(window_blocks) {}

  // Returns: the block, nullptr if it is not there.
  [[nodiscard]] ModelBlock* find(BlockHash hash, Position position) const {
    const auto at = blocks_.find(hash);
    return at != blocks_.end() && at->second->position == position ? at->second.get() : nullptr;
  }
  // Returns: the blocks of the longest known prefix of `path`.
  [[nodiscard]] std::vector<ModelBlock*> walk(const std::vector<BlockHash>& path) const {
    std::vector<ModelBlock*> found;
    for (Position p = 0; p < path.size(); ++p) {
      ModelBlock* block = find(path[p], p);
      if (block == nullptr) break;
      found.push_back(block);
    }
    return found;
  }
  // Returns: the deepest length that satisfies every component of `mask`.
  [[nodiscard]] Position window(const std::vector<ModelBlock*>& path, std::uint32_t mask) const {
    Position best = 0;
    Position run = 0;  // consecutive SWA slots up to here
    for (Position n = 1; n <= path.size(); ++n) {
      const ModelBlock& last = *path[n - 1];
      run = last.slot[1] >= 0 ? run + 1 : 0;
      const bool swa = (mask & kMaskSwa) == 0 || run >= std::min(window_blocks_, n);
      const bool mamba = (mask & kMaskMamba) == 0 || last.slot[2] >= 0;
      if (swa && mamba) best = n;
    }
    return best;
  }

  void add(BlockHash hash, Position position, ModelBlock* parent, std::int32_t slot) {
    auto block = std::make_unique<ModelBlock>();
    block->hash = hash;
    block->position = position;
    block->parent = parent;
    block->slot[0] = slot;
    if (parent != nullptr) ++parent->children;
    blocks_.emplace(hash, std::move(block));
  }
  void add_aux(ModelBlock& block, Component c, std::int32_t slot) {
    block.slot[static_cast<std::size_t>(c)] = slot;
    ++aux_count_[static_cast<std::size_t>(c)];
  }

  // Applies a removal told by an event. Returns: what is wrong with it, "" if nothing.
  // FULL removals of one batch come in any order, so a block may lose its children after itself:
  // end_of_batch() checks that no child is left without its parent.
  [[nodiscard]] std::string remove(const Change& change) {
    ModelBlock* block = find(change.hash, change.position);
    // The aux slots of a block go with it, told just after it.
    for (auto gone = removed_.rbegin(); block == nullptr && gone != removed_.rend(); ++gone) {
      if ((*gone)->hash == change.hash && change.component != Component::kFull) block = gone->get();
    }
    if (block == nullptr) return "removal of a block that was not there";
    const auto k = static_cast<std::size_t>(change.component);
    if (k != 0) {
      if (block->slot[k] < 0) return "removal of an aux slot that was not there";
      if (block->aux_pins[k] != 0) return "removal of a pinned aux slot";
      block->slot[k] = -1;
      --aux_count_[k];
      return "";
    }
    if (block->pins_below != 0) return "removal of a pinned block";
    removed_.push_back(std::move(blocks_.extract(change.hash).mapped()));
    return "";
  }
  // Returns: what is wrong with the removals since the last call.
  [[nodiscard]] std::string end_of_batch() {
    std::string wrong;
    for (const auto& block : removed_) {
      if (block->parent != nullptr) --block->parent->children;
    }
    for (const auto& block : removed_) {
      if (block->children != 0) wrong = "removal of a block before its children";
      if (block->slot[1] >= 0 || block->slot[2] >= 0) wrong = "aux slots outlive their block";
    }
    removed_.clear();
    return wrong;
  }

  void pin(ModelBlock* deepest) {
    for (ModelBlock* b = deepest; b != nullptr; b = b->parent) {
      if (b->pins_below++ == 0) ++pinned_;
    }
  }
  void unpin(ModelBlock* deepest) {
    for (ModelBlock* b = deepest; b != nullptr; b = b->parent) {
      if (--b->pins_below == 0) --pinned_;
    }
  }
  void clear() {
    blocks_.clear();
    aux_count_ = {};
    pinned_ = 0;
  }

  // Returns: slots of a component that the tree holds.
  [[nodiscard]] std::uint32_t attached(Component c) const {
    const auto k = static_cast<std::size_t>(c);
    return k == 0 ? static_cast<std::uint32_t>(blocks_.size()) : aux_count_[k];
  }
  // Returns: FULL blocks that an eviction may take, however many times it has to look.
  [[nodiscard]] std::uint32_t evictable() const {
    return static_cast<std::uint32_t>(blocks_.size()) - pinned_;
  }
  [[nodiscard]] const auto& blocks() const { return blocks_; }

 private:
  std::uint32_t window_blocks_;
  std::unordered_map<BlockHash, std::unique_ptr<ModelBlock>> blocks_;
  std::vector<std::unique_ptr<ModelBlock>> removed_;
  std::array<std::uint32_t, kComponents> aux_count_{};
  std::uint32_t pinned_ = 0;
};

}  // namespace radixshmem
