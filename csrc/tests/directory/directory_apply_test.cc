// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/directory_wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>

#include "tests/directory/directory_rig.h"

namespace radixshmem {
namespace {

constexpr std::uint64_t kIncarnation = 0xabc0001;  // low bits: life 1
using Bytes = std::vector<std::byte>;

std::uint64_t word1_of(SegmentId segment) {
  DirectoryEntry entry;
  entry.segment = {segment, 3};
  return entry.word1();
}

class ApplyTest : public ::testing::Test {
 protected:
  ApplyTest() : directory_(64, 4) {}

  [[nodiscard]] static BatchHeader header(std::uint8_t flags = 0, std::uint8_t generation = 0) {
    BatchHeader h;
    h.flags = flags;
    h.generation = generation;
    h.rank = 2;
    h.incarnation = kIncarnation;
    h.digest = DirectoryRig::kDigest;
    return h;
  }
  Result<> apply(const Bytes& bytes) { return directory_->apply(bytes, 2, 1); }
  void send(const BatchHeader& h, const std::vector<PublishRecord>& publishes,
            const std::vector<BlockHash>& retracts = {}) {
    const auto done = apply(pack_batch(h, publishes, retracts));
    EXPECT_TRUE(done.ok()) << done.error().message;
  }
  [[nodiscard]] std::uint32_t aux(BlockHash key) {
    const Holders found = directory_.find(key);
    return found.count == 1 ? found.entry[0].aux : 99;
  }

  DirectoryRig directory_;
};

TEST_F(ApplyTest, KeysComeAndGo) {
  send(header(), {{11, word1_of(500), 0}, {12, word1_of(600), 2}});
  ASSERT_EQ(directory_.ranks(11), Ranks{2});
  EXPECT_EQ(directory_.find(11).entry[0].segment.id, 500u);
  EXPECT_EQ(directory_.find(11).entry[0].segment.size_class, 3u);
  EXPECT_EQ(aux(12), 2u);
  send(header(), {{13, word1_of(700), 0}}, {11, 99});
  EXPECT_EQ(directory_.ranks(11), Ranks{});
  EXPECT_EQ(directory_.ranks(13), Ranks{2});
  EXPECT_EQ(directory_->counters().batches, 2u);
}

TEST_F(ApplyTest, AuxBitsAddUpWithinAGenerationUnlessTheyAreCleared) {
  send(header(), {{11, word1_of(500), 1}});
  send(header(), {{11, word1_of(500), 2}});
  EXPECT_EQ(aux(11), 3u);
  send(header(), {{11, word1_of(500), 1 << kAuxClearShift}});
  EXPECT_EQ(aux(11), 2u);
  send(header(), {{11, word1_of(500), 1 << kAuxClearShift | 1}});
  EXPECT_EQ(aux(11), 3u) << "cleared first, then set";
  send(header(0, 1), {{11, word1_of(500), 0}});
  EXPECT_EQ(aux(11), 0u) << "another generation begins anew";
}

TEST_F(ApplyTest, AWaitingHolderKeepsItsAuxBitsToo) {
  for (std::uint16_t r = 4; r < 9; ++r) directory_->admit(r, 1);
  for (int round = 0; round < 2; ++round) {
    for (std::uint16_t r = 4; r < 9; ++r) {
      directory_->publish(11, {r, 1, round == 0 ? 2u : 1u, {500, 1}, {}, 7, 0});
    }
  }
  for (std::uint16_t r = 4; r < 8; ++r) {
    const Holders found = directory_.find(11);
    for (const DirectoryEntry& e : found.all()) EXPECT_EQ(e.aux, 3u);
    directory_->retract(11, *directory_.ranks(11).begin(), 1);
  }
}

TEST_F(ApplyTest, DropFirstForgetsWhatWasThereBefore) {
  send(header(), {{11, word1_of(500), 0}});
  directory_->publish(11, {3, 1, 0, {500, 1}, {}, 0, 0});
  send(header(kDropFirst), {{12, word1_of(600), 0}});
  EXPECT_EQ(directory_.ranks(11), Ranks{3});
  EXPECT_EQ(directory_.ranks(12), Ranks{2});
}

TEST_F(ApplyTest, SweepAfterForgetsWhatWasNotPublishedAgain) {
  send(header(0, 255), {{11, word1_of(500), 0}, {12, word1_of(600), 0}});
  directory_->publish(12, {3, 1, 0, {500, 1}, {}, 255, 0});
  send(header(0, 0), {{11, word1_of(500), 0}});
  EXPECT_EQ(directory_.ranks(12), (Ranks{2, 3}));
  send(header(kSweepAfter, 0), {{13, word1_of(700), 0}});
  EXPECT_EQ(directory_.ranks(11), Ranks{2});
  EXPECT_EQ(directory_.ranks(12), Ranks{3});
  EXPECT_EQ(directory_.ranks(13), Ranks{2});
  EXPECT_EQ(directory_->counters().swept, 1u);
}

TEST_F(ApplyTest, BatchesOfOthersAreRefusedAndCounted) {
  const auto refused = [&](BatchHeader h, ErrorCode code, const std::string& says) {
    const auto done = apply(pack_batch(h, std::vector<PublishRecord>{{11, word1_of(500), 0}}, {}));
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().code, code);
    EXPECT_NE(done.error().message.find(says), std::string::npos) << done.error().message;
  };
  BatchHeader h = header();
  h.rank = 3;
  refused(h, ErrorCode::INVALID_ARGUMENT, "rank 3");
  h = header();
  h.incarnation = 0xabc0002;
  refused(h, ErrorCode::INVALID_ARGUMENT, "incarnation 2");
  EXPECT_EQ(directory_->counters().malformed, 2u);
  h = header();
  h.digest = 98;
  refused(h, ErrorCode::MISMATCH, "digest is 98");
  EXPECT_EQ(directory_->counters().foreign, 1u);
  directory_->expel(2);
  refused(header(), ErrorCode::MISMATCH, "no member");
  EXPECT_EQ(directory_->counters().refused, 1u);
  EXPECT_EQ(directory_->entries(), 0u);
}

TEST_F(ApplyTest, EveryMalformedHeaderIsRefused) {
  const Bytes good = pack_batch(header(), std::vector<PublishRecord>{{11, word1_of(500), 0}},
                                std::vector<BlockHash>{12});
  ASSERT_TRUE(apply(good).ok());
  const auto with = [&](std::size_t at, std::uint32_t value) {
    Bytes bytes = good;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
  };
  EXPECT_FALSE(apply(with(0, 1)).ok()) << "magic";
  EXPECT_FALSE(apply(with(4, 2)).ok()) << "version";
  EXPECT_FALSE(apply(with(8, 2)).ok()) << "publishes";
  EXPECT_FALSE(apply(with(12, 0)).ok()) << "retracts";
  EXPECT_FALSE(apply(with(8, 0xffffffff)).ok()) << "publishes";
  EXPECT_FALSE(apply(with(12, 0xffffffff)).ok()) << "retracts";
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(apply({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)}).ok());
  }
  Bytes longer = good;
  longer.resize(good.size() + 1);
  EXPECT_FALSE(apply(longer).ok());
  longer.resize(kMaxBatchBytes + kPublishBytes);
  EXPECT_FALSE(apply(longer).ok());
}

