// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "layout/words.h"

#include <gtest/gtest.h>

#include <set>

namespace radixshmem {
namespace {

TEST(SegmentHeadTest, PacksAndUnpacksEveryField) {
  const SegmentHead head{SegmentHead::kVersionMask, SegmentState::kZombie, 1023, 517};
  const SegmentHead back = SegmentHead::unpack(head.pack());
  EXPECT_EQ(back.version, SegmentHead::kVersionMask);
  EXPECT_EQ(back.state, SegmentState::kZombie);
  EXPECT_EQ(back.count, 1023u);
  EXPECT_EQ(back.owned, 517u);
  EXPECT_FALSE(back.live());
}

TEST(SegmentHeadTest, NextHeadRaisesTheVersionAndReplacesTheRest) {
  const std::uint64_t word = SegmentHead{41, SegmentState::kLive, 7, 7}.pack();
  const SegmentHead next = SegmentHead::unpack(next_head(word, SegmentState::kLive, 3, 7));
  EXPECT_EQ(next.version, 42u);
  EXPECT_EQ(next.count, 3u);
  EXPECT_EQ(next.owned, 7u);
  EXPECT_TRUE(next.live());
  EXPECT_EQ(head_version(word), 41u);
}

TEST(SegmentHeadTest, VersionWrapsWithoutTouchingTheOtherFields) {
  const std::uint64_t last =
      SegmentHead{SegmentHead::kVersionMask, SegmentState::kLive, 5, 5}.pack();
  const SegmentHead next = SegmentHead::unpack(next_head(last, SegmentState::kLive, 5, 5));
  EXPECT_EQ(next.version, 0u);
  EXPECT_EQ(next.count, 5u);
  EXPECT_EQ(next.state, SegmentState::kLive);
}

TEST(AuxWordTest, SlotZeroIsPresentAndTheZeroWordIsNot) {
  EXPECT_FALSE(AuxWord::present(0));
  const std::uint64_t word = AuxWord::with_slot(0, 0);
  EXPECT_TRUE(AuxWord::present(word));
  EXPECT_EQ(AuxWord::slot(word), 0u);
}

TEST(AuxWordTest, AbsentAfterIsANewerVersionWithoutASlot) {
  const std::uint64_t word = AuxWord::with_slot(std::uint64_t{9} << 32, 123);
  const std::uint64_t gone = AuxWord::absent_after(word);
  EXPECT_FALSE(AuxWord::present(gone));
  EXPECT_EQ(gone >> 32, 10u);
  EXPECT_NE(AuxWord::with_slot(gone, 123), word) << "the same slot again is another word";
}

TEST(AuxWordTest, ALeavingSlotIsHiddenAndComesBackAsANewerWord) {
  const std::uint64_t word = AuxWord::with_slot(std::uint64_t{0xffffffff} << 32, kMaxPoolSlots - 1);
  const std::uint64_t leaving = AuxWord::leaving(word);
  EXPECT_FALSE(AuxWord::present(leaving));
  EXPECT_TRUE(AuxWord::owns(leaving));
  EXPECT_EQ(AuxWord::slot(leaving), kMaxPoolSlots - 1);
  const std::uint64_t back = AuxWord::back_after(leaving);
  EXPECT_TRUE(AuxWord::present(back));
  EXPECT_EQ(AuxWord::slot(back), kMaxPoolSlots - 1);
  EXPECT_NE(back, word) << "copies of the word are outdated";
  EXPECT_FALSE(AuxWord::owns(AuxWord::absent_after(leaving)));
}

TEST(PinWordTest, PacksAndUnpacksEveryField) {
  const PinWord pin = PinWord::unpack(PinWord{0xfffffff0u, 64, 7}.pack());
  EXPECT_EQ(pin.segment, 0xfffffff0u);
  EXPECT_EQ(pin.depth, 64u);
  EXPECT_EQ(pin.mask, 7u);
  EXPECT_NE((PinWord{1, 0, 0}.pack()), 0u) << "a pin of nothing is not an empty entry";
}

TEST(OwnerWordTest, EveryKindOfOwnerIsToldApart) {
  EXPECT_TRUE(owner_is_free(0));
  EXPECT_TRUE(owner_is_free(kOwnedBase - 1));
  for (const std::uint32_t special : {kOwnerTree, kOwnerServer, kOwnerQuarantine}) {
    EXPECT_FALSE(owner_is_free(special));
    EXPECT_FALSE(owner_is_client(special));
  }
  for (const ClientId client : {0u, 1u, 65536u}) {
    EXPECT_FALSE(owner_is_free(client_owner(client)));
    EXPECT_TRUE(owner_is_client(client_owner(client)));
    EXPECT_EQ(owner_client(client_owner(client)), client);
  }
}

TEST(MixHashTest, SpreadsConsecutiveHashesOverLowBits) {
  std::set<std::uint64_t> low;
  for (std::uint64_t i = 0; i < 4096; ++i) low.insert(mix_hash(i) & 4095);
  EXPECT_GT(low.size(), 2400u);  // about 63 % for a random function
  EXPECT_LT(low.size(), 2800u);
}

}  // namespace
}  // namespace radixshmem
