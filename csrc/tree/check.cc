// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The invariant walker behind `radix-server check`: recounts everything derived and compares.
// Runs under the lock, reads only, and believes nothing: ids are checked before they are followed.
#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <utility>

#include "base/memory_orders.h"
#include "tree/tree.h"

namespace radixshmem {
namespace {

constexpr std::size_t kMaxReports = 100;
constexpr const char* kComponentNames[] = {"full", "swa", "mamba"};

}  // namespace

class TreeInspector final {
 public:
  explicit TreeInspector(const Tree& tree)
      : tree_(tree),
        branches_(tree.arena_.units()),
        side_used_(std::max<std::uint32_t>(1, tree.sides_.size())) {
    for (const Component c : kAllComponents) {
      slot_uses_[static_cast<std::size_t>(c)].resize(tree.pool(c).size());
    }
  }

  std::vector<std::string> run() {
    check_quiet();
    tree_.arena_.for_each([&](SegmentId id, Segment s) { check_segment(id, s); });
    tree_.arena_.for_each([&](SegmentId id, Segment s) { check_children(id, s); });
    check_keys();
    check_table();
    check_lists();
    check_side_blocks();
    tree_.arena_.check_pages(
        [&](const char* what, PageId page) { report("I7 page %u: %s", page, what); });
    for (const Component c : kAllComponents) check_slots(c);
    check_pins();
    return std::move(lines_);
  }

 private:
  [[gnu::format(printf, 2, 3)]] void report(const char* format, ...) {
    if (lines_.size() >= kMaxReports) return;
    char text[256];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    lines_.emplace_back(text);
  }

  [[nodiscard]] std::uint32_t s() const noexcept { return tree_.segment_blocks(); }

  void check_quiet() {
    const Control& control = *tree_.control_;
    if (tree_.log_.entries() != 0) report("I10 undo log holds %u entries", tree_.log_.entries());
    if ((tree_.table_.sequence(kRelaxed) & 1) != 0) report("I10 table sequence is odd");
    if (control.intent.load(kRelaxed) != kIntentNone) {
      report("I10 intent is %u", control.intent.load(kRelaxed));
    }
  }

  void use_slot(Component c, SlotId slot, SegmentId id) {
    const auto k = static_cast<std::size_t>(c);
    const SlotPool& pool = tree_.pool(c);
    if (slot >= pool.size()) {
      report("I1 segment %u names %s slot %u of %u", id, kComponentNames[k], slot, pool.size());
      return;
    }
    if (slot_uses_[k][slot]++ != 0)
      report("I1 %s slot %u is in two places", kComponentNames[k], slot);
    if (pool.owner(slot) != kOwnerTree) {
      report("I1 %s slot %u of segment %u has owner %08x", kComponentNames[k], slot, id,
             pool.owner(slot));
    }
  }

  void check_segment(SegmentId id, Segment segment) {
    const SegmentHead head = segment.head();
    const std::uint32_t own_class = segment->size_class.load(kRelaxed);
    if (own_class != tree_.arena_.class_of(id)) {
      report("I7 segment %u is of class %u, its page of %u", id, own_class,
             tree_.arena_.class_of(id));
    }
    const auto in_list = static_cast<InList>(segment->in_list.load(kRelaxed));
    const SideId side = segment->side.load(kRelaxed);
    if (head.state == SegmentState::kFree) {
      if (side != 0) report("I11 free segment %u has side block %u", id, side);
      return;
    }
    if (head.count < 1 || head.count != head.owned || head.count > segment.capacity()) {
      report("I2 segment %u has count %u, hi %u, capacity %u", id, head.count, head.owned,
             segment.capacity());
      return;
    }
    for (std::uint32_t i = 0; i < head.count; ++i) use_slot(Component::kFull, segment.slot(i), id);
    if (side != 0) check_side(id, side, head);
    if (!head.live()) {
      ++zombies_;
      if (in_list != InList::kZombies) report("I7 zombie %u is not in its list", id);
      return;
    }
    ++live_;
    blocks_ += head.count;
    const Position start = segment.start();
    if (start / s() != (start + head.count - 1) / s()) {
      report("I2 segment %u [%u, %u) crosses a multiple of %u", id, start, start + head.count, s());
    }
    for (std::uint32_t i = 0; i < head.count; ++i) keys_.emplace_back(segment.hash(i), start + i);
    check_parent(id, segment);
    if (tree_.table_.find(segment.hash(0), start) != id) {
      report("I4 segment %u is not found by the table", id);
    }
    const bool should_queue = head.count > segment.floor();
    if ((in_list == InList::kEviction) != should_queue) {
      report("I6 segment %u: in_list %u, count %u, floor %u", id, static_cast<unsigned>(in_list),
             head.count, segment.floor());
    }
    if (should_queue) ++queued_;
  }

