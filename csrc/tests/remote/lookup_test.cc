// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "remote/lookup.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/remote/cluster_rig.h"

namespace radixshmem {
namespace {

// Three nodes; the path and its deepest key are chosen by the test, node 0 asks.
class LookupTest : public testing::Test {
 protected:
  void start(std::size_t nodes) {
    cluster_ = std::make_unique<ClusterRig>(nodes);
    cluster_->connect_all(0);
  }
  ClusterRig& cluster() { return *cluster_; }
  // All shards at one rank.
  void keep_directory_at(Rank rank, Rank replica = kNoShardRank) {
    const std::vector<ShardRanks> map(kShards, ShardRanks{rank, replica});
    for (std::size_t i = 0; i < cluster_->size(); ++i) cluster_->node(i).table.set_shard_map(map);
  }
  // As if the directory had lost what `rank` says of these blocks.
  void lose(Rank rank, const Path& path, std::initializer_list<Position> keys) {
    const auto incarnation = ClusterRig::incarnation16(cluster_->node(rank));
    for (std::size_t i = 0; i < cluster_->size(); ++i) {
      for (const Position p : keys) cluster_->node(i).directory.retract(path[p], rank, incarnation);
    }
  }
  void change_info(Rank rank, const std::function<void(PeerInfo&)>& change) {
    PeerInfo info = cluster_->node(rank).info;
    change(info);
    ASSERT_TRUE(cluster_->node(0).table.set(info));
  }

 private:
  std::unique_ptr<ClusterRig> cluster_;
};

std::set<Rank> ranks_of(const RemoteHit& hit) {
  std::set<Rank> ranks;
  for (const RemoteFragment& fragment : hit.full) ranks.insert(fragment.rank);
  return ranks;
}

TEST_F(LookupTest, TheLocalPartIsNotReadFromOthers) {
  start(2);
  const Path path = make_path(1, 300);
  cluster().put(0, first_of(path, 100));
  cluster().put(1, path);
  cluster().publish_all();
  const RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 300u);
  ASSERT_EQ(hit.full.size(), 1u);
  EXPECT_EQ(hit.full[0].offset, 100u);
  EXPECT_EQ(hit.full[0].slots.size(), 200u);
  // Keys 112 to 288, ranges 1 to 4, and range 0: the first block wanted might be in a parent there.
  EXPECT_EQ(hit.figures.reads, 2u * 12 + 5);
}

TEST_F(LookupTest, APathMayBranchOffInsideTheLocalHit) {
  start(2);
  const Path path = make_path(2, 120);
  cluster().put(0, first_of(path, 90));
  cluster().put(1, branch_of(path, 70, 3, 10));
  cluster().put(1, path);
  cluster().publish_all();
  EXPECT_EQ(cluster().find(0, path).common_hit, 120u);
}

TEST_F(LookupTest, NothingIsAskedWhenAllIsHere) {
  start(2);
  const Path path = make_path(4, 64);
  cluster().put(0, path);
  cluster().put(1, path);
  cluster().publish_all();
  const RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 64u);
  EXPECT_EQ(hit.figures.rounds, 0u);
  EXPECT_EQ(cluster().find(0, Path{}).common_hit, 0u);
}

TEST_F(LookupTest, OneNodeReadsItsOwnDirectory) {
  start(2);
  keep_directory_at(0);
  const Path path = make_path(5, 100);
  cluster().put(1, path);
  cluster().publish_all();
  const RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 100u);
  EXPECT_EQ(hit.figures.rounds, 2u);
}

TEST_F(LookupTest, TheLongerOfTwoHoldersOfTheDeepestKeyWins) {
  start(3);
  const Path path = make_path(6, 175);
  cluster().put(1, first_of(path, 170));
  cluster().put(2, path);
  cluster().publish_all();
  for (int turn = 0; turn < 4; ++turn) {
    const RemoteHit hit = cluster().find(0, path);
    EXPECT_EQ(hit.common_hit, 175u);
    EXPECT_EQ(hit.figures.rounds, 2u);
  }
}

