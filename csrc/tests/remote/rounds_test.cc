// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// How many dependent rounds, and how many reads, a lookup takes: the same on every transport.
#include <gtest/gtest.h>

#include "tests/remote/cluster_rig.h"
#include "tests/transport/peer_rig.h"
#include "tests/transport/fake_reader.h"

namespace radixshmem {
namespace {

constexpr std::size_t kNodes = 4;

struct Way {
  const char* name;
  // Gives each lookup the means to make readers.
  std::function<MakeReader(std::vector<std::unique_ptr<Responder>>&)> make;

  friend std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }
};

MakeReader direct(std::vector<std::unique_ptr<Responder>>&) {
  return {};
}

// Of the peer's region as it is when the reader is made.
MakeReader mapped(std::vector<std::unique_ptr<Responder>>&) {
  return [](Rank, const ClusterNode& node) {
    const std::string name = unique_name("peer");
    const std::uint64_t bytes = node.rig.view().layout.region_bytes;
    const SharedRegion region = SharedRegion::create(name, bytes).value();
    racing_copy(region.base(), node.base(), bytes);
    ShmPeer peer;
    peer.index_name = name;
    peer.incarnation = node.info.incarnation;
    auto reader = ShmReader::open(peer);
    (void)SharedRegion::unlink(name);
    RADIX_CHECK(reader.ok(), 0);
    return std::move(reader).value();
  };
}

MakeReader over_tcp(std::vector<std::unique_ptr<Responder>>& responders) {
  return [&responders](Rank, const ClusterNode& node) {
    auto responder = Responder::start({node.readable(), {}});
    RADIX_CHECK(responder.ok(), 0);
    responders.push_back(std::move(responder).value());
    SocketPair pair = SocketPair::make();
    RADIX_CHECK(responders.back()->add(release(pair.server)).ok(), 0);
    auto reader = TcpReader::make(release(pair.client));
    RADIX_CHECK(reader.ok(), 0);
    return std::move(reader).value();
  };
}

MakeReader late_and_reordered(std::vector<std::unique_ptr<Responder>>&) {
  return [](Rank rank, const ClusterNode& node) -> std::unique_ptr<PeerReader> {
    Faults faults;
    faults.delay = std::chrono::microseconds(50);
    faults.reorder = true;
    faults.tear = true;
    auto inner = std::make_unique<MemoryReader>(node.readable());
    return std::make_unique<FakeReader>(std::move(inner), faults, rank);
  };
}

class RoundsTest : public testing::TestWithParam<Way> {
 protected:
  RoundsTest() : cluster_(kNodes, cluster_plan(), GetParam().make(responders_)) {}
  ~RoundsTest() override {
    for (auto& responder : responders_) responder->stop();
  }

  // What node 0 finds of `path`, and of `path` with a tail that nobody has.
  void expect(const Path& path, Position depth, std::uint32_t least, std::uint32_t most) {
    cluster_.publish_all();
    cluster_.connect_all(0);
    for (const std::size_t tail : {0u, 30u}) {
      SCOPED_TRACE("tail of " + std::to_string(tail));
      const RemoteHit hit = cluster_.find(0, branch_of(path, path.size(), 999, tail));
      EXPECT_EQ(hit.common_hit, depth);
      EXPECT_GE(hit.figures.rounds, least);
      EXPECT_LE(hit.figures.rounds, most);
      EXPECT_EQ(hit.figures.retries, 0u);
      EXPECT_EQ(hit.figures.stale_entries, 0u);
      EXPECT_EQ(hit.figures.skipped_peers, 0u);
    }
  }

