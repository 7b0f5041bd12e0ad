// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The full rebuild of everything derived, from heads, entries, parents, side ids, aux words, owner
// words and page classes. For reset's recovery, an unusable log, adoption by a new server, and
// `check --repair`. It writes without the log under an intent: killed anywhere, it runs again.
//
//   1  heads: a half-evicted segment gets its count back (its pins may still be honoured); what
//      names a slot out of range or already taken is cut there; the class is that of the page
//   2  LIVE segments whose parent fails I3 become ZOMBIE, not FREE: the sweep honours their pins
//   3  table, children, eviction list
//   4  side blocks: a slot that was leaving is back, for the same reason
//   5  owner words and free lists    6  pages
//
// Nothing allocates: the bit per slot and the word per arena unit are reserved in the region.
#include <algorithm>
#include <bit>

#include "base/memory_orders.h"
#include "tree/tree.h"

namespace radixshmem {
namespace {
constexpr auto kSeqCst = std::memory_order_seq_cst;
constexpr std::uint32_t kLookAhead = 12;
}  // namespace

bool Tree::slot_marked(Component c, SlotId slot) const noexcept {
  const std::uint64_t word = scratch_bits_[bits_begin_[static_cast<std::size_t>(c)] + slot / 64];
  return (word >> (slot % 64) & 1) != 0;
}

bool Tree::mark_slot(Component c, SlotId slot) noexcept {
  if (slot >= pool(c).size() || slot_marked(c, slot)) return false;
  scratch_bits_[bits_begin_[static_cast<std::size_t>(c)] + slot / 64] |= std::uint64_t{1}
                                                                         << (slot % 64);
  return true;
}

void Tree::normalise_heads(bool to_zombie) noexcept {
  arena_.for_each([&](SegmentId id, Segment s) {
    const std::uint64_t word = s.head_word();
    const SegmentHead head = SegmentHead::unpack(word);
    const auto page_class = static_cast<std::uint8_t>(arena_.class_of(id));
    const bool misread = s->size_class.load(kRelaxed) != page_class;
    if (misread) s->size_class.store(page_class, kRelease);
    const bool known = head.state == SegmentState::kLive || head.state == SegmentState::kZombie;
    std::uint32_t owned = std::min(head.owned, s.capacity());
    if (mutant(Mutant::kRebuildFreesTruncated)) owned = std::min(head.count, owned);
    SegmentState state = known ? head.state : SegmentState::kFree;
    if (to_zombie && state == SegmentState::kLive) state = SegmentState::kZombie;
    std::uint32_t good = 0;
    if (known) {
      while (good < owned && mark_slot(Component::kFull, s.slot(good))) ++good;
    }
    if (good == 0) state = SegmentState::kFree;
    if (misread || state != head.state || good != head.count || good != head.owned) {
      s->head.store(next_head(word, state, good, good), kSeqCst);
    }
  });
}

bool Tree::parent_fits(Segment child) const noexcept {
  if (child.parent() == 0) return child.start() == 0;
  if (!arena_.valid(child.parent())) return false;
  const Segment parent = segment(child.parent());
  return parent.start() < child.start() && child.start() <= parent.start() + parent.head().count;
}

bool Tree::drop_orphans() noexcept {
  bool changed = false;
  const std::uint32_t s = segment_blocks();
  arena_.for_each([&](SegmentId, Segment orphan) {
    const std::uint64_t word = orphan.head_word();
    const SegmentHead head = SegmentHead::unpack(word);
    if (!head.live()) return;
    const Position start = orphan.start();
    const bool one_range = start / s == (start + head.count - 1) / s;
    if (one_range && parent_fits(orphan) &&
        (orphan.parent() == 0 || segment(orphan.parent()).head().live())) {
      return;
    }
    const SegmentState state =
        mutant(Mutant::kRebuildFreesBadSegments) ? SegmentState::kFree : SegmentState::kZombie;
    const std::uint32_t count = state == SegmentState::kFree ? 0 : head.count;
    orphan->head.store(next_head(word, state, count, count), kSeqCst);
    changed = true;
  });
  return changed;
}

void Tree::relink_sides() noexcept {
  if (sides_.size() == 0) return;
  arena_.for_each([&](SegmentId id, Segment s) {
    const SideId side = s->side.load(kRelaxed);
    const bool good = side != 0 && side < sides_.size() && s.head().state != SegmentState::kFree &&
                      sides_.block(side).segment.load(kRelaxed) == id;
    if (side != 0 && !good) s->side.store(0, kRelease);
  });
  sides_.forget_lists();
  sides_.restart_free_list();
  for (SideId id = sides_.size(); id-- > 1;) {
    SideHeader& block = sides_.block(id);
    const SegmentId holder = block.segment.load(kRelaxed);
    const bool used = arena_.valid(holder) && arena_.header(holder)->side.load(kRelaxed) == id;
    const std::uint32_t visible = used ? segment(holder).head().count : 0;
    std::uint32_t total = 0;
    for (std::uint32_t q = 0; q < aux_pools(); ++q) {
      std::uint32_t count = 0;
      for (std::uint32_t i = 0; i < segment_blocks(); ++i) {
        auto& word = sides_.word(id, q, i);
        const std::uint64_t now = word.load(kRelaxed);
        if (!AuxWord::owns(now)) continue;
        const bool shown = AuxWord::present(now);
        if (i < visible && (shown || !mutant(Mutant::kRebuildFreesLeaving)) &&
            mark_slot(aux_component(q), AuxWord::slot(now))) {
          ++count;
          if (!shown) word.store(AuxWord::back_after(now), kSeqCst);
        } else {
          word.store(AuxWord::absent_after(now), kSeqCst);
        }
      }
      block.pools[q].count.store(count, kRelease);
      block.pools[q].in_list.store(0, kRelease);
      total += count;
      if (count != 0 && segment(holder).head().live()) sides_.link_back(id, q);
    }
    if (total != 0) continue;
    if (used) arena_.header(holder)->side.store(0, kRelease);
    sides_.link_free(id);
  }
}

void Tree::restore_owners() noexcept {
  const bool log_lost = (control_->intent.load(kRelaxed) & kIntentLogLost) != 0;
  for (const Component c : kAllComponents) {
    SlotPool& p = pool(c);
    for (SlotId slot = 0; slot < p.size(); ++slot) {
      const std::uint32_t owner = p.owner(slot);
      if (slot_marked(c, slot)) {
        if (owner != kOwnerTree) p.restore_owner(slot, kOwnerTree);
      } else if (owner == kOwnerTree) {
        // Without its log nobody knows who was handing it over: a dead process may still write it.
        if (log_lost) control_->work.quarantined_slots.fetch_add(1, kRelaxed);
        p.restore_owner(slot, log_lost ? kOwnerQuarantine : 0);
      }
    }
    p.rebuild_free_list();
  }
}

bool Tree::relink_tree() noexcept {
  control_->zombies.store(0, kRelease);
  control_->zombie_head.store(0, kRelease);
  eviction_.forget_all();
  std::uint32_t live = 0;
  std::uint32_t blocks = 0;
  arena_.for_each([&](SegmentId id, Segment s) {
    const SegmentHead head = s.head();
    s->in_list.store(static_cast<std::uint8_t>(InList::kNone), kRelease);
    if (head.state == SegmentState::kFree) return;
    s.clear_branches();
    if (head.state == SegmentState::kZombie) {
      link_zombie(id);
      return;
    }
    scratch_words_[live++] = std::uint64_t{s->touch.load(kRelaxed)} << 32 | id;
    blocks += head.count;
  });
  table_.set_lines_in_use(std::bit_ceil(table_.lines_in_use()));  // damage may have left any number
  while (table_.wants_growth(live)) table_.set_lines_in_use(table_.lines_in_use() * 2);
  table_.clear();
  fault_point(FaultPoint::rebuild_table);
  for (std::uint32_t i = 0; i < live; ++i) {
    if (i + kLookAhead < live) {
      table_.prefetch(segment(static_cast<SegmentId>(scratch_words_[i + kLookAhead])).hash(0));
    }
    const auto id = static_cast<SegmentId>(scratch_words_[i]);
    const Segment s = segment(id);
    if (!table_.insert(s.hash(0), id, /*logged=*/false)) {
      const std::uint64_t word = s.head_word();
      const std::uint32_t count = s.head().count;
      s->head.store(next_head(word, SegmentState::kZombie, count, count), kSeqCst);
      return false;
    }
    if (const SegmentId parent = s.parent(); parent != 0) {
      const Segment p = segment(parent);
      p->child_count.store(p.children() + 1, kRelease);
      if (p.capacity() > 1) {
        auto& count = p.branches()[s.start() - p.start() - 1];
        const std::uint16_t now = count.load(kRelaxed);
        count.store(now == 65535 ? now : static_cast<std::uint16_t>(now + 1), kRelease);
      }
    }
    if (i % 16 == 0) fault_point(FaultPoint::rebuild_middle);
  }
  std::sort(scratch_words_, scratch_words_ + live);  // by touch
  for (std::uint32_t i = 0; i < live; ++i) {
    const auto id = static_cast<SegmentId>(scratch_words_[i]);
    if (segment(id).head().count > segment(id).floor()) eviction_.link_back(id);
  }
  fault_point(FaultPoint::rebuild_lists);
  control_->live_segments.store(live, kRelease);
  control_->live_blocks.store(blocks, kRelease);
  return true;
}

void Tree::rebuild() noexcept {
  control_->work.rebuilds.fetch_add(1, kRelaxed);
  table_.begin_move();
  ring_.demand_resync();
  const std::uint64_t words = bits_begin_[2] + plan_.slots[2] / 64 + 1;
  std::fill_n(scratch_bits_, words, std::uint64_t{0});
  normalise_heads((control_->intent.load(kRelaxed) & kIntentReset) != 0);
  fault_point(FaultPoint::rebuild_heads);
  do {
    while (drop_orphans()) {
    }
  } while (!relink_tree());
  relink_sides();
  restore_owners();
  arena_.rebuild();
  log_.commit(ring_.head());
  fault_point(FaultPoint::rebuild_done);
}

}  // namespace radixshmem