  void check_parent(SegmentId id, Segment segment) {
    const Position start = segment.start();
    const SegmentId parent = segment.parent();
    if ((start > 0) != (parent != 0)) {
      report("I3 segment %u starts at %u with parent %u", id, start, parent);
      return;
    }
    if (parent == 0) return;
    const bool lives = tree_.arena_.valid(parent) && tree_.segment(parent).head().live();
    const Position behind = lives ? start - tree_.segment(parent).start() : 0;  // entries of it
    if (behind == 0 || behind > std::min(tree_.segment(parent).head().count, s())) {
      report("I3 segment %u at %u has the bad parent %u", id, start, parent);
      return;
    }
    branches_[parent].resize(s());
    ++branches_[parent][behind - 1];
  }

  void check_side(SegmentId id, SideId side, SegmentHead head) {
    const SidePool& sides = tree_.sides_;
    if (side >= sides.size() || sides.block(side).segment.load(kRelaxed) != id) {
      report("I11 segment %u names side block %u, which is not its own", id, side);
      return;
    }
    ++side_used_[side];
    std::uint32_t total = 0;
    for (std::uint32_t q = 0; q < tree_.aux_pools(); ++q) {
      std::uint32_t count = 0;
      for (std::uint32_t i = 0; i < s(); ++i) {
        const std::uint64_t word = sides.word(side, q, i).load(kRelaxed);
        if (!AuxWord::owns(word)) continue;
        if (!AuxWord::present(word)) report("I11 aux of segment %u, entry %u, is leaving", id, i);
        ++count;
        use_slot(tree_.aux_component(q), AuxWord::slot(word), id);
        if (i >= head.count) report("I11 aux of segment %u outlives entry %u", id, i);
      }
      total += count;
      const SideHeader::Pool& links = sides.block(side).pools[q];
      if (links.count.load(kRelaxed) != count) {
        report("I11 side block %u counts %u slots of pool %u, has %u", side,
               links.count.load(kRelaxed), q, count);
      }
      const bool should_queue = head.live() && count != 0;
      if ((links.in_list.load(kRelaxed) != 0) != should_queue) {
        report("I6 side block %u, pool %u: in_list %u", side, q, links.in_list.load(kRelaxed));
      }
      if (should_queue) ++side_queued_[q];
    }
    if (total == 0) report("I11 segment %u keeps the empty side block %u", id, side);
  }

  void check_children(SegmentId id, Segment segment) {
    if (!segment.head().live()) return;
    constexpr std::uint32_t kSticky = 65535;
    std::uint32_t children = 0;
    branches_[id].resize(s());
    for (std::uint32_t i = 0; i < s(); ++i) {
      const std::uint32_t recount = branches_[id][i];
      children += recount;
      const std::uint32_t stored = i < segment.capacity() ? segment.branch(i) : 0;
      if (stored != recount && !(segment.capacity() > 1 && stored == kSticky)) {
        report("I5 segment %u, entry %u: branch count %u, recount %u", id, i, stored, recount);
      }
    }
    if (children != segment.children()) {
      report("I5 segment %u: child count %u, recount %u", id, segment.children(), children);
    }
  }

  void check_keys() {
    std::sort(keys_.begin(), keys_.end());
    for (std::size_t i = 1; i < keys_.size(); ++i) {
      if (keys_[i] != keys_[i - 1]) continue;
      report("I2 hash %016llx is twice at position %u",
             static_cast<unsigned long long>(keys_[i].first), keys_[i].second);
    }
  }

  void check_table() {
    std::uint32_t entries = 0;
    for (std::uint32_t l = 0; l < tree_.table_.lines_in_use(); ++l) {
      for (const auto& entry : tree_.table_.line(l).entry) entries += entry.load(kRelaxed) != 0;
    }
    const Control& control = *tree_.control_;
    if (!std::has_single_bit(tree_.table_.lines_in_use())) {
      report("I4 table has %u lines, no power of two", tree_.table_.lines_in_use());
    }
    if (entries != live_) report("I4 table has %u entries, %u are live", entries, live_);
    if (control.live_segments.load(kRelaxed) != live_) {
      report("I4 counted %u live segments, found %u", control.live_segments.load(kRelaxed), live_);
    }
    if (control.live_blocks.load(kRelaxed) != blocks_) {
      report("I4 counted %u blocks, found %u", control.live_blocks.load(kRelaxed), blocks_);
    }
  }

  // Lists are right when they are as long as what belongs in them, since membership was checked.
  // Returns: the length, limit + 1 for a list that is longer or leaves [0, end).
  template <typename Next>
  [[nodiscard]] static std::uint32_t length(std::uint32_t first, std::uint32_t limit,
                                            std::uint32_t end, Next next) {
    std::uint32_t count = 0;
    for (std::uint32_t id = first; id != 0 && count <= limit; id = next(id)) {
      if (id >= end) return limit + 1;
      ++count;
    }
    return count;
  }

