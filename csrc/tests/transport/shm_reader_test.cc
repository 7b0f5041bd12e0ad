// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/shm_reader.h"

#include "tests/transport/peer_rig.h"

namespace radixshmem {
namespace {

using Progress = PeerReader::Progress;

class ShmReaderTest : public ::testing::Test {
 protected:
  // Returns: why open() refuses `peer`; "" when it does not.
  [[nodiscard]] static std::string refusal(const ShmPeer& peer, ErrorCode code) {
    const auto reader = ShmReader::open(peer);
    if (reader.ok()) return "";
    EXPECT_EQ(reader.error().code, code) << reader.error().message;
    return reader.error().message;
  }
  // Returns: how a read of the pattern ends.
  [[nodiscard]] static Progress read_some(PeerReader& reader, PeerRegion region) {
    Reads reads;
    reads.add(region, PeerMemory::kPatternFrom, 200);
    const Progress progress = read_all(reader, reads.ops());
    EXPECT_TRUE(progress != Progress::kDone || reads.wrong() == 0);
    return progress;
  }

  PeerMemory memory_;
  RegionHeader& header_ = *reinterpret_cast<RegionHeader*>(memory_.index());
};

TEST_F(ShmReaderTest, opens_only_the_regions_of_the_very_peer) {
  EXPECT_EQ(refusal(memory_.shm_peer(), ErrorCode::OK), "");
  ShmPeer other = memory_.shm_peer();
  other.incarnation = 77;
  EXPECT_NE(refusal(other, ErrorCode::NOT_READY)
                .find("incarnation 1311768467463790320, the peer's has 77"),
            std::string::npos);
  other = memory_.shm_peer();
  other.nonce = 5;
  EXPECT_NE(refusal(other, ErrorCode::NOT_READY).find("nonce 99, the peer's has 5"),
            std::string::npos);
  other = memory_.shm_peer();
  other.index_name = unique_name("nobody");
  EXPECT_NE(refusal(other, ErrorCode::NOT_READY).find(other.index_name), std::string::npos);
  other = memory_.shm_peer();
  other.data_name = unique_name("nobody");
  EXPECT_NE(refusal(other, ErrorCode::NOT_READY).find(other.data_name), std::string::npos);
}

TEST_F(ShmReaderTest, reads_the_index_alone_when_no_slots_are_named) {
  ShmPeer peer = memory_.shm_peer();
  peer.data_name.clear();
  const auto reader = ShmReader::open(peer);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(read_some(*reader.value(), PeerRegion::kIndex), Progress::kDone);
  EXPECT_EQ(read_some(*reader.value(), PeerRegion::kSlots), Progress::kFailed);
}

TEST_F(ShmReaderTest, fails_when_the_life_of_the_region_is_over) {
  for (const RegionState state : {RegionState::kClosed, RegionState::kSuperseded}) {
    const auto reader = ShmReader::open(memory_.shm_peer());
    ASSERT_TRUE(reader.ok());
    EXPECT_EQ(read_some(*reader.value(), PeerRegion::kIndex), Progress::kDone);
    set_region_state(memory_.index(), state);
    EXPECT_EQ(read_some(*reader.value(), PeerRegion::kSlots), Progress::kFailed);
    set_region_state(memory_.index(), RegionState::kReady);
    EXPECT_EQ(read_some(*reader.value(), PeerRegion::kIndex), Progress::kFailed) << "for good";
  }
}

TEST_F(ShmReaderTest, fails_when_another_server_has_adopted_the_region) {
  const auto reader = ShmReader::open(memory_.shm_peer());
  ASSERT_TRUE(reader.ok());
  header_.incarnation.store(8, std::memory_order_release);
  EXPECT_EQ(read_some(*reader.value(), PeerRegion::kIndex), Progress::kFailed);
  EXPECT_TRUE(reader.value()->broken());
}

TEST_F(ShmReaderTest, goes_on_reading_when_the_file_is_deleted) {
  const auto reader = ShmReader::open(memory_.shm_peer());
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(SharedRegion::unlink(memory_.shm_peer().index_name).value());
  EXPECT_EQ(read_some(*reader.value(), PeerRegion::kIndex), Progress::kDone);
}

}  // namespace
}  // namespace radixshmem