TEST_F(LookupTest, EqualHoldersTakeTurns) {
  start(3);
  const Path path = make_path(7, 128);
  cluster().put(1, path);
  cluster().put(2, path);
  cluster().publish_all();
  std::set<Rank> ranks;
  for (int turn = 0; turn < 4; ++turn) ranks.merge(ranks_of(cluster().find(0, path)));
  EXPECT_EQ(ranks, (std::set<Rank>{1, 2}));
}

TEST_F(LookupTest, EarlierKeysMayBeServedByOthers) {
  start(3);
  const Path path = make_path(8, 256);
  cluster().put(1, path);
  cluster().put(2, first_of(path, 192));
  cluster().publish_all();
  // As in a cluster with many holders of the first keys: node 1 is named for the last two only.
  for (Position p = 0; p < 224; p += 16) lose(1, path, {p});
  const RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 256u);
  EXPECT_EQ(hit.figures.rounds, 2u);
  EXPECT_EQ(ranks_of(hit), (std::set<Rank>{1, 2}));
}

TEST_F(LookupTest, LostKeysAreFoundInTheTreeOfTheHolder) {
  start(2);
  const Path path = make_path(9, 256);
  for (std::size_t k = 0; k < 4; ++k) cluster().put(1, branch_of(path, k * 64 + 20, 100 + k, 10));
  cluster().put(1, path);
  cluster().publish_all();
  lose(1, path, {64, 80, 96, 112});
  const RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 256u);
  EXPECT_LE(hit.figures.rounds, 4u);
  EXPECT_LE(hit.figures.reads, 2u * 16 + 130 + 8);
}

TEST_F(LookupTest, AHoleMayBeginInASegmentThatOthersCover) {
  start(3);
  const Path path = make_path(20, 256);
  for (const std::size_t cut : {75u, 90u, 100u}) cluster().put(1, branch_of(path, cut, cut, 10));
  cluster().put(1, path);
  cluster().put(2, first_of(path, 84));
  cluster().publish_all();
  lose(1, path, {64, 80, 96, 112});
  // Of node 1: [100, 128), then its parent [90, 100), then [75, 90) although [75, 84) is there.
  EXPECT_EQ(cluster().find(0, path).common_hit, 256u);
}

TEST_F(LookupTest, ManyRangesOfAHoleAreNotAllLookedAt) {
  start(2);
  const Path path = make_path(21, 960);
  cluster().put(1, path);
  cluster().publish_all();
  for (Position p = 64; p < 944; p += 16) lose(1, path, {p});
  const RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 64u * 9);
  EXPECT_LE(hit.figures.reads, 2u * 60 + 8 * 130 + 12);
}

TEST_F(LookupTest, WhatTheDirectorySaysOfTheOwnNodeIsNotAsked) {
  start(2);
  const Path path = make_path(22, 300);
  cluster().put(0, path);
  cluster().publish_all();
  EXPECT_EQ(cluster().node(0).rig.tree().evict(200), 200u);
  const RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 100u);
  EXPECT_EQ(hit.figures.rounds, 1u);
  EXPECT_EQ(hit.figures.stale_entries, 0u);
}

TEST_F(LookupTest, AConnectionToAnEarlierLifeIsNotUsed) {
  start(2);
  keep_directory_at(0);
  const Path path = make_path(23, 64);
  cluster().put(1, path);
  cluster().node(1).info.incarnation += 1;
  cluster().node(0).directory.admit(1, ClusterRig::incarnation16(cluster().node(1)));
  cluster().publish_all();
  const RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 0u);
  EXPECT_EQ(hit.figures.skipped_peers, 1u);
  EXPECT_EQ(hit.figures.stale_entries, 0u);
}

