// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Random trees on four nodes: what a lookup finds against what the nodes have.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/remote/cluster_rig.h"

namespace radixshmem {
namespace {

constexpr std::size_t kOracleNodes = 4;
constexpr std::uint32_t kMaxRounds = 4;

class RandomCluster {
 public:
  RandomCluster(std::uint64_t seed, const IndexPlan& plan)
      : cluster(kOracleNodes, plan), random_(seed) {
    for (std::size_t i = 0; i < 6; ++i) {
      known_.push_back(make_path(seed * 100 + i, 1 + below(400)));
    }
  }

  [[nodiscard]] std::size_t below(std::size_t end) { return random_() % end; }
  // A part of a known path, mostly with a tail of its own.
  [[nodiscard]] Path some_path() {
    const Path& from = known_[below(known_.size())];
    const std::size_t keep = 1 + below(from.size());
    return branch_of(from, keep, random_(), below(4) == 0 ? 0 : 1 + below(80));
  }
  void grow(std::size_t i) {
    const Path path = some_path();
    const Position have = cluster.node(i).rig.hit(path);
    if (cluster.node(i).rig.free_slots() < path.size() - have) return;
    // Piece by piece, as engines do.
    for (std::size_t n = have; n < path.size();) {
      n = std::min(path.size(), n + 1 + below(below(2) == 0 ? 3 : 100));
      (void)cluster.node(i).rig.put(first_of(path, n));
    }
    cluster.node(i).paths.push_back(path);
    if (known_.size() < 60) known_.push_back(path);
  }
  void shrink(std::size_t i) {
    (void)cluster.node(i).rig.tree().evict(static_cast<std::uint32_t>(1 + below(60)));
  }
  void change(std::size_t steps) {
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t i = below(kOracleNodes);
      below(6) == 0 ? shrink(i) : grow(i);
    }
  }

  ClusterRig cluster;

 private:
  std::mt19937_64 random_;
  std::vector<Path> known_;
};

// What the remote nodes have of a path.
struct Truth {
  Position depth = 0;
  std::size_t at_deepest_key = 0;  // nodes that hold the deepest key
};

Truth truth_of(ClusterRig& cluster, std::size_t asker, const Path& path) {
  Truth truth;
  for (std::size_t i = 0; i < kOracleNodes; ++i) {
    if (i != asker) truth.depth = std::max(truth.depth, cluster.node(i).rig.hit(path));
  }
  if (truth.depth == 0) return truth;
  const Position key = (truth.depth - 1) / cluster.grid() * cluster.grid();
  for (std::size_t i = 0; i < kOracleNodes; ++i) {
    if (i != asker && cluster.node(i).rig.hit(path) > key) ++truth.at_deepest_key;
  }
  return truth;
}

// With everything published.
void expect_all_found(RandomCluster& random, std::size_t asker, const Path& path) {
  ClusterRig& cluster = random.cluster;
  const Position local = cluster.node(asker).rig.hit(path);
  const Truth truth = truth_of(cluster, asker, path);
  const RemoteHit hit = cluster.find(asker, path);
  const Position first_key = (local + cluster.grid() - 1) / cluster.grid() * cluster.grid();
  if (truth.depth <= first_key) {
    EXPECT_EQ(hit.common_hit, local);  // no key tells of what is there
  } else if (truth.at_deepest_key == 1) {
    EXPECT_EQ(hit.common_hit, truth.depth);
  } else {
    EXPECT_LE(hit.common_hit, truth.depth);
    EXPECT_GT(hit.common_hit + cluster.grid(), truth.depth);
  }
  const bool many_keys = path.size() > first_key + kMaxFirstKeys * cluster.grid();
  EXPECT_LE(hit.figures.rounds, kMaxRounds + (many_keys ? 1 : 0));
  EXPECT_EQ(hit.figures.retries, 0u);
  EXPECT_EQ(hit.figures.stale_entries, 0u);
}

struct Geometry {
  std::uint32_t block_size;
  std::uint32_t segment_blocks;

  [[nodiscard]] IndexPlan plan(std::uint32_t full) const {
    IndexPlan out = cluster_plan(full);
    out.block_size = block_size;
    out.segment_blocks = segment_blocks;
    out.directory_bytes = 1 << 20;
    return out;
  }
  friend std::ostream& operator<<(std::ostream& out, const Geometry& geometry) {
    return out << geometry.block_size << "_tokens_" << geometry.segment_blocks << "_blocks";
  }
};

class OracleTest : public testing::TestWithParam<Geometry> {
 protected:
  [[nodiscard]] static std::uint64_t rounds_of_test() {
    return std::getenv("RADIX_TEST_FULL") != nullptr ? 100 : 4;
  }
};

INSTANTIATE_TEST_SUITE_P(Geometries, OracleTest,
                         testing::Values(Geometry{16, 64}, Geometry{4, 64}, Geometry{64, 64},
                                         Geometry{256, 32}, Geometry{512, 16}, Geometry{16, 16}),
                         testing::PrintToStringParamName());

TEST_P(OracleTest, FindsWhatIsThereWhenAllIsPublished) {
  for (std::uint64_t seed = 1; seed <= rounds_of_test(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCluster random(seed, GetParam().plan(4096));
    for (std::size_t i = 0; i < kOracleNodes; ++i) random.cluster.connect_all(i);
    for (int phase = 0; phase < 3; ++phase) {
      random.change(25);
      random.cluster.publish_all();
      for (int query = 0; query < 40; ++query) {
        expect_all_found(random, random.below(kOracleNodes), random.some_path());
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST_P(OracleTest, AnswersOnlyWhatIsThereWhenTheDirectoryIsOld) {
  std::size_t found = 0;
  for (std::uint64_t seed = 1; seed <= rounds_of_test(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCluster random(seed, GetParam().plan(1024));
    for (std::size_t i = 0; i < kOracleNodes; ++i) random.cluster.connect_all(i);
    random.change(30);
    random.cluster.publish_all();
    for (int query = 0; query < 100; ++query) {
      random.change(1);
      const std::size_t asker = random.below(kOracleNodes);
      const Path path = random.some_path();
      const Position local = random.cluster.node(asker).rig.hit(path);
      const RemoteHit hit = random.cluster.find(asker, path);
      if (hit.common_hit > local) ++found;
      EXPECT_LE(hit.common_hit, std::max(local, truth_of(random.cluster, asker, path).depth));
      EXPECT_LE(hit.figures.rounds, kMaxRounds + 1);
      EXPECT_LE(hit.figures.retries, 1u);
      EXPECT_LE(hit.figures.retry_rounds, kMaxRounds - 1);
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(found, rounds_of_test());  // or the test says nothing
}

}  // namespace
}  // namespace radixshmem
