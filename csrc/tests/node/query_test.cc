// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Queries, pins, cursors and read-only sessions of one client.
#include <gtest/gtest.h>

#include <optional>

#include "tests/node/server_rig.h"

namespace radixshmem {
namespace {

class QueryTest : public ::testing::Test {
 protected:
  QueryTest() : rig_(small_plan(200, 40, 10)), client_(rig_.attach()), path_(make_path(1, 40)) {}
  ServerRig rig_;
  SessionPtr client_;
  Path path_;
};

TEST_F(QueryTest, EveryProcessSeesAnInsertAtOnce) {
  const SessionPtr other = rig_.attach();
  const Slots slots = put(client_, path_);
  EXPECT_EQ(slots_of(query(other, path_)), slots);
  EXPECT_EQ(query(other, first_of(path_, 7)).blocks, 7u);
  EXPECT_EQ(query(other, {}).blocks, 0u);
}

TEST_F(QueryTest, AComponentThatIsNotEnabledIsABadRequest) {
  ServerRig full(small_plan(100));
  const SessionPtr client = full.attach();
  put(client, path_);
  for (const std::uint32_t mask : {0u, 2u, 3u, 4u, 5u, 8u, 9u, 0xffffffffu}) {
    const Hit hit = query(client, path_, mask, true);
    EXPECT_EQ(hit.status, ErrorCode::BAD_REQUEST) << mask;
    EXPECT_EQ(hit.blocks, 0u);
    EXPECT_FALSE(hit.pinned());
  }
  EXPECT_EQ(client->pins_outstanding(), 0u);
}

TEST_F(QueryTest, AuxAloneOmitsTheFullSlots) {
  put(client_, path_);
  const Slots swa = allocate(client_, 4, Component::kSwa);
  ASSERT_EQ(insert(client_, path_, swa, 0, true, Component::kSwa).error, ErrorCode::OK);
  const Hit hit = query(client_, path_, kMaskSwa);
  EXPECT_EQ(hit.blocks, 40u);
  EXPECT_EQ(hit.full_count, 0u);
  EXPECT_EQ(hit.window.swa_slots, swa);
}

TEST_F(QueryTest, APinHoldsUntilFinalizeWhichIsIdempotent) {
  put(client_, path_);
  Hit hit = query(client_, path_, kMaskFull, true);
  ASSERT_TRUE(hit.pinned());
  EXPECT_EQ(allocate(client_, 200).size(), 160u);
  EXPECT_TRUE(hit.validate());
  hit.finalize();
  EXPECT_FALSE(hit.pinned());
  Hit second = query(client_, path_, kMaskFull, true);
  hit.finalize();  // must not release the other's pin
  EXPECT_EQ(client_->pins_outstanding(), 1u);
  EXPECT_EQ(allocate(client_, 40).size(), 0u);
  second.finalize();
  EXPECT_EQ(allocate(client_, 40).size(), 40u);
}

TEST_F(QueryTest, AMissPinsNothingAndFinalizesHarmlessly) {
  Hit hit = query(client_, path_, kMaskFull, true);
  EXPECT_EQ(hit.blocks, 0u);
  EXPECT_FALSE(hit.pinned());
  EXPECT_EQ(client_->pins_outstanding(), 0u);
  hit.finalize();
  EXPECT_TRUE(hit.validate());
}

TEST_F(QueryTest, AWindowPinsEachOfItsSegments) {
  const Path path = make_path(2, 18);  // the window [14, 18) crosses position 16
  put(client_, path);
  const Slots swa = allocate(client_, 4, Component::kSwa);
  ASSERT_EQ(insert(client_, path, swa, 0, true, Component::kSwa).error, ErrorCode::OK);
  Hit hit = query(client_, path, kMaskFull | kMaskSwa, true);
  EXPECT_EQ(client_->pins_outstanding(), 2u);
  EXPECT_EQ(allocate(client_, 37, Component::kSwa).size(), 0u);
  EXPECT_EQ(allocate(client_, 36, Component::kSwa).size(), 36u);
  EXPECT_TRUE(hit.validate());
  hit.finalize();
  EXPECT_EQ(client_->pins_outstanding(), 0u);
  EXPECT_EQ(allocate(client_, 4, Component::kSwa).size(), 4u);
}

TEST_F(QueryTest, AFullPinTableIsPinsFullWithoutAHit) {
  put(client_, path_);
  std::vector<Hit> hits;
  for (std::uint32_t i = 0; i < rig_.plan().max_pins; ++i) {
    hits.push_back(query(client_, path_, kMaskFull, true));
    ASSERT_EQ(hits.back().status, ErrorCode::OK);
  }
  Hit refused = query(client_, path_, kMaskFull, true);
  EXPECT_EQ(refused.status, ErrorCode::PINS_FULL);
  EXPECT_EQ(refused.blocks, 0u);
  EXPECT_EQ(refused.full_count, 0u);
  refused.finalize();
  EXPECT_EQ(query(client_, path_).blocks, 40u) << "unpinned queries go on";
  EXPECT_EQ(query(rig_.attach(), path_, kMaskFull, true).blocks, 40u) << "others have their own";
  hits.front().finalize();
  EXPECT_EQ(query(client_, path_, kMaskFull, true).status, ErrorCode::OK);
  EXPECT_EQ(client_->tree().clients().total(Counter::kPinsFull), 1u);
}

TEST_F(QueryTest, FinalizeAfterResetGivesTheBytesBack) {
  put(client_, path_);
  Hit hit = query(client_, path_, kMaskFull, true);
  ASSERT_TRUE(client_->reset().ok());
  EXPECT_EQ(query(client_, path_).blocks, 0u);
  EXPECT_EQ(free_slots(client_), 160u) << "used falls only with the pin";
  EXPECT_FALSE(hit.validate());
  hit.finalize();
  EXPECT_EQ(free_slots(client_), 200u);
  EXPECT_EQ(problems(client_), "");
}

TEST_F(QueryTest, FinalizeAndValidateAfterCloseAreHarmless) {
  const SessionPtr other = rig_.attach();
  put(client_, path_);
  Hit hit = query(client_, path_, kMaskFull, true);
  client_->close();
  EXPECT_FALSE(hit.validate());
  hit.finalize();
  hit.finalize();
  EXPECT_EQ(allocate(other, 200).size(), 200u) << "close released the pin";
  EXPECT_EQ(problems(other), "");
}

TEST_F(QueryTest, ValidateSaysWhetherCopiedBytesWereRight) {
  put(client_, path_);
  const Hit hit = query(client_, path_);
  const Hit prefix = query(client_, first_of(path_, 10));
  EXPECT_TRUE(hit.validate());
  (void)insert(client_, branch_of(path_, 40, 2, 5), allocate(client_, 5), 40);
  EXPECT_TRUE(hit.validate()) << "an append changes nothing of it";
  ServerRig::take(client_->evict(6, Component::kFull));
  EXPECT_FALSE(hit.validate());
  EXPECT_TRUE(prefix.validate());
}

TEST_F(QueryTest, ExtendGoesOnFromACursor) {
  const Slots slots = put(client_, path_);
  const Hit head = query(client_, first_of(path_, 10));
  ASSERT_TRUE(head.cursor.has_value());
  EXPECT_EQ(head.cursor->position, 10u);
  const Path rest(path_.begin() + 10, path_.end());
  Hit tail = ServerRig::take(client_->extend(*head.cursor, rest, {kMaskFull, true, true}));
  EXPECT_EQ(tail.blocks, 30u);
  EXPECT_EQ(slots_of(tail), Slots(slots.begin() + 10, slots.end()));
  EXPECT_TRUE(tail.pinned());
  EXPECT_EQ(allocate(client_, 200).size(), 160u);
  tail.finalize();
}

TEST_F(QueryTest, ExtendAtTheEndOfWhatIsKnownFindsNothingMore) {
  put(client_, path_);
  const Hit all = query(client_, path_);
  const Hit more =
      ServerRig::take(client_->extend(*all.cursor, make_path(9, 5), {kMaskFull, false, true}));
  EXPECT_EQ(more.status, ErrorCode::OK);
  EXPECT_EQ(more.blocks, 0u);
  const Hit none = ServerRig::take(client_->extend(*all.cursor, {}, {kMaskFull, false, true}));
  EXPECT_EQ(none.status, ErrorCode::OK);
}

TEST_F(QueryTest, ExtendSeesWhatWasAppendedMeanwhile) {
  put(client_, path_);
  const Hit all = query(client_, path_);
  const Path longer = branch_of(path_, 40, 3, 30);
  ASSERT_EQ(insert(client_, longer, allocate(client_, 30), 40).error, ErrorCode::OK);
  const Path more(longer.begin() + 40, longer.end());
  EXPECT_EQ(ServerRig::take(client_->extend(*all.cursor, more, {kMaskFull, false, true})).blocks,
            30u);
}

TEST_F(QueryTest, ACursorOfAChangedSegmentIsStale) {
  put(client_, path_);
  const Hit head = query(client_, first_of(path_, 36));
  ServerRig::take(client_->evict(1, Component::kFull));
  const Path rest(path_.begin() + 36, path_.end());
  const Hit tail = ServerRig::take(client_->extend(*head.cursor, rest, {kMaskFull, true, true}));
  EXPECT_EQ(tail.status, ErrorCode::CURSOR_STALE);
  EXPECT_EQ(tail.blocks, 0u);
  EXPECT_FALSE(tail.pinned());
  ASSERT_TRUE(client_->reset().ok());
  EXPECT_EQ(ServerRig::take(client_->extend(*head.cursor, rest, {})).status,
            ErrorCode::CURSOR_STALE);
}

TEST_F(QueryTest, ExtendOfOtherMasksIsABadRequest) {
  put(client_, path_);
  const Hit head = query(client_, first_of(path_, 10));
  EXPECT_EQ(
      ServerRig::take(client_->extend(*head.cursor, path_, {kMaskFull | kMaskSwa, false, true}))
          .status,
      ErrorCode::BAD_REQUEST);
}

TEST_F(QueryTest, MadeUpCursorsAreStaleNotFatal) {
  put(client_, path_);
  const Hit head = query(client_, first_of(path_, 10));
  for (const SegmentId segment : {0u, 1u, 0xffffffffu, head.cursor->segment + 1}) {
    CursorPoint point = *head.cursor;
    point.segment = segment;
    EXPECT_EQ(ServerRig::take(client_->extend(point, path_, {})).status, ErrorCode::CURSOR_STALE);
  }
  for (const std::uint32_t depth : {11u, 17u, 0xffffffffu}) {
    CursorPoint point = *head.cursor;
    point.depth = depth;
    const Hit hit = ServerRig::take(client_->extend(point, path_, {}));
    EXPECT_EQ(hit.blocks, 0u) << depth;
  }
}

TEST_F(QueryTest, AReadOnlySessionQueriesAndChangesNothing) {
  const Slots slots = put(client_, path_);
  const SessionPtr reader = rig_.attach("", /*read_only=*/true);
  const Hit hit = query(reader, path_);
  EXPECT_EQ(slots_of(hit), slots);
  EXPECT_TRUE(hit.validate());
  EXPECT_EQ(free_slots(reader), 160u);
  EXPECT_FALSE(reader->query(path_, {kMaskFull, /*lock=*/true, true}).ok());
  EXPECT_FALSE(reader->extend(*hit.cursor, path_, {kMaskFull, /*lock=*/true, true}).ok());
  EXPECT_FALSE(reader->allocate(1, Component::kFull).ok());
  EXPECT_FALSE(reader->insert(path_, slots, 0, true, Component::kFull).ok());
  EXPECT_FALSE(reader->recycle(slots, Component::kFull).ok());
  EXPECT_FALSE(reader->evict(1, Component::kFull).ok());
  EXPECT_FALSE(reader->reset().ok());
  EXPECT_FALSE(reader->check(false).ok());
  EXPECT_EQ(rig_.own().tree().clients().ids_used(), 2u) << "it took no client id";
  reader->close();
  EXPECT_FALSE(reader->query(path_, {}).ok());
}

TEST_F(QueryTest, UpdateRecencyFalseGivesNoSecondChance) {
  ServerRig rig(small_plan(100));
  const SessionPtr client = rig.attach();
  const Path a = make_path(5, 10);
  put(client, a);
  put(client, make_path(6, 10));
  ServerRig::take(client->evict(1, Component::kFull));  // the clock moves
  (void)client->query(a, {kMaskFull, false, /*update_recency=*/false}).ok();
  ServerRig::take(client->evict(5, Component::kFull));
  EXPECT_EQ(query(client, a).blocks, 4u);
  (void)query(client, first_of(a, 4));
  ServerRig::take(client->evict(10, Component::kFull));
  EXPECT_EQ(query(client, a).blocks, 4u);
}

TEST_F(QueryTest, CountersConserveBlocks) {
  put(client_, path_);
  (void)query(client_, path_);
  (void)query(client_, branch_of(path_, 30, 7, 20));
  (void)query(client_, make_path(9, 5));
  const ClientTable& clients = client_->tree().clients();
  EXPECT_EQ(clients.total(Counter::kQueries), 3u);
  EXPECT_EQ(clients.total(Counter::kQueriedBlocks), 95u);
  EXPECT_EQ(clients.total(Counter::kHitBlocks), 70u);
  EXPECT_EQ(clients.total(Counter::kMissedBlocks), 25u);
  EXPECT_EQ(clients.total(Counter::kInsertedBlocks), 40u);
  EXPECT_EQ(clients.total(Counter::kAllocatedSlots), 40u);
}

}  // namespace
}  // namespace radixshmem
