// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A tree in private memory with one registered client, for tests that need neither a lock nor a
// file: one thread is the lock holder and the reader.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/layout/test_region.h"
#include "tree/tree.h"

namespace radixshmem {

using Path = std::vector<BlockHash>;
using Slots = std::vector<std::int32_t>;

// `n` hashes of a path of its own.
[[nodiscard]] inline Path make_path(std::uint64_t seed, std::size_t n) {
  Path path;
  for (std::size_t i = 0; i < n; ++i) path.push_back(mix_hash(seed * 1'000'003 + i + 1));
  return path;
}
// The first `keep` hashes of `path`, then `more` of another.
[[nodiscard]] inline Path branch_of(const Path& path, std::size_t keep, std::uint64_t seed,
                                    std::size_t more) {
  Path out(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(keep));
  const Path tail = make_path(seed, more);
  out.insert(out.end(), tail.begin(), tail.end());
  return out;
}
[[nodiscard]] inline Path first_of(const Path& path, std::size_t n) {
  return {path.begin(), path.begin() + static_cast<std::ptrdiff_t>(n)};
}

class TreeRig {
 public:
  static constexpr ClientId kSelf = 1;
  static constexpr std::uint32_t kGroup = 1;

  // `pages`: arena pages instead of what the plan would get (page 0 is not used).
  explicit TreeRig(const IndexPlan& plan, std::optional<std::uint32_t> pages = {})
      : view_{plan, layout_of(plan)}, memory_(view_.layout.region_bytes) {
    write_header(memory_.base(), plan, view_.layout, 1);
    if (pages) view_.layout.pages = *pages;
    view_.plan.identity = plan.identity;
    tree_ = std::make_unique<Tree>(memory_.base(), view_);
    tree_->init();
    tree_->clients().claim(kSelf, kGroup, 1);
    publish_header(memory_.base());
  }

  [[nodiscard]] Tree& tree() { return *tree_; }
  [[nodiscard]] const GuardedMemory& memory() const { return memory_; }
  [[nodiscard]] const HeaderView& view() const { return view_; }

  [[nodiscard]] Slots allocate(std::uint32_t n, Component c = Component::kFull) {
    std::vector<SlotId> out(n);
    out.resize(tree_->allocate(c, out, kSelf));
    return {out.begin(), out.end()};
  }
  InsertOutcome insert(const Path& path, const Slots& slots, Position start,
                       std::uint32_t group = kGroup) {
    return tree_->insert(path, slots, start, group);
  }
  InsertOutcome insert_aux(Component c, const Path& path, const Slots& slots) {
    return tree_->insert_aux(c, path, slots, kGroup);
  }
  // Allocates for what is missing of `path` and inserts it. Returns: the slots used.
  Slots put(const Path& path) {
    const Position have = hit(path);
    const Slots slots = allocate(static_cast<std::uint32_t>(path.size()) - have);
    EXPECT_EQ(slots.size(), path.size() - have);
    const InsertOutcome outcome = insert(path, slots, have);
    EXPECT_EQ(outcome.error, ErrorCode::OK);
    EXPECT_TRUE(outcome.unused.empty());
    return slots;
  }
  void put_aux(Component c, const Path& path, std::uint32_t n) {
    const Slots slots = allocate(n, c);
    ASSERT_EQ(slots.size(), n);
    EXPECT_EQ(insert_aux(c, path, slots).error, ErrorCode::OK);
  }

  struct Found {
    Match match;
    Window window;
    Slots slots;
  };
  [[nodiscard]] Found find(const Path& path, std::uint32_t mask = kMaskFull) const {
    Found found;
    found.slots.resize(path.size());
    EXPECT_TRUE(tree_->match(path, nullptr, found.slots.data(), found.match));
    if (mask != kMaskFull && found.match.end != 0) {
      tree_->window(mask, found.match, found.window);
    }
    EXPECT_TRUE(tree_->validate(found.match, found.window));
    found.slots.resize(found.match.end);
    return found;
  }
  [[nodiscard]] Position hit(const Path& path, std::uint32_t mask = kMaskFull) const {
    return find(path, mask).match.end;
  }
  void touch(const Path& path) const {
    const Found found = find(path);
    tree_->touch(found.match, found.window);
  }
  // Pins what find() found, as entry `index` of the client's table: the deepest segment.
  void pin(const Found& found, std::uint32_t index, std::uint32_t mask = kMaskFull) {
    const MatchStep& step = found.match.steps.back();
    auto& mark = tree_->clients().entry(kSelf).pin_high_water;
    mark = std::max(mark.load(), index + 1);
    tree_->clients().pin(kSelf, index).store(PinWord{step.segment, step.count, mask}.pack());
  }
  void unpin(std::uint32_t index) { tree_->clients().pin(kSelf, index).store(0); }

  [[nodiscard]] std::string problems() const {
    std::string text;
    for (const std::string& line : tree_->check()) text += line + "\n";
    return text;
  }
  [[nodiscard]] std::uint32_t free_slots(Component c = Component::kFull) const {
    return tree_->pool(c).free_count();
  }
  [[nodiscard]] std::uint32_t segments() const { return tree_->control().live_segments.load(); }
  [[nodiscard]] std::uint32_t blocks() const { return tree_->control().live_blocks.load(); }

 private:
  HeaderView view_;
  GuardedMemory memory_;
  std::unique_ptr<Tree> tree_;
};

#define EXPECT_SOUND(rig) EXPECT_EQ((rig).problems(), "")
#define ASSERT_SOUND(rig) ASSERT_EQ((rig).problems(), "")

}  // namespace radixshmem
