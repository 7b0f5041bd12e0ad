// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bench/simulation/publication.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/simulation/cluster.h"
#include "directory/publisher.h"

namespace radixshmem::bench {
namespace {

constexpr std::size_t kKeysPerCollect = 65536;  // as the binding has it
constexpr Rank kSelf = 0;

// Sums of what goes to other nodes.
struct Sent {
  double keys = 0;
  double batches = 0;
  double bytes = 0;

  void add(const std::vector<AddressedBatch>& sent) {
    for (const AddressedBatch& batch : sent) {
      if (batch.to == kSelf) continue;
      keys += batch.keys;
      ++batches;
      bytes += static_cast<double>(batch.bytes.size());
    }
  }
  void describe(const std::string& name, double per, Figures& out) const {
    out.emplace_back(name + "_keys", keys / per);
    out.emplace_back(name + "_batches", batches / per);
    out.emplace_back(name + "_bytes", bytes / per);
  }
};

class Run final {
 public:
  Run(const PublicationOptions& options, Requests& requests)
      : options_(options),
        requests_(requests),
        map_(map_of(options.nodes)),
        node_(plan_of(options.slots, 0, std::bit_ceil(4 * options.slots))),
        publisher_(node_.tree(), {kSelf, kIncarnation, kDigest}, {}) {
    for (double stored = 0; stored < 2.0 * options.slots;) stored += store();
    publisher_.set_maps({map_}, 0, now_);
    (void)publisher_.flush(now_);
  }

  // Stores at the given rate.
  Sent store_for_seconds() {
    Sent sent;
    double due = 0;
    for (std::uint64_t end = now_ + options_.seconds * 1000u; now_ < end;
         now_ += options_.tick_ms) {
      for (due += options_.blocks_per_s * options_.tick_ms / 1000; due > 0;) due -= store();
      sent.add(publisher_.collect(now_, kKeysPerCollect));
      RADIX_CHECK(!publisher_.more(), publisher_.pending());
    }
    (void)publisher_.flush(now_);
    return sent;
  }
  // Publishes everything once more. Returns: what was sent, and in `seconds` how long it took.
  Sent heal(double& seconds) {
    const std::uint64_t begin = now_;
    publisher_.republish_all(options_.heal_rate, now_);
    const Sent sent = collect_to_the_end();
    seconds = static_cast<double>(now_ - begin) / 1000;
    return sent;
  }
  // Lets the first other node leave that keeps shards.
  Sent lose_a_keeper() {
    publisher_.set_maps({map_of(options_.nodes, leaver())}, options_.moved_rate, now_);
    return collect_to_the_end();
  }
  [[nodiscard]] double moved_shards() const {
    const ShardMap after = map_of(options_.nodes, leaver());
    double moved = 0;
    for (std::size_t s = 0; s < kShards; ++s) moved += map_[s] != after[s] ? 1 : 0;
    return moved / kShards;
  }
  [[nodiscard]] const PublisherCounters& counters() const { return publisher_.counters(); }

 private:
  [[nodiscard]] Rank leaver() const {
    const std::vector<Rank> keepers = keepers_of(map_);
    return *std::ranges::find_if(keepers, [](Rank rank) { return rank != kSelf; });
  }
  // Returns: how many blocks were new.
  double store() {
    const auto path = requests_.next();
    const Position have = node_.hit(path);
    (void)node_.store(path);
    return node_.hit(path) - have;
  }
  Sent collect_to_the_end() {
    Sent sent;
    for (bool on = true; on; now_ += options_.tick_ms) {
      sent.add(publisher_.collect(now_, kKeysPerCollect));
      on = publisher_.more() || publisher_.republishing();
    }
    return sent;
  }

  const PublicationOptions& options_;
  Requests& requests_;
  ShardMap map_;
  Node node_;
  Publisher publisher_;
  std::uint64_t now_ = 1;
};

}  // namespace

void measure_publication(const PublicationOptions& options, Requests& requests, Figures& out) {
  Run run(options, requests);
  const Sent stored = run.store_for_seconds();
  out.emplace_back("store_blocks_per_s", options.blocks_per_s);
  stored.describe("store_per_s", options.seconds, out);
  double seconds = 0;
  const Sent healed = run.heal(seconds);
  out.emplace_back("heal_rate", options.heal_rate);
  healed.describe("heal_per_s", seconds, out);
  out.emplace_back("heal_keys", healed.keys);
  const Sent moved = run.lose_a_keeper();
  moved.describe("leave", 1, out);
  out.emplace_back("moved_rate", options.moved_rate);
  out.emplace_back("leave_shards_moved", run.moved_shards());
  RADIX_CHECK(run.counters().resyncs == 0, run.counters().resyncs);
}

}  // namespace radixshmem::bench
