// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Some nodes, each with tree, publisher and directory, and a network that loses batches.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "tests/directory/publisher_rig.h"

namespace radixshmem {

class ClusterRig final {
 public:
  static constexpr std::uint16_t kNodes = 4;
  static constexpr std::uint32_t kSlots = 120;

  ClusterRig(std::uint32_t seed, std::uint32_t directory_lines)
      : random_(seed), directory_lines_(directory_lines) {
    for (std::uint64_t i = 0; i < 24; ++i) paths_.push_back(random_path(i));
  }

  // One random thing happens.
  void step() {
    now_ += below(400);
    Node* node = any_alive();
    const std::uint32_t dice = below(1000);
    if (dice < 30 || node == nullptr) return change_members();
    if (dice < 420) return insert(*node);
    if (dice < 500) return insert_aux(*node);
    if (dice < 700) return (void)node->rig->tree().evict(1 + below(20));
    if (dice < 710) return node->rig->tree().reset();
    if (dice < 715) return node->rig->tree().repair();
    if (dice < 725) return node->publisher->republish_all(1 + below(50), now_);
    if (dice < 760) return deliver(*node, node->publisher->flush(now_), /*lossy=*/true);
    deliver(*node, node->publisher->collect(now_, 1 + below(100)), /*lossy=*/true);
  }

  // Nobody is warming, and everything that was said has arrived.
  void come_to_rest(bool heal) {
    for (Node& node : nodes_) node.warming = false;
    publish_maps();
    for (Node& node : nodes_) {
      if (!node.rig) continue;
      for (const std::uint16_t rank : std::exchange(node.lost, {})) {
        node.publisher->resend(rank, 0, now_);
      }
      settle(node);
      if (!heal) continue;
      node.publisher->republish_all(0, now_);
      settle(node);
    }
  }

  struct Figures {
    std::uint64_t keys = 0;      // of living trees
    std::uint64_t missing = 0;   // that their keeper does not name, or wrongly
    std::uint64_t entries = 0;   // of living nodes, in all directories
    std::uint64_t crowded = 0;   // keys that found no room
    std::uint64_t windows = 0;   // of living trees, and checkpoints
    std::uint64_t unmarked = 0;  // that their key does not tell
    std::uint64_t batches_lost = 0;
    std::uint64_t members_changed = 0;
  };
  [[nodiscard]] Figures figures() {
    Figures f = counts_;
    for (Node& node : nodes_) {
      if (!node.rig) continue;
      for (std::uint32_t l = 0; l < node.directory->lines(); ++l) {
        const DirectoryLine line = node.directory->line(l);
        for (std::size_t e = 0; e < kEntriesPerLine; ++e) f.entries += alive(line.words[2 * e]);
      }
      for (const Path& path : paths_) count_windows(node, path, f);
      const DirectoryCounters& c = node.directory->counters();
      f.crowded += c.dropped + c.displaced + c.capped;
      node.rig->tree().arena().for_each([&](SegmentId id, Segment segment) {
        const SegmentHead head = segment.head();
        if (!head.live()) return;
        for (Position p = segment.start(); p < segment.start() + head.count; ++p) {
          if (p % 4 != 0) continue;
          ++f.keys;
          f.missing += named(node, segment.hash(p - segment.start()), id) ? 0 : 1;
        }
      });
    }
    return f;
  }
  // Lets every node be a member.
  void start_all() {
    for (std::uint16_t r = 0; r < kNodes; ++r) {
      if (!nodes_[r].rig) start(r);
    }
    publish_maps();
  }

 private:
  struct Node {
    std::unique_ptr<TreeRig> rig;  // none: not running
    std::unique_ptr<GuardedMemory> memory;
    std::optional<Directory> directory;
    std::optional<Publisher> publisher;
    std::uint16_t life = 0;
    bool warming = false;
    std::set<std::uint16_t> lost;  // peers that a batch for was lost
  };

  [[nodiscard]] std::uint32_t below(std::uint32_t n) {
    return static_cast<std::uint32_t>(random_() % n);
  }
  [[nodiscard]] Path random_path(std::uint64_t i) {
    const std::size_t length = 1 + below(40);
    if (i % 3 == 0) return make_path(i, length);
    const Path& base = paths_[below(static_cast<std::uint32_t>(paths_.size()))];
    return branch_of(base, below(static_cast<std::uint32_t>(base.size())), i, length);
  }
  [[nodiscard]] Node* any_alive() {
    Node& node = nodes_[below(kNodes)];
    return node.rig ? &node : nullptr;
  }
  void insert(Node& node) {
    const Path& path = paths_[below(static_cast<std::uint32_t>(paths_.size()))];
    const Path part = first_of(path, 1 + below(static_cast<std::uint32_t>(path.size())));
    const Position have = node.rig->hit(part);
    const auto missing = static_cast<std::uint32_t>(part.size()) - have;
    const Slots slots = node.rig->allocate(missing);
    if (slots.size() == missing) (void)node.rig->insert(part, slots, have);
  }

  void insert_aux(Node& node) {
    const Component c = below(2) == 0 ? Component::kSwa : Component::kMamba;
    const Path& path = paths_[below(static_cast<std::uint32_t>(paths_.size()))];
    const Path part = first_of(path, below(node.rig->hit(path) + 1));
    const auto most = static_cast<std::uint32_t>(std::min<std::size_t>(6, part.size()));
    const Slots slots = node.rig->allocate(c == Component::kSwa ? most : std::min(most, 1u), c);
    if (!slots.empty()) (void)node.rig->insert_aux(c, part, slots);
  }
  void count_windows(Node& node, const Path& path, Figures& f) {
    const Position hit = node.rig->hit(path);
    for (Position n = 1; n <= hit; ++n) {
      const BlockHash key = path[(n - 1) / 4 * 4];
      for (const auto& [mask, bit] :
           {std::pair{kMaskSwa, GranuleAux::kSwa}, std::pair{kMaskMamba, GranuleAux::kMamba}}) {
        if (node.rig->hit(first_of(path, n), kMaskFull | mask) != n) continue;
        ++f.windows;
        f.unmarked += (aux_named(node, key) & bit) != 0 ? 0 : 1;
      }
    }
  }