TEST_F(LookupTest, APeerWhoseAreasCannotBeIsNotRead) {
  start(2);
  const Path path = make_path(24, 64);
  cluster().put(1, path);
  cluster().publish_all();
  const std::function<void(PeerInfo&)> changes[] = {
      [](PeerInfo& i) { i.directory_offset = i.peer_readable_bytes; },
      [](PeerInfo& i) { i.directory_offset = ~std::uint64_t{0}; },
      [](PeerInfo& i) { i.directory_lines = 0xffff'ffff; },
      [](PeerInfo& i) { i.arena_offset += i.peer_readable_bytes; },
      [](PeerInfo& i) { i.arena_units = 0xffff'ffff; },
      [](PeerInfo& i) { i.side_blocks = i.side_bytes = 0xffff'ffff; },
      [](PeerInfo& i) { i.table_offset = i.peer_readable_bytes; },
      [](PeerInfo& i) { i.table_lines *= 1 << 20; },
      [](PeerInfo& i) { i.table_lines = 3; },
      [](PeerInfo& i) { i.table_lines = 0; },
      [](PeerInfo& i) { i.peer_readable_bytes = 4096; },
  };
  for (const auto& change : changes) {
    change_info(1, change);
    const RemoteHit hit = cluster().find(0, path);
    EXPECT_EQ(hit.common_hit, 0u);
    EXPECT_EQ(hit.figures.skipped_peers, 1u);
    EXPECT_EQ(hit.figures.failures, 0u);
  }
}

TEST_F(LookupTest, AnEntryOfAnotherLifeIsNotFollowed) {
  start(2);
  keep_directory_at(0);
  const Path path = make_path(10, 64);
  cluster().put(1, path);
  cluster().publish_all();
  change_info(1, [](PeerInfo& info) { info.incarnation += 1; });
  const RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 0u);
  EXPECT_EQ(hit.figures.rounds, 1u);
  EXPECT_EQ(hit.figures.stale_entries, 4u);
}

TEST_F(LookupTest, PeersOfAnotherGeometryAreNotRead) {
  start(2);
  const Path path = make_path(11, 64);
  cluster().put(1, path);
  cluster().publish_all();
  change_info(1, [](PeerInfo& info) { info.state = PeerState::kOther; });
  EXPECT_EQ(cluster().find(0, path).common_hit, 0u);
}

TEST_F(LookupTest, AWarmingDirectoryIsNotReadAndItsReplicaIs) {
  start(3);
  keep_directory_at(1, 2);
  const Path path = make_path(12, 64);
  cluster().put(2, path);
  cluster().publish_all();
  cluster().node(1).directory.clear(ClusterRig::kDigest);
  EXPECT_EQ(cluster().find(0, path).common_hit, 0u);
  change_info(1, [](PeerInfo& info) { info.warming = true; });
  EXPECT_EQ(cluster().find(0, path).common_hit, 64u);
  cluster().node(0).peers.drop(1);  // also when it cannot be reached
  const RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 64u);
  EXPECT_EQ(hit.figures.skipped_peers, 1u);
}

TEST_F(LookupTest, APeerThatIsNotConnectedCostsItsPartOnly) {
  start(4);
  const Path path = make_path(13, 512);
  cluster().put(1, path);
  cluster().publish_all();
  cluster().node(0).peers.drop(2);
  RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 512u);  // the other keys name all segments
  EXPECT_EQ(hit.figures.skipped_peers, 1u);
  cluster().node(0).peers.drop(1);
  hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 0u);
  EXPECT_EQ(hit.figures.skipped_peers, 2u);
}

TEST_F(LookupTest, WhoWasLackedIsTold) {
  start(3);
  const Path path = make_path(26, 512);
  cluster().put(1, path);
  cluster().publish_all();
  PeerSet& peers = cluster().node(0).peers;
  EXPECT_TRUE(peers.wanted().empty());
  peers.drop(2);
  (void)cluster().find(0, path);
  EXPECT_EQ(peers.wanted(), std::vector<Rank>{2});
  EXPECT_TRUE(peers.wanted().empty()) << "once";
  change_info(2, [](PeerInfo& info) { info.state = PeerState::kGone; });
  (void)cluster().find(0, path);
  EXPECT_TRUE(peers.wanted().empty()) << "it is not live";
}

