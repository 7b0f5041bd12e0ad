// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bench/simulation/cluster.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <utility>

#include "base/check.h"
#include "transport/racing_copy.h"

namespace radixshmem::bench {
namespace {

constexpr std::size_t kPiece = 256;  // blocks that are stored at once
constexpr std::uint32_t kRingEntries = 1024;
constexpr std::chrono::seconds kLong{60};
constexpr auto kLife = static_cast<std::uint16_t>(kIncarnation);

}  // namespace

std::vector<Rank> keepers_of(const ShardMap& map) {
  std::set<Rank> keepers;
  for (const ShardRanks& ranks : map) keepers.insert(ranks[0]);
  keepers.erase(kNoRank);
  return {keepers.begin(), keepers.end()};
}

ShardMap map_of(std::size_t nodes, Rank without) {
  std::vector<ShardMember> members;
  for (std::size_t i = 0; i < nodes; ++i) {
    if (i != without) members.push_back({static_cast<Rank>(i), 1});
  }
  return make_shard_map(members, 1);
}

// Reads the node that has this name at present.
class Cluster::Reader final : public PeerReader {
 public:
  Reader(Cluster& cluster, Rank name) : cluster_(cluster), name_(name) {}

  [[nodiscard]] TransportKind kind() const noexcept override { return TransportKind::kFake; }
  [[nodiscard]] bool post(std::span<const ReadOp> ops) noexcept override {
    if (batch_bytes(ops) == 0) return false;
    const Rank node = name_ < cluster_.names_.count() ? cluster_.names_.node(name_) : Rank{0};
    for (const ReadOp& op : ops) read(node, op);
    auto& peers = cluster_.reads_.peers;
    if (std::ranges::find(peers, node) == peers.end()) peers.push_back(node);
    return true;
  }
  [[nodiscard]] Progress poll() noexcept override { return Progress::kDone; }
  void abandon() noexcept override {}
  [[nodiscard]] bool broken() const noexcept override { return false; }

 private:
  void read(Rank from, const ReadOp& op) noexcept {
    const Node& node = cluster_.nodes_[from]->node;
    racing_copy(op.to, node.base() + op.offset, op.length);
    const Area& lines = node.tree().layout().area(AreaKind::kDirectory);
    const bool directory = op.offset >= lines.offset && op.offset - lines.offset < lines.bytes;
    ++(directory ? cluster_.reads_.directory : cluster_.reads_.tree)[from];
    if (directory) rename(*reinterpret_cast<DirectoryLine*>(op.to));
  }
  // Entries of other keys stay as they are: nobody looks at them.
  void rename(DirectoryLine& line) noexcept {
    for (std::size_t i = 0; i < line.words.size(); i += 2) {
      DirectoryEntry entry = DirectoryEntry::unpack(line.words[i], 0);
      if (line.words[i] == 0 || !cluster_.tags_.contains(entry.tag)) continue;
      entry.rank = cluster_.introduce(entry.rank);
      line.words[i] = entry.word0();
    }
  }

