// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A cluster in one process: the real trees, directories, shard map and lookup of N nodes. What is
// stored is published at once, without batches: publication.h measures those.
//
// One peer table and one set of readers serve all nodes: it is told who looks up. They read each
// other's memory directly, so times mean nothing here, and rounds, reads and bytes all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_set>
#include <vector>

#include "bench/simulation/figures.h"
#include "bench/simulation/names.h"
#include "bench/simulation/node.h"
#include "directory/directory.h"
#include "directory/key_reader.h"
#include "directory/shard_map.h"
#include "remote/lookup.h"
#include "remote/peer_set.h"

namespace radixshmem::bench {

inline constexpr std::uint64_t kDigest = 0x5eed;

// What lookups read where, by node.
struct Reads {
  std::vector<double> directory;
  std::vector<double> tree;
  std::vector<Rank> peers;  // of the present lookup
};

struct Found {
  Position local = 0;
  Position common = 0;   // found, here or elsewhere
  Position best = 0;     // that one node has, here or elsewhere
  std::size_t keys = 0;  // beyond what is here
  std::size_t peers = 0;
  LookupFigures figures;
};

class Cluster final {
 public:
  Cluster(std::size_t nodes, std::uint32_t slots, std::uint64_t directory_bytes);

  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  void store(Rank node, std::span<const BlockHash> path);
  [[nodiscard]] Found look_up(Rank from, std::span<const BlockHash> path);

  [[nodiscard]] const Reads& reads() const noexcept { return reads_; }
  [[nodiscard]] const ShardMap& map() const noexcept { return map_; }
  // How full nodes and directories are.
  void describe(Figures& out) const;

 private:
  class Reader;

  struct Member {
    explicit Member(const IndexPlan& plan)
        : node(plan), keys(node.tree()), cursor(node.tree().ring().at_head()) {}
    Node node;
    KeyReader keys;
    ChangeRing::Cursor cursor;
    std::unique_ptr<Directory> directory;  // of keepers
  };

  void connect();
  void publish(Rank rank);
  void apply(Rank rank, const Change& change);
  // Tells the peer table anew who has a name: trees have grown.
  void introduce_all();
  // Returns: the rank that the peer table has, or gets, for a node.
  Rank introduce(Rank node);
  [[nodiscard]] Position best_hit(std::span<const BlockHash> path);

  std::vector<std::unique_ptr<Member>> nodes_;
  ShardMap map_;
  Names names_;
  Pages table_memory_;
  PeerTable table_;
  PeerSet peers_;
  std::unordered_set<std::uint32_t> tags_;  // of the path that is looked up
  Reads reads_;
  double keys_held_ = 0;  // by all nodes together
  double cut_ = 0;        // stores that found no segment
};

// Returns: the ranks that keep shards, ascending.
[[nodiscard]] std::vector<Rank> keepers_of(const ShardMap& map);
// Returns: the map of `nodes` equal members, ranks 0.., but `without`.
[[nodiscard]] ShardMap map_of(std::size_t nodes, Rank without = kNoRank);

}  // namespace radixshmem::bench