TEST_F(LookupTest, ASegmentThatMovedIsFoundThroughTheTable) {
  start(2);
  const Path path = make_path(14, 40);
  cluster().put(1, path);
  cluster().publish_all();
  TreeRig& rig = cluster().node(1).rig;
  EXPECT_EQ(rig.tree().evict(40), 40u);
  cluster().put(1, make_path(15, 40));  // takes its place
  cluster().put(1, path);
  const RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 40u);
  EXPECT_EQ(hit.figures.stale_entries, 1u);
  EXPECT_EQ(hit.figures.rounds, 4u);
}

TEST_F(LookupTest, TheNextHolderIsTriedOnceWhenTheDeepestHasLessThanItClaims) {
  start(3);
  const Path path = make_path(16, 512);
  cluster().put(1, path);
  cluster().put(2, first_of(path, 400));
  cluster().publish_all();
  EXPECT_EQ(cluster().node(1).rig.tree().evict(512), 512u);
  const RemoteHit hit = cluster().find(0, path);
  EXPECT_EQ(hit.common_hit, 400u);
  EXPECT_EQ(hit.figures.retries, 1u);
  EXPECT_GE(hit.figures.retry_rounds, 1u);
  EXPECT_EQ(hit.figures.rounds, 2u);  // all is gone there: nothing is looked for
  EXPECT_LE(hit.figures.reads, 2u * 32 + 2 * 9 + 8);
}

TEST_F(LookupTest, CandidatesOfAPullAreDeepestFirst) {
  start(4);
  const Path path = make_path(17, 100);
  cluster().put(1, first_of(path, 20));
  cluster().put(2, path);
  cluster().put(3, first_of(path, 60));
  cluster().publish_all();
  LookupRequest request = cluster().request(path);
  request.directory_only = true;
  const RemoteHit hit = lookup(cluster().node(0).peers, request);
  EXPECT_EQ(hit.common_hit, 0u);
  EXPECT_EQ(hit.figures.rounds, 1u);
  ASSERT_EQ(hit.candidates.size(), 3u);
  EXPECT_EQ(hit.candidates[0].rank, 2);
  EXPECT_EQ(hit.candidates[0].blocks, 97u);
  EXPECT_EQ(hit.candidates[1].rank, 3);
  EXPECT_EQ(hit.candidates[1].blocks, 49u);
  EXPECT_EQ(hit.candidates[2].rank, 1);
  EXPECT_EQ(hit.candidates[2].blocks, 17u);
  EXPECT_EQ(cluster().find(0, path).candidates.size(), 3u);
}

TEST_F(LookupTest, CandidatesOfALongPathTakeTwoRounds) {
  start(2);
  const Path path = make_path(18, 3000);
  cluster().put(1, first_of(path, 1777));
  cluster().publish_all();
  LookupRequest request = cluster().request(path);
  request.directory_only = true;
  const RemoteHit hit = lookup(cluster().node(0).peers, request);
  EXPECT_EQ(hit.figures.rounds, 2u);
  ASSERT_EQ(hit.candidates.size(), 1u);
  EXPECT_EQ(hit.candidates[0].blocks, 1777u);
  EXPECT_EQ(hit.figures.reads, 2u * (63 + 2));
}

TEST_F(LookupTest, WithoutAClusterNothingIsFound) {
  start(2);
  cluster().node(0).table.init();
  const RemoteHit hit = cluster().find(0, make_path(19, 100));
  EXPECT_EQ(hit.common_hit, 0u);
  EXPECT_EQ(hit.figures.rounds, 0u);
}

}  // namespace
}  // namespace radixshmem
