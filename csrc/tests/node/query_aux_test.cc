// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Queries for the slots of an aux component along a path, windows or not.
#include <gtest/gtest.h>

#include <limits>

#include "tests/node/server_rig.h"

namespace radixshmem {
namespace {

constexpr Component kSwa = Component::kSwa;
constexpr Component kMamba = Component::kMamba;

class QueryAuxTest : public ::testing::Test {
 protected:
  QueryAuxTest() : rig_(small_plan(200, 40, 10)), client_(rig_.attach()), path_(make_path(1, 40)) {
    full_ = put(client_, path_);
  }
  // Gives the blocks [end - slots, end) of `path` slots. Returns: those of all blocks then, in case
  // there were none before.
  Slots put_aux(const Path& path, Component c, Position end, std::uint32_t count) {
    const Slots slots = allocate(client_, count, c);
    EXPECT_EQ(slots.size(), count);
    EXPECT_EQ(insert(client_, first_of(path, end), slots, 0, true, c).error, ErrorCode::OK);
    Slots all(path.size(), -1);
    std::copy(slots.begin(), slots.end(), all.begin() + end - count);
    return all;
  }
  static Slots from(const Slots& slots, Position start) {
    return {slots.begin() + start, slots.end()};
  }

  ServerRig rig_;
  SessionPtr client_;
  Path path_;
  Slots full_;
};

TEST_F(QueryAuxTest, EachBlockHasItsSlotOrNone) {
  const Slots swa = put_aux(path_, kSwa, 18, 4);  // [14, 18) crosses position 16
  const Slots mamba = put_aux(path_, kMamba, 33, 1);
  for (const Position start : {0u, 1u, 14u, 15u, 16u, 17u, 18u, 33u, 39u}) {
    const Hit hit = query_aux(client_, path_, kSwa, start);
    EXPECT_EQ(hit.status, ErrorCode::OK);
    EXPECT_EQ(hit.blocks, 40u);
    EXPECT_EQ(hit.full_count, 0u);
    EXPECT_EQ(hit.window.aux_slots, from(swa, start)) << start;
    EXPECT_EQ(query_aux(client_, path_, kMamba, start).window.aux_slots, from(mamba, start));
  }
}

TEST_F(QueryAuxTest, OnlyThePathThatIsThereCounts) {
  const Slots swa = put_aux(path_, kSwa, 40, 4);
  const Path branch = branch_of(path_, 38, 7, 20);
  const Hit hit = query_aux(client_, branch, kSwa, 36);
  EXPECT_EQ(hit.blocks, 38u);
  EXPECT_EQ(hit.window.aux_slots, (Slots{swa[36], swa[37]}));
  const Hit part = query_aux(client_, first_of(path_, 37), kSwa, 35);
  EXPECT_EQ(part.blocks, 37u);
  EXPECT_EQ(part.window.aux_slots, (Slots{-1, swa[36]}));
}

TEST_F(QueryAuxTest, AStartBeyondTheHitHasNoSlots) {
  put_aux(path_, kSwa, 40, 4);
  for (const Position start : {40u, 41u, std::numeric_limits<Position>::max()}) {
    Hit hit = query_aux(client_, path_, kSwa, start, /*lock=*/true);
    EXPECT_EQ(hit.blocks, 40u);
    EXPECT_TRUE(hit.window.aux_slots.empty());
    EXPECT_EQ(client_->pins_outstanding(), 1u) << "the path is pinned";
    hit.finalize();
  }
  Hit miss = query_aux(client_, make_path(9, 5), kSwa, 0, /*lock=*/true);
  EXPECT_EQ(miss.blocks, 0u);
  EXPECT_FALSE(miss.pinned());
  EXPECT_TRUE(miss.validate());
  miss.finalize();
  EXPECT_EQ(query_aux(client_, {}, kSwa).blocks, 0u);
}

TEST_F(QueryAuxTest, FullSeveralOrMissingComponentsAreBadRequests) {
  ServerRig rig(small_plan(100, 40, 0));
  const SessionPtr client = rig.attach();
  put(client, path_);
  for (const std::uint32_t mask : {0u, 1u, 3u, 4u, 6u, 7u, 8u, 0xffffffffu}) {
    const Hit hit = ServerRig::take(client->query(path_, {mask, true, true, Position{0}}));
    EXPECT_EQ(hit.status, ErrorCode::BAD_REQUEST) << mask;
    EXPECT_EQ(hit.blocks, 0u);
    EXPECT_FALSE(hit.pinned());
  }
  EXPECT_EQ(client->pins_outstanding(), 0u);
}

TEST_F(QueryAuxTest, APinKeepsEverySlotThatItReturnedAndThePath) {
  const Slots swa = put_aux(path_, kSwa, 18, 4);
  put_aux(path_, kSwa, 5, 4);
  put_aux(path_, kSwa, 40, 4);
  Hit hit = query_aux(client_, path_, kSwa, 16, /*lock=*/true);
  EXPECT_EQ(client_->pins_outstanding(), 2u) << "nothing is asked of the first segment";
  EXPECT_EQ(ServerRig::take(client_->evict(40, kSwa)), 6u) << "the first segment's go";
  EXPECT_EQ(allocate(client_, 200).size(), 160u);
  EXPECT_TRUE(hit.validate());
  EXPECT_EQ(query_aux(client_, path_, kSwa, 16).window.aux_slots, hit.window.aux_slots);
  EXPECT_EQ(hit.window.aux_slots[0], swa[16]);
  hit.finalize();
  hit.finalize();
  EXPECT_EQ(client_->pins_outstanding(), 0u);
  EXPECT_EQ(ServerRig::take(client_->evict(40, kSwa)), 6u);
  EXPECT_EQ(allocate(client_, 40).size(), 40u);
  EXPECT_EQ(problems(client_), "");
}

TEST_F(QueryAuxTest, APinOfOneComponentLeavesTheOther) {
  put_aux(path_, kSwa, 40, 4);
  put_aux(path_, kMamba, 40, 1);
  Hit hit = query_aux(client_, path_, kMamba, 0, /*lock=*/true);
  EXPECT_EQ(ServerRig::take(client_->evict(40, kMamba)), 0u);
  EXPECT_EQ(ServerRig::take(client_->evict(40, kSwa)), 4u);
  EXPECT_TRUE(hit.validate());
  hit.finalize();
}

TEST_F(QueryAuxTest, AFullPinTableIsPinsFullWithoutAHit) {
  put_aux(path_, kSwa, 4, 4);
  std::vector<Hit> hits;
  while (client_->pins_outstanding() + 3 <= rig_.plan().max_pins) {
    hits.push_back(query_aux(client_, path_, kSwa, 0, /*lock=*/true));
    ASSERT_TRUE(hits.back().pinned());
  }
  Hit refused = query_aux(client_, path_, kSwa, 0, /*lock=*/true);
  EXPECT_EQ(refused.status, ErrorCode::PINS_FULL);
  EXPECT_EQ(refused.blocks, 0u);
  EXPECT_TRUE(refused.window.aux_slots.empty());
  refused.finalize();
  EXPECT_TRUE(query_aux(client_, path_, kSwa, 4, /*lock=*/true).pinned()) << "one pin is left";
}

TEST_F(QueryAuxTest, ValidateRestsOnTheSlotsThatWereThere) {
  put_aux(path_, kSwa, 20, 4);
  const Hit all = query_aux(client_, path_, kSwa);
  const Hit tail = query_aux(client_, path_, kSwa, 20);
  EXPECT_EQ(tail.window.aux_slots, Slots(20, -1));
  put_aux(path_, kSwa, 10, 4);
  put_aux(path_, kSwa, 40, 4);
  EXPECT_TRUE(all.validate()) << "a slot may appear";
  EXPECT_TRUE(tail.validate());
  ServerRig::take(client_->evict(40, kSwa));
  EXPECT_FALSE(all.validate());
  EXPECT_TRUE(tail.validate());
  ServerRig::take(client_->evict(1, Component::kFull));
  EXPECT_FALSE(tail.validate()) << "the path is shorter";
}

TEST_F(QueryAuxTest, SlotsThatWereReadGetASecondChance) {
  for (const bool touch : {false, true}) {
    ServerRig rig(small_plan(100, 40, 10));
    client_ = rig.attach();
    const Path a = make_path(5, 20);
    const Path b = make_path(6, 20);
    for (const Path& path : {a, b}) {
      put(client_, path);
      put_aux(path, kSwa, 10, 4);
    }
    put_aux(b, kMamba, 20, 1);
    ServerRig::take(client_->evict(1, kMamba));  // the clock moves
    const Slots slots = query_aux(client_, a, kSwa, 0, false, touch).window.aux_slots;
    ServerRig::take(client_->evict(4, kSwa));
    const Path& gone = touch ? b : a;
    EXPECT_EQ(query_aux(client_, gone, kSwa).window.aux_slots, Slots(20, -1)) << touch;
    EXPECT_EQ(query_aux(client_, a, kSwa).window.aux_slots == slots, touch);
  }
}

TEST_F(QueryAuxTest, FinalizeAfterResetGivesTheSlotsBack) {
  put_aux(path_, kSwa, 18, 4);
  Hit hit = query_aux(client_, path_, kSwa, 0, /*lock=*/true);
  ASSERT_TRUE(client_->reset().ok());
  EXPECT_EQ(query_aux(client_, path_, kSwa).blocks, 0u);
  EXPECT_FALSE(hit.validate());
  EXPECT_EQ(free_slots(client_, kSwa), 36u);
  hit.finalize();
  EXPECT_EQ(free_slots(client_, kSwa), 40u);
  EXPECT_EQ(free_slots(client_), 200u);
  EXPECT_EQ(problems(client_), "");
}

TEST_F(QueryAuxTest, AReadOnlySessionAsksWithoutPins) {
  const Slots swa = put_aux(path_, kSwa, 20, 4);
  const SessionPtr reader = rig_.attach("", /*read_only=*/true);
  const Hit hit = query_aux(reader, path_, kSwa);
  EXPECT_EQ(hit.window.aux_slots, swa);
  EXPECT_TRUE(hit.validate());
  EXPECT_FALSE(reader->query(path_, {kMaskSwa, /*lock=*/true, true, Position{0}}).ok());
}

}  // namespace
}  // namespace radixshmem