  Cluster& cluster_;
  Rank name_;
};

Cluster::Cluster(std::size_t nodes, std::uint32_t slots, std::uint64_t directory_bytes)
    : map_(map_of(nodes)),
      names_(nodes, keepers_of(map_)),
      table_memory_(kPeerTableBytes),
      table_(table_memory_.base()),
      peers_(table_, /*may_mark=*/true) {
  const IndexPlan plan = plan_of(slots, directory_bytes, kRingEntries);
  for (std::size_t i = 0; i < nodes; ++i) nodes_.push_back(std::make_unique<Member>(plan));
  for (const Rank keeper : keepers_of(map_)) {
    Member& member = *nodes_[keeper];
    member.directory = std::make_unique<Directory>(member.node.area(AreaKind::kDirectory),
                                                   member.node.tree().layout().directory_lines);
    member.directory->clear(kDigest);
    for (std::size_t i = 0; i < nodes; ++i) member.directory->admit(static_cast<Rank>(i), kLife);
  }
  reads_.directory.resize(nodes);
  reads_.tree.resize(nodes);
  connect();
}

void Cluster::connect() {
  table_.init();
  ShardMap named = map_;
  for (ShardRanks& ranks : named) ranks[0] = names_.name(ranks[0]);
  table_.set_shard_map(named);
  introduce_all();
  const std::size_t ranks = std::min<std::size_t>(size(), kMaxPeers);
  for (std::size_t name = 0; name < ranks; ++name) {
    const auto rank = static_cast<Rank>(name);
    const auto adopted = peers_.adopt(rank, kIncarnation, std::make_unique<Reader>(*this, rank),
                                      std::chrono::steady_clock::now() + kLong);
    RADIX_CHECK(adopted.ok(), rank);
  }
}

void Cluster::introduce_all() {
  const std::size_t known = names_.count();
  for (std::size_t name = 0; name < known; ++name) {
    (void)introduce(names_.node(static_cast<Rank>(name)));
  }
}

Rank Cluster::introduce(Rank node) {
  const Rank name = names_.name(node);
  RADIX_CHECK(name != kNoRank, node);
  RADIX_CHECK(table_.set(nodes_[node]->node.info(name)).ok(), name);
  return name;
}

void Cluster::store(Rank node, std::span<const BlockHash> path) {
  for (std::size_t end = 0; end < path.size();) {
    end = std::min(end + kPiece, path.size());
    const bool stored = nodes_[node]->node.store(path.first(end));
    publish(node);
    if (stored) continue;
    ++cut_;
    return;
  }
}

void Cluster::publish(Rank rank) {
  Member& member = *nodes_[rank];
  std::array<Change, 256> changes;
  for (;;) {
    bool lost = false;
    const std::size_t got = member.node.tree().ring().drain(member.cursor, changes, lost);
    RADIX_CHECK(!lost, rank);
    if (got == 0) return;
    for (const Change& change : std::span(changes).first(got)) apply(rank, change);
  }
}

void Cluster::apply(Rank rank, const Change& change) {
  const Member& member = *nodes_[rank];
  if (change.position % member.keys.grid() != 0) return;
  Directory& keeper = *nodes_[map_[place_of(change.hash, kDigest).shard][0]]->directory;
  if (change.kind == ChangeKind::kRemoved) {
    --keys_held_;
    keeper.retract(change.hash, rank, kLife);
    return;
  }
  ++keys_held_;
  const auto facts = member.keys.read(change.segment, change.position);
  if (!facts || facts->key != change.hash) return;  // evicted since: its removal follows
  Claim claim;
  claim.rank = rank;
  claim.incarnation = kLife;
  claim.segment = facts->segment;
  claim.parent = facts->parent;
  keeper.publish(change.hash, claim);
}

Found Cluster::look_up(Rank from, std::span<const BlockHash> path) {
  names_.begin();
  reads_.peers.clear();
  tags_.clear();
  const Tree& tree = nodes_[from]->node.tree();
  for (std::size_t p = 0; p < path.size(); p += nodes_[from]->keys.grid()) {
    tags_.insert(place_of(path[p], kDigest).tag);
  }
  introduce_all();
  table_.set_own({introduce(from), false, kDigest});
  LookupRequest request;
  request.hashes = path;
  request.local_hit = nodes_[from]->node.hit(path);
  request.block_size = tree.plan().block_size;
  request.segment_blocks = tree.segment_blocks();
  request.timeout = kLong;
  Found found;
  found.local = request.local_hit;
  const RemoteHit hit = lookup(peers_, request);
  found.common = hit.common_hit;
  found.figures = hit.figures;
  found.best = best_hit(path);
  const std::uint32_t grid = nodes_[from]->keys.grid();
  found.keys = (path.size() + grid - 1) / grid - (found.local + grid - 1) / grid;
  found.peers = reads_.peers.size();
  return found;
}

Position Cluster::best_hit(std::span<const BlockHash> path) {
  Position best = 0;
  for (const auto& member : nodes_) best = std::max(best, member->node.hit(path));
  return best;
}

void Cluster::describe(Figures& out) const {
  std::vector<double> load;
  double blocks = 0;
  double waiting = 0;
  DirectoryCounters all;
  for (const auto& member : nodes_) {
    blocks += member->node.blocks();
    const Directory* directory = member->directory.get();
    if (directory == nullptr) continue;
    const auto room = static_cast<double>(directory->lines()) * kEntriesPerLine;
    load.push_back(static_cast<double>(directory->entries()) / room);
    waiting += static_cast<double>(directory->waiting());
    all.published += directory->counters().published;
    all.dropped += directory->counters().dropped;
    all.displaced += directory->counters().displaced;
    all.capped += directory->counters().capped;
  }
  const std::uint32_t lines = nodes_[0]->node.tree().layout().directory_lines;
  const double entries = sum(load) * lines * kEntriesPerLine;
  out.emplace_back("blocks", blocks);
  out.emplace_back("stores_cut", cut_);
  out.emplace_back("keys_held", keys_held_);
  out.emplace_back("grid", nodes_[0]->keys.grid());
  out.emplace_back("keepers", static_cast<double>(load.size()));
  out.emplace_back("directory_entries_max", static_cast<double>(load.size()) * lines * 4);
  out.emplace_back("directory_entries", entries);
  out.emplace_back("directory_waiting", waiting);
  out.emplace_back("directory_load", mean(load));
  out.emplace_back("directory_load_max", load.empty() ? 0 : *std::ranges::max_element(load));
  out.emplace_back("keys_published", static_cast<double>(all.published));
  out.emplace_back("keys_dropped", static_cast<double>(all.dropped));
  out.emplace_back("keys_displaced", static_cast<double>(all.displaced));
  out.emplace_back("keys_capped", static_cast<double>(all.capped));
}

}  // namespace radixshmem::bench
