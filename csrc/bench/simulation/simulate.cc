// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bench/simulation/simulate.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/simulation/cluster.h"
#include "bench/simulation/publication.h"
#include "bench/simulation/requests.h"

namespace radixshmem::bench {
namespace {

constexpr std::uint32_t kFullSizeSlots = 1u << 20;  // whose directory has no least size
constexpr double kStoredTokensPerS = 50'000;
constexpr std::uint32_t kStoreSeconds = 60;
constexpr std::uint32_t kMaxRounds = 6;

// What the lookups of the measured half came to.
class Lookups final {
 public:
  void add(const Found& found) {
    const LookupFigures& figures = found.figures;
    ++rounds_[std::min(figures.rounds, kMaxRounds)];
    reads_.push_back(figures.reads);
    bytes_.push_back(static_cast<double>(figures.bytes));
    peers_.push_back(static_cast<double>(found.peers));
    one_peer_.push_back(figures.most_reads_to_one_peer);
    const bool many_keys = found.keys > kMaxFirstKeys;  // which takes a round more
    extra_rounds_ += many_keys && figures.rounds > 2 ? 1 : 0;
    retries_ += figures.retries;
    stale_ += figures.stale_entries;
    found_ += found.common - found.local;
    exist_ += found.best - found.local;
    remote_ += found.best > found.local ? 1 : 0;
  }
  [[nodiscard]] double count() const { return static_cast<double>(reads_.size()); }
  void describe(Figures& out) const {
    out.emplace_back("lookups", count());
    for (std::size_t r = 0; r < rounds_.size(); ++r) {
      out.emplace_back("rounds_" + std::to_string(r), rounds_[r]);
    }
    out.emplace_back("rounds_above_2_many_keys", extra_rounds_);
    out.emplace_back("retries", retries_);
    out.emplace_back("stale_entries", stale_);
    out.emplace_back("remote_blocks_found", found_);
    out.emplace_back("remote_blocks_exist", exist_);
    out.emplace_back("remote_lookups", remote_);
    spread("reads", reads_, out);
    spread("bytes", bytes_, out);
    spread("peers", peers_, out);
    spread("reads_of_one_peer", one_peer_, out);
  }

 private:
  static void spread(const std::string& name, const std::vector<double>& values, Figures& out) {
    out.emplace_back(name + "_mean", mean(values));
    out.emplace_back(name + "_p99", percentile(values, 99));
  }

  std::vector<double> rounds_ = std::vector<double>(kMaxRounds + 1);
  std::vector<double> reads_;
  std::vector<double> bytes_;
  std::vector<double> peers_;
  std::vector<double> one_peer_;
  double extra_rounds_ = 0;
  double retries_ = 0;
  double stale_ = 0;
  double found_ = 0;
  double exist_ = 0;
  double remote_ = 0;
};

// How evenly the keepers of shards, and the holders of paths, are read.
void describe_load(const Cluster& cluster, double lookups, Figures& out) {
  std::vector<double> shards(cluster.size());
  for (const ShardRanks& ranks : cluster.map()) ++shards[ranks[0]];
  std::vector<double> kept;
  std::vector<double> keeper_reads;
  for (const Rank keeper : keepers_of(cluster.map())) {
    kept.push_back(shards[keeper]);
    keeper_reads.push_back(cluster.reads().directory[keeper]);
  }
  out.emplace_back("shards_max_over_mean", max_over_mean(kept));
  out.emplace_back("keeper_reads_max_over_mean", max_over_mean(keeper_reads));
  out.emplace_back("keeper_reads_per_lookup", ratio(sum(keeper_reads), lookups));
  out.emplace_back("hottest_keeper_reads_per_lookup",
                   ratio(*std::ranges::max_element(keeper_reads), lookups));
  const std::vector<double>& tree_reads = cluster.reads().tree;
  out.emplace_back("holder_reads_per_lookup", ratio(sum(tree_reads), lookups));
  out.emplace_back("hottest_holder_reads_per_lookup",
                   ratio(*std::ranges::max_element(tree_reads), lookups));
}

// Of a node of this size with the share of a directory that a large node has.
std::uint64_t directory_bytes(std::uint32_t slots) {
  const auto layout = IndexLayout::from_plan(plan_of(kFullSizeSlots, 0, 1024));
  RADIX_CHECK(layout.ok(), kFullSizeSlots);
  const std::uint64_t bytes = layout.value().area(AreaKind::kDirectory).bytes;
  return std::max<std::uint64_t>(bytes * slots / kFullSizeSlots, kHeaderBytes);
}

void serve(const SimulationOptions& options, const WorkloadFile& file, Figures& out) {
  Cluster cluster(options.nodes, options.slots, options.directory_bytes);
  Requests requests(file, options.slots / 2);
  double blocks = 0;
  for (const Insert& insert : file.inserts) blocks += static_cast<double>(insert.blocks);
  const double room = static_cast<double>(options.slots) * static_cast<double>(options.nodes);
  const double each = blocks / static_cast<double>(file.inserts.size());
  const double stride = std::max(1.0, room / each / options.lookups);
  Lookups lookups;
  double next_lookup = 0;
  double number = 0;
  std::uint64_t random = 0;
  for (double seen = 0; seen < 2 * room; ++number) {
    const auto path = requests.next();
    random = mix_hash(random + 0x9e3779b97f4a7c15u);
    const auto node = static_cast<Rank>((random >> 32) * options.nodes >> 32);
    seen += static_cast<double>(std::max<std::size_t>(path.size(), 1));
    if (seen > room && number >= next_lookup) {
      lookups.add(cluster.look_up(node, path));
      next_lookup = std::max(next_lookup, number - stride) + stride;
    }
    cluster.store(node, path);
  }
  out.emplace_back("requests", number);
  cluster.describe(out);
  lookups.describe(out);
  describe_load(cluster, lookups.count(), out);
}

}  // namespace

Figures simulate(const SimulationOptions& wanted, const WorkloadFile& file) {
  SimulationOptions options = wanted;
  if (options.directory_bytes == 0) options.directory_bytes = directory_bytes(options.slots);
  Figures figures{{"nodes", static_cast<double>(options.nodes)},
                  {"slots", options.slots},
                  {"directory_bytes", static_cast<double>(options.directory_bytes)}};
  serve(options, file, figures);
  PublicationOptions publication;
  publication.nodes = options.nodes;
  publication.slots = options.publishing_slots;
  publication.blocks_per_s = kStoredTokensPerS / kBlockTokens;
  publication.seconds = kStoreSeconds;
  Requests stores(file, publication.slots / 2);
  measure_publication(publication, stores, figures);
  return figures;
}

}  // namespace radixshmem::bench
