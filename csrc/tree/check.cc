// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The invariant walker behind `radix-server check`: recounts everything derived and compares.
// Runs under the lock, reads only, and believes nothing: ids are checked before they are followed.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <utility>

#include "tree/tree.h"

namespace radixshmem {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::size_t kMaxReports = 100;
constexpr std::array kAllComponents{Component::kFull, Component::kSwa, Component::kMamba};
constexpr const char* kComponentNames[] = {"full", "swa", "mamba"};

class Report final {
 public:
  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) {
    if (lines_.size() >= kMaxReports) return;
    char text[256];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    lines_.emplace_back(text);
  }
  [[nodiscard]] std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> Tree::check() const {
  Report report;
  const std::uint32_t s = segment_blocks();
  if (log_.entries() != 0) report.add("I10 undo log holds %u entries", log_.entries());
  if ((table_.sequence(kRelaxed) & 1) != 0) report.add("I10 table sequence is odd");
  if (control_->intent.load(kRelaxed) != kIntentNone) {
    report.add("I10 intent is %u", control_->intent.load(kRelaxed));
  }

  std::array<std::vector<std::uint8_t>, kComponents> used;
  for (const Component c : kAllComponents) {
    used[static_cast<std::size_t>(c)].resize(pool(c).size());
  }
  const auto use_slot = [&](Component c, SlotId slot, SegmentId id) {
    const auto k = static_cast<std::size_t>(c);
    if (slot >= pool(c).size()) {
      report.add("I1 segment %u names %s slot %u of %u", id, kComponentNames[k], slot,
                 pool(c).size());
      return;
    }
    if (used[k][slot]++ != 0) report.add("I1 %s slot %u is in two places", kComponentNames[k], slot);
    if (pool(c).owner(slot) != kOwnerTree) {
      report.add("I1 %s slot %u of segment %u has owner %08x", kComponentNames[k], slot, id,
                 pool(c).owner(slot));
    }
  };

  // Segments: heads, parents, table, list membership, sides.
  std::vector<std::vector<std::uint32_t>> branches(arena_.units());
  std::vector<std::pair<BlockHash, Position>> keys;
  std::vector<std::uint8_t> side_used(std::max<std::uint32_t>(1, sides_.size()));
  std::uint32_t live = 0;
  std::uint32_t zombies = 0;
  std::uint32_t queued = 0;
  std::uint32_t blocks = 0;
  std::array<std::uint32_t, 2> side_queued{};
  arena_.for_each([&](SegmentId id, Segment segment_now) {
    const SegmentHead head = segment_now.head();
    const auto in_list = static_cast<InList>(segment_now->in_list.load(kRelaxed));
    const SideId side = segment_now->side.load(kRelaxed);
    if (head.state == SegmentState::kFree) {
      if (side != 0) report.add("I11 free segment %u has side block %u", id, side);
      return;
    }
    const bool is_live = head.live();
    if (head.count < 1 || head.count != head.owned || head.count > segment_now.capacity()) {
      report.add("I2 segment %u has count %u, hi %u, capacity %u", id, head.count, head.owned,
                 segment_now.capacity());
      return;
    }
    for (std::uint32_t i = 0; i < head.count; ++i) use_slot(Component::kFull, segment_now.slot(i), id);
    if (side != 0) {
      if (side >= sides_.size() || sides_.block(side).segment.load(kRelaxed) != id) {
        report.add("I11 segment %u names side block %u, which is not its own", id, side);
      } else {
        ++side_used[side];
        std::uint32_t total = 0;
        for (std::uint32_t q = 0; q < aux_pools(); ++q) {
          std::uint32_t count = 0;
          for (std::uint32_t i = 0; i < s; ++i) {
            const std::uint64_t word = sides_.word(side, q, i).load(kRelaxed);
            if (!AuxWord::present(word)) continue;
            ++count;
            use_slot(aux_component(q), AuxWord::slot(word), id);
            if (i >= head.count) report.add("I11 aux of segment %u outlives entry %u", id, i);
          }
          total += count;
          const SideHeader::Pool& links = sides_.block(side).pools[q];
          if (links.count.load(kRelaxed) != count) {
            report.add("I11 side block %u counts %u slots of pool %u, has %u", side,
                       links.count.load(kRelaxed), q, count);
          }
          const bool should_queue = is_live && count != 0;
          if ((links.in_list.load(kRelaxed) != 0) != should_queue) {
            report.add("I6 side block %u, pool %u: in_list %u", side, q,
                       links.in_list.load(kRelaxed));
          }
          if (should_queue) ++side_queued[q];
        }
        if (total == 0) report.add("I11 segment %u keeps the empty side block %u", id, side);
      }
    }
    if (!is_live) {
      ++zombies;
      if (in_list != InList::kZombies) report.add("I7 zombie %u is not in its list", id);
      return;
    }
    ++live;
    blocks += head.count;
    const Position start = segment_now.start();
    if (start / s != (start + head.count - 1) / s) {
      report.add("I2 segment %u [%u, %u) crosses a multiple of %u", id, start, start + head.count, s);
    }
    for (std::uint32_t i = 0; i < head.count; ++i) keys.emplace_back(segment_now.hash(i), start + i);
    const SegmentId parent = segment_now.parent();
    if ((start > 0) != (parent != 0)) {
      report.add("I3 segment %u starts at %u with parent %u", id, start, parent);
    } else if (parent != 0) {
      if (!arena_.valid(parent) || !segment(parent).head().live() ||
          segment(parent).start() >= start ||
          start > segment(parent).start() + segment(parent).head().count) {
        report.add("I3 segment %u at %u has the bad parent %u", id, start, parent);
      } else {
        branches[parent].resize(s);
        ++branches[parent][start - segment(parent).start() - 1];
      }
    }
    if (table_.find(segment_now.hash(0), start) != id) {
      report.add("I4 segment %u is not found by the table", id);
    }
    const bool should_queue = head.count > segment_now.floor();
    if ((in_list == InList::kEviction) != should_queue) {
      report.add("I6 segment %u: in_list %u, count %u, floor %u", id,
                 static_cast<unsigned>(in_list), head.count, segment_now.floor());
    }
    if (should_queue) ++queued;
  });

  arena_.for_each([&](SegmentId id, Segment segment_now) {
    if (!segment_now.head().live()) return;
    std::uint32_t children = 0;
    branches[id].resize(s);
    for (std::uint32_t i = 0; i < s; ++i) {
      children += branches[id][i];
      const std::uint32_t stored = i < segment_now.capacity() ? segment_now.branch(i) : 0;
      if (stored != branches[id][i] && !(segment_now.capacity() > 1 && stored == 65535)) {
        report.add("I5 segment %u, entry %u: branch count %u, recount %u", id, i, stored,
                   branches[id][i]);
      }
    }
    if (children != segment_now.children()) {
      report.add("I5 segment %u: child count %u, recount %u", id, segment_now.children(), children);
    }
  });

  std::sort(keys.begin(), keys.end());
  for (std::size_t i = 1; i < keys.size(); ++i) {
    if (keys[i] == keys[i - 1]) {
      report.add("I2 hash %016llx is twice at position %u",
                 static_cast<unsigned long long>(keys[i].first), keys[i].second);
    }
  }

  std::uint32_t table_entries = 0;
  for (std::uint32_t l = 0; l < table_.lines_in_use(); ++l) {
    for (const auto& entry : table_.line(l).entry) table_entries += entry.load(kRelaxed) != 0;
  }
  if (table_entries != live) report.add("I4 table has %u entries, %u are live", table_entries, live);
  if (control_->live_segments.load(kRelaxed) != live) {
    report.add("I4 counted %u live segments, found %u", control_->live_segments.load(kRelaxed), live);
  }
  if (control_->live_blocks.load(kRelaxed) != blocks) {
    report.add("I4 counted %u blocks, found %u", control_->live_blocks.load(kRelaxed), blocks);
  }

  // Lists: as long as what belongs in them.
  std::uint32_t length = 0;
  for (SegmentId id = eviction_.front(); id != 0 && length <= live; id = eviction_.next(id)) {
    ++length;
  }
  if (length != queued) report.add("I6 eviction list has %u segments, %u belong", length, queued);
  for (std::uint32_t q = 0; q < aux_pools(); ++q) {
    length = 0;
    for (SideId id = sides_.front(q); id != 0 && length <= sides_.size(); id = sides_.next(id, q)) {
      ++length;
    }
    if (length != side_queued[q]) {
      report.add("I6 list of aux pool %u has %u side blocks, %u belong", q, length, side_queued[q]);
    }
  }
  length = 0;
  for (SegmentId id = control_->zombie_head.load(kRelaxed); id != 0 && length <= zombies;
       id = arena_.header(id)->lru_next.load(kRelaxed)) {
    ++length;
  }
  if (length != zombies || control_->zombies.load(kRelaxed) != zombies) {
    report.add("I7 zombie list has %u, counts %u, found %u", length,
               control_->zombies.load(kRelaxed), zombies);
  }

  // Side blocks: free or used.
  if (sides_.size() != 0) {
    std::uint32_t used_sides = 0;
    for (const std::uint8_t used_side : side_used) used_sides += used_side;
    length = 0;
    for (SideId id = sides_.free_head(); id != 0 && length <= sides_.size();
         id = sides_.block(id).next_free.load(kRelaxed)) {
      ++length;
      for (std::uint32_t q = 0; q < aux_pools(); ++q) {
        for (std::uint32_t i = 0; i < s; ++i) {
          if (AuxWord::present(sides_.word(id, q, i).load(kRelaxed))) {
            report.add("I11 free side block %u holds a slot", id);
          }
        }
      }
    }
    if (length != sides_.free_count() || length + used_sides + 1 != sides_.size()) {
      report.add("I11 side blocks: %u free (counted %u), %u used, %u in all", length,
                 sides_.free_count(), used_sides, sides_.size() - 1);
    }
  }
  arena_.check_pages([&](const char* what, PageId page) { report.add("I7 page %u: %s", page, what); });

  // Slots: every one in exactly one place.
  for (const Component c : kAllComponents) {
    const auto k = static_cast<std::size_t>(c);
    const SlotPool& p = pool(c);
    std::vector<std::uint8_t> is_free(p.size());
    std::uint32_t count = 0;
    for (std::uint32_t head = p.free_head(); head != 0 && count <= p.size();) {
      if (head > p.size() || is_free[head - 1] != 0) {
        report.add("I1 %s free list is broken at slot %u", kComponentNames[k], head - 1);
        break;
      }
      is_free[head - 1] = 1;
      ++count;
      head = p.owner(head - 1);
      if (!owner_is_free(head)) {
        report.add("I1 %s free list runs into owner %08x", kComponentNames[k], head);
        break;
      }
    }
    if (count != p.free_count()) {
      report.add("I1 %s free list has %u slots, counts %u", kComponentNames[k], count, p.free_count());
    }
    for (SlotId slot = 0; slot < p.size(); ++slot) {
      const std::uint32_t owner = p.owner(slot);
      if (owner_is_free(owner) != (is_free[slot] != 0)) {
        report.add("I1 %s slot %u: owner %08x, %s the free list", kComponentNames[k], slot, owner,
                   is_free[slot] != 0 ? "in" : "not in");
      }
      if (owner == kOwnerTree && used[k][slot] == 0) {
        report.add("I1 %s slot %u belongs to the tree, no segment names it", kComponentNames[k], slot);
      }
      if (owner_is_client(owner) && (owner_client(owner) >= clients_.ids_used() ||
                                     clients_.state(owner_client(owner)) == ClientState::kFree)) {
        report.add("I8 %s slot %u is owned by the unregistered client %u", kComponentNames[k], slot,
                   owner_client(owner));
      }
    }
  }
  clients_.scan_pins([&](ClientId client, PinWord pin) {
    if (clients_.state(client) == ClientState::kFree) {
      report.add("I8 unregistered client %u pins segment %u", client, pin.segment);
    }
  });
  return report.take();
}

}  // namespace radixshmem
