// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tests/transport/fake_reader.h"

#include <algorithm>
#include <array>

#include "tests/transport/peer_rig.h"

namespace radixshmem {
namespace {

using Progress = PeerReader::Progress;

class FakeReaderTest : public ::testing::Test {
 protected:
  [[nodiscard]] FakeReader make(const Faults& faults) {
    return {ShmReader::open(memory_.shm_peer()).value(), faults, 3};
  }

  PeerMemory memory_;
  std::array<std::byte, 64 * 64> to_{};
  ReadOp op_{PeerRegion::kIndex, PeerMemory::kPatternFrom + 32, sizeof to_, to_.data()};
};

TEST_F(FakeReaderTest, without_faults_reads_as_the_other_does) {
  FakeReader reader = make({});
  Reads reads;
  reads.add(PeerRegion::kIndex, PeerMemory::kPatternFrom, 64);
  reads.add(PeerRegion::kSlots, 5, 64);
  EXPECT_EQ(read_all(reader, reads.ops()), Progress::kDone);
  EXPECT_EQ(reads.wrong(), 0U);
}

TEST_F(FakeReaderTest, delays) {
  Faults faults;
  faults.delay = std::chrono::hours(1);
  FakeReader reader = make(faults);
  ASSERT_TRUE(reader.post({&op_, 1}));
  EXPECT_EQ(reader.poll(), Progress::kPending);
  reader.abandon();
  reader.faults.delay = std::chrono::microseconds(1);
  EXPECT_EQ(read_all(reader, {&op_, 1}), Progress::kDone);
}

// Two reads of the same byte into the same place: the later one wins.
TEST_F(FakeReaderTest, reorders) {
  Faults faults;
  faults.reorder = true;
  FakeReader reader = make(faults);
  const std::array ops{ReadOp{PeerRegion::kIndex, PeerMemory::kPatternFrom, 1, to_.data()},
                       ReadOp{PeerRegion::kIndex, PeerMemory::kPatternFrom + 1, 1, to_.data()}};
  std::array<int, 2> seen{};
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(read_all(reader, ops), Progress::kDone);
    const bool second = to_[0] == PeerMemory::byte_at(PeerRegion::kIndex, ops[1].offset);
    ++seen[second ? 1 : 0];
  }
  EXPECT_GT(seen[0], 10);
  EXPECT_GT(seen[1], 10);
}

TEST_F(FakeReaderTest, mixes_two_times_line_by_line) {
  std::byte* const target = memory_.index() + op_.offset;
  std::fill_n(target, op_.length, std::byte{1});
  Faults faults;
  faults.tear = true;
  faults.meanwhile = [&] { std::fill_n(target, op_.length, std::byte{2}); };
  FakeReader reader = make(faults);
  ASSERT_EQ(read_all(reader, {&op_, 1}), Progress::kDone);
  EXPECT_GT(std::count(to_.begin(), to_.end(), std::byte{1}), 10 * 64);
  EXPECT_GT(std::count(to_.begin(), to_.end(), std::byte{2}), 10 * 64);
  for (std::size_t at = 32; at + 64 <= to_.size(); at += 64) {  // lines of the region
    EXPECT_EQ(std::count(to_.begin() + static_cast<std::ptrdiff_t>(at),
                         to_.begin() + static_cast<std::ptrdiff_t>(at) + 64, to_[at]),
              64);
  }
}

TEST_F(FakeReaderTest, drops_a_batch_for_good) {
  Faults faults;
  faults.drop = true;
  FakeReader reader = make(faults);
  ASSERT_TRUE(reader.post({&op_, 1}));
  reader.faults.drop = false;
  PeerReader* const one = &reader;
  EXPECT_FALSE(
      wait_all({&one, 1}, std::chrono::steady_clock::now() + std::chrono::milliseconds(5)));
  reader.abandon();
  EXPECT_EQ(read_all(reader, {&op_, 1}), Progress::kDone);
}

TEST_F(FakeReaderTest, dies) {
  FakeReader reader = make({});
  ASSERT_TRUE(reader.post({&op_, 1}));
  reader.faults.dead = true;
  EXPECT_EQ(reader.poll(), Progress::kFailed);
  reader.faults.dead = false;
  EXPECT_TRUE(reader.broken());
  EXPECT_FALSE(reader.post({&op_, 1}));
}

}  // namespace
}  // namespace radixshmem
