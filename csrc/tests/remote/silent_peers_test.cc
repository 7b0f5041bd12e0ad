// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Peers that do not answer, break, or are stopped: what a lookup and the PeerSet make of them.
#include <gtest/gtest.h>

#include <future>

#include "remote/lookup_turn.h"
#include "tests/remote/cluster_rig.h"
#include "tests/transport/fake_reader.h"

namespace radixshmem {
namespace {

using std::chrono::milliseconds;

Deadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(20);
}

// Node 0 asks for a path of 512 blocks that node 1 has; node 2 keeps a third of the directory.
class SilentPeersTest : public testing::Test {
 protected:
  SilentPeersTest() : cluster_(3), path_(make_path(1, 512)) {
    cluster_.put(1, path_);
    cluster_.publish_all();
    cluster_.connect_all(0);
  }
  // Puts a faulty reader in the place of node 0's reader of `rank`.
  void adopt(PeerSet& peers, Rank rank, const std::function<void(Faults&)>& change) {
    auto inner = std::make_unique<MemoryReader>(cluster_.node(rank).readable());
    auto reader = std::make_unique<FakeReader>(std::move(inner), Faults{}, rank);
    faults_ = &reader->faults;
    const auto incarnation = cluster_.node(rank).info.incarnation;
    const auto adopted = peers.adopt(rank, incarnation, std::move(reader), soon());
    ASSERT_TRUE(adopted) << adopted.error().message;
    change(*faults_);
  }
  RemoteHit find(PeerSet& peers, milliseconds timeout = milliseconds(50)) {
    LookupRequest request = cluster_.request(path_);
    request.timeout = timeout;
    RemoteHit hit = lookup(peers, request);
    cluster_.check(path_, 0, kMaskFull, hit);
    return hit;
  }
  PeerSet& peers() { return cluster_.node(0).peers; }
  PeerTable& table() { return cluster_.node(0).table; }