  void check_lists() {
    const std::uint32_t units = tree_.arena_.units();
    const std::uint32_t queued = length(tree_.eviction_.front(), live_, units,
                                        [&](SegmentId id) { return tree_.eviction_.next(id); });
    if (queued != queued_) report("I6 eviction list has %u segments, %u belong", queued, queued_);
    for (std::uint32_t q = 0; q < tree_.aux_pools(); ++q) {
      const std::uint32_t found =
          length(tree_.sides_.front(q), tree_.sides_.size(), tree_.sides_.size(),
                 [&](SideId id) { return tree_.sides_.next(id, q); });
      if (found != side_queued_[q]) {
        report("I6 list of aux pool %u has %u side blocks, %u belong", q, found, side_queued_[q]);
      }
    }
    const Control& control = *tree_.control_;
    const std::uint32_t zombies =
        length(control.zombie_head.load(kRelaxed), zombies_, units,
               [&](SegmentId id) { return tree_.arena_.header(id)->lru_next.load(kRelaxed); });
    if (zombies != zombies_ || control.zombies.load(kRelaxed) != zombies_) {
      report("I7 zombie list has %u, counts %u, found %u", zombies, control.zombies.load(kRelaxed),
             zombies_);
    }
  }

  void check_side_blocks() {
    const SidePool& sides = tree_.sides_;
    if (sides.size() == 0) return;
    std::uint32_t used = 0;
    for (const std::uint8_t uses : side_used_) used += uses;
    const auto next_free = [&](SideId id) {
      for (std::uint32_t q = 0; q < tree_.aux_pools(); ++q) {
        for (std::uint32_t i = 0; i < s(); ++i) {
          if (AuxWord::owns(sides.word(id, q, i).load(kRelaxed))) {
            report("I11 free side block %u holds a slot", id);
          }
        }
      }
      return sides.block(id).next_free.load(kRelaxed);
    };
    const std::uint32_t free = length(sides.free_head(), sides.size(), sides.size(), next_free);
    if (free != sides.free_count() || free + used + 1 != sides.size()) {
      report("I11 side blocks: %u free (counted %u), %u used, %u in all", free, sides.free_count(),
             used, sides.size() - 1);
    }
  }

  void check_slots(Component c) {
    const auto k = static_cast<std::size_t>(c);
    const char* name = kComponentNames[k];
    const SlotPool& pool = tree_.pool(c);
    const ClientTable& clients = tree_.clients_;
    const std::vector<std::uint8_t> is_free = walk_free_list(pool, name);
    for (SlotId slot = 0; slot < pool.size(); ++slot) {
      const std::uint32_t owner = pool.owner(slot);
      if (owner_is_free(owner) != (is_free[slot] != 0)) {
        report("I1 %s slot %u: owner %08x, %s the free list", name, slot, owner,
               is_free[slot] != 0 ? "in" : "not in");
      }
      if (owner == kOwnerTree && slot_uses_[k][slot] == 0) {
        report("I1 %s slot %u belongs to the tree, no segment names it", name, slot);
      }
      if (owner_is_client(owner) && (owner_client(owner) >= clients.ids_used() ||
                                     clients.state(owner_client(owner)) == ClientState::kFree)) {
        report("I8 %s slot %u is owned by the unregistered client %u", name, slot,
               owner_client(owner));
      }
    }
  }

  [[nodiscard]] std::vector<std::uint8_t> walk_free_list(const SlotPool& pool, const char* name) {
    std::vector<std::uint8_t> is_free(pool.size());
    std::uint32_t count = 0;
    for (std::uint32_t head = pool.free_head(); head != 0; head = pool.owner(head - 1)) {
      if (!owner_is_free(head) || head > pool.size() || is_free[head - 1] != 0) {
        report("I1 %s free list is broken after %u slots at %08x", name, count, head);
        break;
      }
      is_free[head - 1] = 1;
      ++count;
    }
    if (count != pool.free_count()) {
      report("I1 %s free list has %u slots, counts %u", name, count, pool.free_count());
    }
    return is_free;
  }

  void check_pins() {
    tree_.clients_.scan_pins([&](ClientId client, PinWord pin) {
      if (tree_.clients_.state(client) != ClientState::kFree) return;
      report("I8 unregistered client %u pins segment %u", client, pin.segment);
    });
  }

  const Tree& tree_;
  std::vector<std::string> lines_;
  std::array<std::vector<std::uint8_t>, kComponents> slot_uses_;
  std::vector<std::vector<std::uint32_t>> branches_;  // recounted children by segment and entry
  std::vector<std::pair<BlockHash, Position>> keys_;
  std::vector<std::uint8_t> side_used_;
  std::array<std::uint32_t, 2> side_queued_{};
  std::uint32_t live_ = 0;
  std::uint32_t zombies_ = 0;
  std::uint32_t queued_ = 0;
  std::uint32_t blocks_ = 0;
};

std::vector<std::string> Tree::check() const {
  return TreeInspector(*this).run();
}

}  // namespace radixshmem