  void change_members() {
    ++counts_.members_changed;
    const auto rank = static_cast<std::uint16_t>(below(kNodes));
    Node& node = nodes_[rank];
    if (!node.rig) {
      start(rank);
    } else if (node.warming) {
      node.warming = false;
    } else {
      stop(rank);
      if (below(2) == 0) {  // and back before anybody made another map
        start(rank);
        for (Node& other : nodes_) {
          if (other.rig) other.lost.insert(rank);
        }
      }
    }
    publish_maps();
  }
  void start(std::uint16_t rank) {
    Node& node = nodes_[rank];
    ++node.life;
    node.warming = true;
    node.rig = std::make_unique<TreeRig>(grid_plan(kSlots, 40, 10));
    node.memory = std::make_unique<GuardedMemory>(std::uint64_t{directory_lines_} * kCacheLine);
    node.directory.emplace(node.memory->base(), directory_lines_);
    node.directory->clear(DirectoryRig::kDigest);
    node.publisher.emplace(node.rig->tree(),
                           Publishing{rank, 0x10000u + node.life, DirectoryRig::kDigest},
                           PublisherRig::options_of(8));
    for (std::uint16_t other = 0; other < kNodes; ++other) {
      if (!nodes_[other].rig) continue;
      node.directory->admit(other, nodes_[other].life);
      nodes_[other].directory->admit(rank, node.life);
    }
  }
  void stop(std::uint16_t rank) {
    Node& node = nodes_[rank];
    node.publisher.reset();
    node.directory.reset();
    node.rig.reset();
    node.lost.clear();
    for (Node& other : nodes_) {
      if (other.rig) other.directory->expel(rank);
    }
  }
  const ShardMap& map_of_members(const std::vector<ShardMember>& members) {
    std::vector<std::uint16_t> ranks;
    for (const ShardMember& member : members) ranks.push_back(member.rank);
    ShardMap& map = maps_[ranks];
    if (map.empty()) map = make_shard_map(members, 1);
    return map;
  }
  void settle(Node& node) {
    do {
      now_ += 3000;
      deliver(node, node.publisher->collect(now_, 1'000'000), /*lossy=*/false);
    } while (node.publisher->more() || node.publisher->republishing());
    deliver(node, node.publisher->flush(now_), /*lossy=*/false);
  }
  void publish_maps() {
    std::vector<ShardMember> all;
    std::vector<ShardMember> settled;
    for (std::uint16_t r = 0; r < kNodes; ++r) {
      if (!nodes_[r].rig) continue;
      all.push_back({r, directory_lines_});
      if (!nodes_[r].warming) settled.push_back(all.back());
    }
    if (settled.empty()) settled = all;
    read_map_ = map_of_members(settled);
    ShardMaps maps{read_map_};
    if (settled.size() != all.size()) maps.push_back(map_of_members(all));
    for (Node& node : nodes_) {
      if (node.rig) node.publisher->set_maps(maps, below(2) * 100, now_);
    }
  }
  void deliver(Node& node, const std::vector<AddressedBatch>& batches, bool lossy) {
    const auto rank = static_cast<std::uint16_t>(&node - nodes_.data());
    for (const AddressedBatch& p : batches) {
      Node& to = nodes_[p.to];
      if (!to.rig || (lossy && below(20) == 0)) {
        ++counts_.batches_lost;
        node.lost.insert(p.to);
        continue;
      }
      const auto done = to.directory->apply(p.bytes, rank, node.life);
      EXPECT_TRUE(done.ok()) << done.error().message;
    }
  }

  [[nodiscard]] bool alive(std::uint64_t word0) const {
    const auto entry = DirectoryEntry::unpack(word0, 0);
    return word0 != 0 && entry.rank < kNodes && nodes_[entry.rank].rig &&
           nodes_[entry.rank].life == entry.incarnation;
  }
  // What the keeper of `key` says that `node` has of it, if anything.
  [[nodiscard]] std::optional<DirectoryEntry> told(const Node& node, BlockHash key) const {
    const KeyPlace place = place_of(key, DirectoryRig::kDigest);
    const Node& keeper = nodes_[read_map_[place.shard][0]];
    const std::array<DirectoryLine, 2> lines{
        keeper.directory->line(place.line(0, directory_lines_)),
        keeper.directory->line(place.line(1, directory_lines_))};
    const Holders holders = holders_in(lines, place.tag);
    for (const DirectoryEntry& e : holders.all()) {
      if (&nodes_[e.rank] == &node && e.incarnation == node.life) return e;
    }
    return std::nullopt;
  }
  [[nodiscard]] bool named(const Node& node, BlockHash key, SegmentId id) const {
    const auto entry = told(node, key);
    return entry && entry->segment.id == id;
  }
  [[nodiscard]] std::uint32_t aux_named(const Node& node, BlockHash key) const {
    const auto entry = told(node, key);
    return entry ? entry->aux : 0;
  }

  std::mt19937 random_;
  std::uint32_t directory_lines_;
  std::vector<Path> paths_;
  std::array<Node, kNodes> nodes_;
  ShardMap read_map_;
  std::map<std::vector<std::uint16_t>, ShardMap> maps_;  // by members
  std::uint64_t now_ = 1000;
  Figures counts_;
};

}  // namespace radixshmem
