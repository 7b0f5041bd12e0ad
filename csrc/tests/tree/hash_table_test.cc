// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tree/hash_table.h"

#include <gtest/gtest.h>

#include <unordered_set>

#include "tests/tree/tree_rig.h"

namespace radixshmem {
namespace {

// Hashes whose two table lines are those of `like`, whatever the number of lines in use.
Path colliding_hashes(const HashTable& table, BlockHash like, std::size_t n) {
  const HashTable::Probe wanted = table.probe(like);
  Path found;
  for (BlockHash h = 1; found.size() < n; ++h) {
    const HashTable::Probe p = table.probe(h);
    if (p.line[0] == wanted.line[0] && p.line[1] == wanted.line[1]) found.push_back(h);
  }
  return found;
}

TEST(HashTableTest, TheTableGrowsWithItsEntriesAndLosesNone) {
  IndexPlan plan = small_plan(6000);
  plan.segment_blocks = 64;
  TreeRig rig(plan);
  const std::uint32_t lines = rig.tree().table().lines_in_use();
  for (std::uint64_t i = 0; i < 5000; ++i) rig.put(make_path(i, 1));
  EXPECT_GT(rig.tree().table().lines_in_use(), lines);
  EXPECT_GT(rig.tree().control().work.table_growths.load(), 0u);
  EXPECT_EQ(rig.tree().control().intent.load(), kIntentNone);
  for (std::uint64_t i = 0; i < 5000; ++i) ASSERT_EQ(rig.hit(make_path(i, 1)), 1u) << i;
  EXPECT_SOUND(rig);
}

TEST(HashTableTest, GrowthForgetsWhatDamageLeftInLinesBeyondThoseInUse) {
  TreeRig rig(small_plan(2000));
  const IndexLayout& layout = rig.tree().layout();
  auto* lines =
      reinterpret_cast<TableLine*>(rig.memory().base() + layout.area(AreaKind::kTable).offset);
  const std::uint32_t used = rig.tree().table().lines_in_use();
  ASSERT_LT(used, layout.table_lines_max);
  for (std::uint32_t l = used; l < layout.table_lines_max; ++l) lines[l].entry[3] = ~0ull;
  for (std::uint64_t i = 0; i < 1500; ++i) rig.put(make_path(i, 1));
  EXPECT_GT(rig.tree().table().lines_in_use(), used);
  EXPECT_SOUND(rig);
}

TEST(HashTableTest, FullLinesMoveTheirEntriesAside) {
  TreeRig rig(small_plan(2000));
  const Tree& tree = rig.tree();
  const BlockHash like = 77;
  const HashTable::Probe home = tree.table().probe(like);
  ASSERT_NE(home.line[0], home.line[1]);
  // Entries with one line in common with `home` fill its first line and can go elsewhere.
  std::uint32_t filled = 0;
  for (BlockHash h = 1; filled < 14; ++h) {
    const HashTable::Probe p = tree.table().probe(h);
    const bool shares = p.line[0] == home.line[0] || p.line[1] == home.line[0] ||
                        p.line[0] == home.line[1] || p.line[1] == home.line[1];
    if (!shares || p.line[0] == p.line[1]) continue;
    rig.put({h});
    ++filled;
  }
  const Path keys = colliding_hashes(tree.table(), like, 10);
  for (const BlockHash key : keys) rig.put({key});
  EXPECT_GT(tree.control().work.table_moves.load(), 0u);
  EXPECT_EQ(tree.table().sequence(std::memory_order_relaxed) % 2, 0u);
  for (const BlockHash key : keys) EXPECT_EQ(rig.hit({key}), 1u);
  EXPECT_SOUND(rig);
}

TEST(HashTableTest, HashesThatAllMeanTheSameLinesEndInMempoolFull) {
  TreeRig rig(small_plan(500));
  const Path keys = colliding_hashes(rig.tree().table(), 77, 40);
  std::size_t landed = 0;
  std::size_t refused = 0;
  for (const BlockHash key : keys) {
    const Slots slots = rig.allocate(1);
    const std::uint32_t segments = rig.segments();
    const InsertOutcome outcome = rig.insert({key}, slots, 0);
    if (outcome.error == ErrorCode::OK) {
      ++landed;
      continue;
    }
    ++refused;
    EXPECT_EQ(outcome.error, ErrorCode::MEMPOOL_FULL);
    EXPECT_EQ(outcome.unused, slots);
    EXPECT_EQ(outcome.first, outcome.last);
    EXPECT_EQ(rig.segments(), segments);
    ASSERT_SOUND(rig);
  }
  EXPECT_EQ(landed, 16u) << "two lines of eight";
  EXPECT_EQ(refused, 24u);
  EXPECT_EQ(rig.tree().table().sequence(std::memory_order_relaxed) % 2, 0u);
  for (std::size_t i = 0; i < landed; ++i) EXPECT_EQ(rig.hit({keys[i]}), 1u) << i;
}

TEST(HashTableTest, OneHashAtManyPositionsEndsInMempoolFullToo) {
  IndexPlan plan = small_plan(4000);
  TreeRig rig(plan);
  const BlockHash same = 4242;
  std::uint32_t refused = 0;
  for (std::uint32_t i = 1; i <= 20; ++i) {
    Path path = make_path(i, i * 16);
    path.push_back(same);  // begins a segment at position 16 i
    rig.put(first_of(path, i * 16));
    const InsertOutcome outcome = rig.insert(path, rig.allocate(1), i * 16);
    if (outcome.error != ErrorCode::OK) {
      EXPECT_EQ(outcome.error, ErrorCode::MEMPOOL_FULL);
      ++refused;
    } else {
      EXPECT_EQ(rig.hit(path), path.size());
    }
  }
  EXPECT_EQ(refused, 4u) << "sixteen entries of one key";
  EXPECT_SOUND(rig);
}

TEST(HashTableTest, AMissingKeyIsNotFoundThoughItsLinesAreFull) {
  TreeRig rig(small_plan(500));
  const Path keys = colliding_hashes(rig.tree().table(), 77, 17);
  for (std::size_t i = 0; i < 16; ++i) rig.put({keys[i]});
  EXPECT_EQ(rig.hit({keys[16]}), 0u);
  EXPECT_EQ(rig.tree().table().find(keys[16], 0), 0u);
}

TEST(HashTableTest, AHostileLineMaskStaysInsideTheTable) {
  TreeRig rig(small_plan(500));
  rig.put(make_path(1, 5));
  rig.tree().control().table.line_mask = 0xffffffffu;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const HashTable::Probe p = rig.tree().table().probe(i);
    ASSERT_LT(p.line[0], rig.tree().table().max_lines());
    ASSERT_LT(p.line[1], rig.tree().table().max_lines());
  }
  EXPECT_EQ(rig.tree().table().lines_in_use(), rig.tree().table().max_lines());
}

}  // namespace
}  // namespace radixshmem