  std::vector<std::unique_ptr<Responder>> responders_;
  ClusterRig cluster_;
};

INSTANTIATE_TEST_SUITE_P(Ways, RoundsTest,
                         testing::Values(Way{"memory", direct}, Way{"shm", mapped},
                                         Way{"tcp", over_tcp}, Way{"fake", late_and_reordered}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(RoundsTest, WholePathTakesTwo) {
  const Path path = make_path(1, 512);
  cluster_.put(1, path);
  expect(path, 512, 2, 2);
}

TEST_P(RoundsTest, WholePathThatEndsInsideARangeTakesTwo) {
  const Path path = make_path(2, 500);
  cluster_.put(1, path);
  expect(path, 500, 2, 2);
}

TEST_P(RoundsTest, OneBlockAtATimeTakesTwo) {
  const Path path = make_path(3, 512);
  cluster_.put_slowly(2, path);
  expect(path, 512, 2, 2);
}

TEST_P(RoundsTest, ABranchInEachOfEightRangesTakesTwo) {
  const Path path = make_path(4, 512);
  for (std::size_t k = 0; k < 8; ++k) cluster_.put(1, branch_of(path, k * 64 + 20, 40 + k, 10));
  cluster_.put(1, path);
  expect(path, 512, 2, 2);
}

TEST_P(RoundsTest, OneBlockPathsTakeTwo) {
  for (std::uint64_t seed = 50; seed < 60; ++seed) cluster_.put(1, make_path(seed, 1));
  expect(make_path(55, 1), 1, 2, 2);
}

TEST_P(RoundsTest, ASystemPromptOnAllNodesAndThePathOnOneTakesTwo) {
  const Path path = make_path(6, 60);
  for (std::size_t r = 1; r < kNodes; ++r) cluster_.put(r, branch_of(path, 40, 60 + r, 20));
  cluster_.put(3, path);
  expect(path, 60, 2, 2);
}

TEST_P(RoundsTest, ALongSystemPromptOnAllNodesAndThePathOnOneTakesTwo) {
  const Path path = make_path(7, 200);
  for (std::size_t r = 1; r < kNodes; ++r) cluster_.put(r, first_of(path, 100));
  cluster_.put(3, path);
  expect(path, 200, 2, 2);
}

TEST_P(RoundsTest, TenBranchesNestedInOneRangeTakeAtMostThree) {
  const Path path = make_path(8, 512);
  for (std::size_t k = 0; k < 10; ++k) cluster_.put(1, branch_of(path, 68 + 5 * k, 80 + k, 20));
  cluster_.put(1, path);
  expect(path, 512, 2, 3);
}

TEST_P(RoundsTest, NothingDeeperElsewhereTakesOne) {
  const Path path = make_path(9, 300);
  for (std::size_t r = 0; r < kNodes; ++r) cluster_.put(r, first_of(path, 200));
  expect(path, 200, 1, 1);
}

TEST_P(RoundsTest, NothingAnywhereTakesOne) {
  expect(make_path(10, 300), 0, 1, 1);
}

TEST_P(RoundsTest, ATailBehindTheLastKeyTakesFour) {
  const Path path = make_path(11, 140);
  cluster_.put(1, first_of(path, 130));
  cluster_.put(1, branch_of(path, 130, 12, 5));
  cluster_.put(1, path);
  expect(path, 140, 4, 4);
}

TEST_P(RoundsTest, MoreThanSixtyFourKeysTakeOneMore) {
  const Path path = make_path(13, 2000);
  cluster_.put(1, path);
  expect(path, 2000, 3, 3);
  EXPECT_EQ(cluster_.find(0, make_path(14, 2000)).figures.rounds, 1u);
}

TEST_P(RoundsTest, ReadsAreBounded) {
  const Path path = make_path(15, 512);
  cluster_.put(1, path);
  cluster_.publish_all();
  cluster_.connect_all(0);
  const LookupFigures whole = cluster_.find(0, path).figures;
  EXPECT_EQ(whole.reads, 2u * 32 + 8);  // keys, segments
  EXPECT_EQ(whole.bytes, 64u * 2 * 32 + 960 * 8);
  EXPECT_LT(whole.most_reads_to_one_peer, whole.reads);

  const Path nested = make_path(16, 512);
  for (std::size_t k = 0; k < 10; ++k) cluster_.put(2, branch_of(nested, 68 + 5 * k, 90 + k, 20));
  cluster_.put(2, nested);
  cluster_.publish_all();
  cluster_.connect_all(0);
  EXPECT_LE(cluster_.find(0, nested).figures.reads, 2u * 32 + 130 + 8 + 10);
}

}  // namespace
}  // namespace radixshmem