  ClusterRig cluster_;
  Path path_;
  Faults* faults_ = nullptr;
};

TEST_F(SilentPeersTest, ASilentDirectoryCostsOneTimeoutOnce) {
  adopt(peers(), 2, [](Faults& faults) { faults.drop = true; });
  RemoteHit hit = find(peers());
  EXPECT_EQ(hit.common_hit, 512u);  // the keys at other nodes name all segments
  EXPECT_EQ(hit.figures.timeouts, 1u);
  EXPECT_NE(table().suspect_until(2), 0u);
  hit = find(peers());
  EXPECT_EQ(hit.common_hit, 512u);
  EXPECT_EQ(hit.figures.timeouts, 0u);
  EXPECT_EQ(hit.figures.skipped_peers, 1u);
}

TEST_F(SilentPeersTest, ASilentHolderCostsOneTimeoutOnceAndIsReplaced) {
  cluster_.put(2, first_of(path_, 300));
  cluster_.publish_all();
  // Its part of the directory answers, its tree does not.
  adopt(peers(), 1, [](Faults&) {});
  const RemoteHit first = find(peers(), std::chrono::seconds(20));
  EXPECT_EQ(first.common_hit, 512u);
  faults_->drop = true;
  RemoteHit hit = find(peers());
  EXPECT_EQ(hit.figures.timeouts, 1u);
  hit = find(peers());
  EXPECT_EQ(hit.figures.timeouts, 0u);
  EXPECT_EQ(hit.common_hit, 300u);
}

TEST_F(SilentPeersTest, OthersOfTheNodeDoNotWaitForItAgain) {
  PeerSet other(table(), /*may_mark=*/true);
  for (Rank r = 0; r < 3; ++r) adopt(other, r, [](Faults&) {});
  adopt(other, 2, [](Faults& faults) { faults.drop = true; });
  adopt(peers(), 2, [](Faults& faults) { faults.drop = true; });
  EXPECT_EQ(find(peers()).figures.timeouts, 1u);
  const RemoteHit hit = find(other);
  EXPECT_EQ(hit.figures.timeouts, 0u);
  EXPECT_EQ(hit.figures.skipped_peers, 1u);
  const auto connections = other.connections();
  ASSERT_EQ(connections.size(), 3u);
  EXPECT_TRUE(connections[2].suspect);
  EXPECT_FALSE(connections[1].suspect);
}

TEST_F(SilentPeersTest, ItIsReadAgainOnceItHasAnsweredTheBackground) {
  adopt(peers(), 2, [](Faults& faults) { faults.drop = true; });
  EXPECT_EQ(find(peers()).figures.timeouts, 1u);
  auto reader = peers().take(2);
  ASSERT_NE(reader, nullptr);  // it only was too slow: not broken
  faults_->drop = false;
  ASSERT_TRUE(peers().adopt(2, cluster_.node(2).info.incarnation, std::move(reader), soon()));
  const RemoteHit hit = find(peers());
  EXPECT_EQ(hit.figures.skipped_peers, 0u);
  EXPECT_EQ(hit.figures.timeouts, 0u);
}

TEST_F(SilentPeersTest, ABrokenReaderIsDroppedAndTheRestIsFound) {
  adopt(peers(), 2, [](Faults& faults) { faults.dead = true; });
  const RemoteHit hit = find(peers());
  EXPECT_EQ(hit.common_hit, 512u);
  EXPECT_EQ(hit.figures.failures, 1u);
  EXPECT_EQ(hit.figures.timeouts, 0u);
  EXPECT_EQ(table().suspect_until(2), 0u);  // it cost nobody any time
  EXPECT_EQ(peers().connections().size(), 2u);
}

TEST_F(SilentPeersTest, WhoMayNotWriteTheTableDropsTheReader) {
  PeerSet readers(table(), /*may_mark=*/false);
  for (Rank r = 0; r < 2; ++r) adopt(readers, r, [](Faults&) {});
  adopt(readers, 2, [](Faults& faults) { faults.drop = true; });
  EXPECT_EQ(find(readers).figures.timeouts, 1u);
  EXPECT_EQ(table().suspect_until(2), 0u);
  EXPECT_EQ(readers.connections().size(), 2u);
}

TEST_F(SilentPeersTest, ALookupEndsWhenNobodyAnswers) {
  for (Rank r = 0; r < 3; ++r) {
    adopt(peers(), r, [](Faults& faults) { faults.drop = true; });
  }
  const RemoteHit hit = find(peers(), milliseconds(20));
  EXPECT_EQ(hit.common_hit, 0u);
  EXPECT_EQ(hit.figures.timeouts, 3u);
}

TEST_F(SilentPeersTest, WhoDoesNotGetItsTurnFindsNothing) {
  LookupFigures figures;
  const LookupTurn turn(peers(), milliseconds(20), figures);
  ASSERT_TRUE(turn.granted());
  auto other = std::async(std::launch::async, [&] { return find(peers(), milliseconds(20)); });
  const RemoteHit hit = other.get();
  EXPECT_EQ(hit.common_hit, 0u);
  EXPECT_EQ(hit.figures.rounds, 0u);
}

class AdoptTest : public SilentPeersTest {
 protected:
  ErrorCode adopt_code(std::uint64_t incarnation) {
    auto reader = std::make_unique<MemoryReader>(cluster_.node(2).readable());
    const auto adopted = peers().adopt(2, incarnation, std::move(reader), soon());
    return adopted ? ErrorCode::OK : adopted.error().code;
  }
  RegionHeader& header() { return cluster_.node(2).rig.tree().header(); }
};

TEST_F(AdoptTest, ReadersOfAnotherLifeAreRefused) {
  const auto incarnation = cluster_.node(2).info.incarnation;
  EXPECT_EQ(adopt_code(incarnation), ErrorCode::OK);
  EXPECT_EQ(adopt_code(incarnation + 1), ErrorCode::MISMATCH);
}

TEST_F(AdoptTest, ReadersOfSomethingElseAreRefused) {
  const auto incarnation = cluster_.node(2).info.incarnation;
  header().layout_version += 1;
  EXPECT_EQ(adopt_code(incarnation), ErrorCode::MISMATCH);
  header().layout_version -= 1;
  header().magic.store(1);
  EXPECT_EQ(adopt_code(incarnation), ErrorCode::MISMATCH);
}

TEST_F(AdoptTest, ReadersOfAClosedRegionAreRefused) {
  set_region_state(cluster_.node(2).base(), RegionState::kClosed);
  EXPECT_EQ(adopt_code(cluster_.node(2).info.incarnation), ErrorCode::NOT_READY);
}

TEST_F(AdoptTest, ReadersThatDoNotAnswerAreRefused) {
  for (const bool dead : {false, true}) {
    Faults faults;
    faults.drop = !dead;
    faults.dead = dead;
    auto inner = std::make_unique<MemoryReader>(cluster_.node(2).readable());
    const auto adopted = peers().adopt(2, cluster_.node(2).info.incarnation,
                                       std::make_unique<FakeReader>(std::move(inner), faults, 1),
                                       std::chrono::steady_clock::now() + milliseconds(20));
    ASSERT_FALSE(adopted);
    EXPECT_EQ(adopted.error().code, dead ? ErrorCode::SYSTEM : ErrorCode::TIMEOUT);
    EXPECT_EQ(peers().connections().size(), 3u);  // the one that was there stays
  }
}

TEST_F(AdoptTest, ARankWithoutARecordIsRefused) {
  auto reader = std::make_unique<MemoryReader>(cluster_.node(2).readable());
  const auto adopted = peers().adopt(kMaxPeers, 1, std::move(reader), soon());
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error().code, ErrorCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace radixshmem
