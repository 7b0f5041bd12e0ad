// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A publisher beside a busy writer of its tree.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/directory/publisher_rig.h"

namespace radixshmem {
namespace {

IndexPlan busy_plan(std::uint32_t ring_entries) {
  IndexPlan plan = grid_plan(300, 60, 10);
  plan.ring_entries = ring_entries;
  return plan;
}

class PublisherThreadsTest : public ::testing::TestWithParam<std::uint32_t>, public PublisherRig {
 protected:
  PublisherThreadsTest() : PublisherRig(busy_plan(GetParam())) {
    for (std::uint64_t i = 0; i < 30; ++i) {
      paths.push_back(i % 2 == 0 ? make_path(i, 40) : branch_of(paths.back(), 10 + i, i, 12));
    }
  }
  void write(std::uint32_t seed, int operations) {
    std::mt19937 random(seed);
    for (int i = 0; i < operations; ++i) {
      const Path part = first_of(paths[random() % paths.size()], 1 + random() % 22);
      const Position have = rig.hit(part);
      const auto missing = static_cast<std::uint32_t>(part.size()) - have;
      const Slots slots = rig.allocate(missing);
      if (slots.size() == missing) (void)rig.insert(part, slots, have);
      if (i % 3 == 0) {
        const Slots window = rig.allocate(
            static_cast<std::uint32_t>(std::min<std::size_t>(6, part.size())), Component::kSwa);
        if (!window.empty()) (void)rig.insert_aux(Component::kSwa, part, window);
      }
      if (i % 5 == 0) (void)rig.tree().evict(1 + static_cast<std::uint32_t>(random() % 30));
      if (i % 997 == 0) rig.tree().reset();
    }
  }

  std::vector<Path> paths;
};

TEST_P(PublisherThreadsTest, InTheEndEveryKeyIsFoundAndNoOther) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  publisher.set_maps({map_of(0)}, 0, now);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    write(seed, 6000);
    done = true;
  });
  while (!done) {
    now += 5;
    collect();
    std::this_thread::yield();
  }
  writer.join();
  for (int i = 0; i < 3; ++i, now += 3000) flush();
  EXPECT_EQ(publisher.pending(), 0u);
  std::uint64_t keys = 0;
  rig.tree().arena().for_each([&](SegmentId id, Segment segment) {
    const SegmentHead head = segment.head();
    for (Position p = segment.start(); head.live() && p < segment.start() + head.count; ++p) {
      if (p % 4 != 0) continue;
      ++keys;
      const Holders holders = keeper(0).find(segment.hash(p - segment.start()));
      ASSERT_EQ(holders.count, 1u) << p;
      EXPECT_EQ(holders.entry[0].segment.id, id);
    }
  });
  EXPECT_GT(keys, 0u);
  EXPECT_EQ(keeper(0)->entries(), keys);
}

// A ring that is never lapped, and one that often is.
INSTANTIATE_TEST_SUITE_P(Rings, PublisherThreadsTest, ::testing::Values(1u << 18, 1024u));

}  // namespace
}  // namespace radixshmem