TEST_F(ApplyTest, ABatchTakesItsMostKeysAndNoMore) {
  std::vector<PublishRecord> most(kMaxBatchKeys, {1, word1_of(1), 0});
  EXPECT_TRUE(apply(pack_batch(header(), most, {})).ok());
  Bytes more = pack_batch(header(), most, {});
  const std::uint32_t retracts = 1;
  std::memcpy(more.data() + 12, &retracts, sizeof retracts);
  more.resize(more.size() + kRetractBytes);
  EXPECT_FALSE(apply(more).ok());
}

TEST_F(ApplyTest, RandomBytesNeitherHarmNorLeaveEntriesOfOthers) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const Bytes good =
      pack_batch(header(), std::vector<PublishRecord>(20, {11, word1_of(500), 0}), {});
  for (int i = 0; i < 20'000; ++i) {
    Bytes bytes = good;
    bytes.resize(random() % 4 == 0 ? random() % 600 : good.size());
    for (std::uint64_t n = random() % 8; n > 0 && !bytes.empty(); --n) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    (void)apply(bytes);
  }
  for (std::uint32_t l = 0; l < directory_->lines(); ++l) {
    const DirectoryLine line = directory_->line(l);
    for (std::size_t e = 0; e < kEntriesPerLine; ++e) {
      if (line.words[2 * e] == 0) continue;
      const auto entry = DirectoryEntry::unpack(line.words[2 * e], line.words[2 * e + 1]);
      ASSERT_EQ(entry.rank, 2);
      ASSERT_EQ(entry.incarnation, 1);
      ASSERT_NE(entry.segment.id, 0u);
    }
  }
}

}  // namespace
}  // namespace radixshmem
