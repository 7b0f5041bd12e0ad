// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The radix tree of an index region: what every mutation and every match works on.
//
// A path is a list of chained prefix hashes, so a block's hash alone names its whole prefix. The
// tree is made of segments (arena/segment.h) found through one table (hash_table.h); SWA and MAMBA
// slots hang at segments in side blocks (side_pool.h). Eviction takes tails of leaves.
//
// Primary words: heads, entries, start, parent, side ids, aux words, owner words, page classes.
// All the rest (table, branch counts, lists, free lists, counts) is derived and can be rebuilt.
//
// Invariants, checked by check() under the lock
//   I1  a slot is in exactly one of: a free list, one entry of one LIVE or ZOMBIE segment (owner
//       TREE), a registered client's hands, SERVER, QUARANTINE
//   I2  LIVE: 1 <= count == hi <= S, no crossing of a multiple of S, each (hash, position) once
//   I3  start > 0 <=> parent; the parent is LIVE and parent.start < start <= parent's end
//   I4  the table has exactly one entry per LIVE segment       I5  branch counts equal the recount
//   I6  in the eviction list <=> LIVE and count > floor
//   I7  per page: free + LIVE + ZOMBIE = all; every page in one list or full
//   I8  no owner word and no pin of a client that is not registered
//   I10 the log is empty, intent none and the table sequence even whenever the lock is free
//   (I9, a validated pin keeps bytes and places, is what the tests with readers check)
//   I11 aux never outlives FULL; a side block has as many slots as it counts, and a segment
//
// Thread safety: Tree is a process-local set of pointers. Calls marked "lock" need the index lock;
// match, window and validate may run in any number of processes at any time.
// What is true after a death between any two steps is told in each .cc file and docs/recovery.md.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "arena/page_arena.h"
#include "base/check.h"
#include "base/error.h"
#include "layout/region_header.h"
#include "slots/slot_pool.h"
#include "sync/change_ring.h"
#include "sync/client_table.h"
#include "sync/undo_log.h"
#include "tree/control.h"
#include "tree/eviction_lap.h"
#include "tree/eviction_list.h"
#include "tree/hash_table.h"
#include "tree/match.h"
#include "tree/side_pool.h"

namespace radixshmem {

struct InsertOutcome {
  ErrorCode error = ErrorCode::OK;
  Position first = 0;  // blocks [first, last) were attached by this call
  Position last = 0;
  // Slots that were given and not used. Empty for BAD_REQUEST, where nothing was looked at.
  std::vector<std::int32_t> unused;
};

class Tree final {
 public:
  // Maps the areas of a region whose header was checked.
  Tree(std::byte* region, const HeaderView& header) noexcept;
  // The parts point at each other.
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  // Requires: a zeroed region nobody else sees.
  void init() noexcept;

  [[nodiscard]] const IndexPlan& plan() const noexcept { return plan_; }
  [[nodiscard]] const IndexLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] RegionHeader& header() const noexcept {
    return *reinterpret_cast<RegionHeader*>(region_);
  }
  [[nodiscard]] std::byte* area(AreaKind kind) const noexcept {
    return region_ + layout_.area(kind).offset;
  }
  [[nodiscard]] Control& control() const noexcept { return *control_; }
  [[nodiscard]] ClientTable& clients() noexcept { return clients_; }
  [[nodiscard]] const ClientTable& clients() const noexcept { return clients_; }
  [[nodiscard]] const ChangeRing& ring() const noexcept { return ring_; }
  [[nodiscard]] UndoLog& log() noexcept { return log_; }
  [[nodiscard]] const PageArena& arena() const noexcept { return arena_; }
  [[nodiscard]] const HashTable& table() const noexcept { return table_; }
  [[nodiscard]] const SidePool& sides() const noexcept { return sides_; }
  // Returns: which words of a side block are of `c`. Requires: c is SWA or MAMBA.
  [[nodiscard]] std::uint32_t aux_index(Component c) const noexcept {
    return c == Component::kMamba && enabled(Component::kSwa) ? 1 : 0;
  }
  [[nodiscard]] SlotPool& pool(Component c) noexcept { return pools_[static_cast<std::size_t>(c)]; }
  [[nodiscard]] const SlotPool& pool(Component c) const noexcept {
    return pools_[static_cast<std::size_t>(c)];
  }
  [[nodiscard]] bool enabled(Component c) const noexcept { return pool(c).size() != 0; }
  [[nodiscard]] std::uint32_t segment_blocks() const noexcept {
    return layout_.classes.segment_blocks;
  }
  [[nodiscard]] std::uint32_t clock() const noexcept {
    return control_->clock.load(std::memory_order_relaxed);
  }

  // ---- readers (match.cc, aux_match.cc), no lock
  // Walks `hashes`, which lie at positions from.position.. of their path (0 without a cursor), and
  // copies the slots of the matched blocks to `slots` (room for hashes.size()).
  // Returns: false when the cursor's segment has changed.
  bool match(std::span<const BlockHash> hashes, const CursorPoint* from, std::int32_t* slots,
             Match& out) const;
  // Shortens `match` to the deepest length that satisfies the windows of `mask`, and reads their
  // slots. Requires: match started at the root.
  void window(std::uint32_t mask, Match& match, Window& out) const;
  // Reads, for each block of [from, match.end), the slot of `c` that it has, -1 where it has none.
  // An answer does not rest on the -1: a slot may appear there at any time.
  // Requires: c is SWA or MAMBA, and enabled; match started at the root.
  void aux_slots(Component c, Position from, Match& match, Window& out) const;
  // Returns: whether every version, side id and aux word that was used is still the same. An
  // eviction that only looked at an entry changes its version too.
  [[nodiscard]] bool validate(const Match& match, const Window& window) const noexcept;
  // Returns: whether what a pin protects is still in the tree; a reset takes it out.
  // Requires: match is not empty, its pins are published and were validated once.
  [[nodiscard]] bool stands(const Match& match) const noexcept;
  void touch(const Match& match, const Window& window) const noexcept;

  // ---- slots (slots.cc), lock
  // Fills `out` with slots now owned by `self`; evicts as needed. FULL may be short, and is then
  // maximal; the others are all or none. Returns: how many.
  std::uint32_t allocate(Component c, std::span<SlotId> out, ClientId self) noexcept;
  // Requires: first_bad_slot() found none, and no slot is named twice.
  void recycle(Component c, std::span<const std::int32_t> slots) noexcept;
  // Returns: whether `slot` is in range and in the hands of a client of `group`.
  [[nodiscard]] bool owned_by_group(Component c, std::int32_t slot,
                                    std::uint32_t group) const noexcept;
  // Returns: the index of the first slot that is not; slots.size() when all are. -1 is allowed
  // where `gaps`.
  [[nodiscard]] std::size_t first_bad_slot(Component c, std::span<const std::int32_t> slots,
                                           std::uint32_t group, bool gaps) const noexcept;
  // Returns: slots of `c` whose owner word is `owner`. No lock needed; a snapshot.
  [[nodiscard]] std::vector<std::int32_t> slots_of(Component c, std::uint32_t owner) const;
  // Moves slots from `owner` (checked again) to quarantine, or frees them. Returns: how many.
  std::uint32_t release_owned(Component c, std::span<const std::int32_t> slots, std::uint32_t owner,
                              bool to_quarantine) noexcept;

  // Asks for what an insert of this path is going to look at first. No lock needed.
  void prefetch(std::span<const BlockHash> hashes) const noexcept;

  // ---- mutations, lock
  // slots[i] is for the block at start + i; `hashes` is the path up to the last of them.
  // Requires for both: no slot is named twice. Nothing is allocated here: `slots` becomes `unused`.
  [[nodiscard]] InsertOutcome insert(std::span<const BlockHash> hashes,
                                     std::vector<std::int32_t> slots, Position start,
                                     std::uint32_t group) noexcept;
  // `slots` are right-aligned on the end of `hashes`; -1 keeps what is there.
  [[nodiscard]] InsertOutcome insert_aux(Component c, std::span<const BlockHash> hashes,
                                         std::vector<std::int32_t> slots,
                                         std::uint32_t group) noexcept;
  // Returns: how many slots were freed, at least min(wanted, what is evictable).
  std::uint32_t evict(std::uint32_t wanted) noexcept;
  std::uint32_t evict_aux(Component c, std::uint32_t wanted) noexcept;
  void reset() noexcept;
  // Frees segments that a reset left behind and no pin protects any more. Returns: false when it
  // cannot tell: a pinned segment has lost its ancestors, so that any FULL block may be pinned.
  bool sweep() noexcept;

  // ---- recovery (recover.cc, rebuild.cc), lock
  // The first thing after taking a dead owner's lock. Idempotent, may itself be killed.
  void recover() noexcept;
  // Full rebuild of everything derived.
  void repair() noexcept;
  // Staging slots of a dead server: nobody knows whether a transfer still writes them.
  void quarantine_server_slots() noexcept;

  // ---- inspection (check.cc), lock
  [[nodiscard]] std::vector<std::string> check() const;

 private:
  friend class TreeInspector;  // tests and dump: reads derived state

  struct Walk {
    SegmentId deepest = 0;  // 0 when nothing matched
    Position matched = 0;   // blocks
    bool parent_differs = false;
  };
  struct Victim {
    SegmentId segment = 0;  // 0 = rolled back
    std::uint32_t count = 0;
    std::uint32_t keep = 0;
  };
  static constexpr std::uint32_t kMaxVictims = 16;
  // What one transaction frees, by component.
  using FreeingSet = std::array<SlotPool::Freeing, kComponents>;
  [[nodiscard]] FreeingSet begin_freeing() noexcept {
    return {SlotPool::Freeing(&pools_[0]), SlotPool::Freeing(&pools_[1]),
            SlotPool::Freeing(&pools_[2])};
  }
  static void finish(FreeingSet& freeing) noexcept {
    for (SlotPool::Freeing& f : freeing) f.finish();
  }
  // FULL slots of one segment, copied out of it.
  class SlotRun final {
   public:
    SlotRun(Segment from, std::uint32_t first, std::uint32_t count) noexcept : count_(count) {
      RADIX_CHECK(count <= slots_.size(), count);
      from.read_slots(first, std::span(slots_).first(count));
    }
    [[nodiscard]] std::span<const SlotId> ids() const noexcept {
      return slot_ids(std::span(slots_).first(count_));
    }

   private:
    std::array<std::int32_t, kMaxSegmentBlocks> slots_;
    std::uint32_t count_;
  };
  // Where evicted FULL slots go instead of the free list.
  struct Grant {
    std::span<SlotId> out;  // room for all that is wanted
    std::uint32_t owner = 0;
    std::uint32_t got = 0;
  };
  // What one insert must not evict while it looks for a free segment.
  struct Protected {
    SegmentId segment = 0;
    std::uint32_t depth = 0;
  };

  void commit() noexcept { log_.commit(ring_.head()); }
  void abort() noexcept;
  [[nodiscard]] Segment segment(SegmentId id) const noexcept { return arena_.segment(id); }
  [[nodiscard]] std::uint32_t victim_log_entries() const noexcept {
    return 6 * segment_blocks() + 96;
  }

  // insert.cc
  [[nodiscard]] Walk walk(std::span<const BlockHash> hashes) const noexcept;
  // slots[i] is for the block at + i. Returns: the end of what the segment had room for.
  [[nodiscard]] Position append(SegmentId id, std::span<const BlockHash> hashes,
                                std::span<const SlotId> slots, Position at) noexcept;
  // Returns: 0 when the table has no place for it.
  [[nodiscard]] SegmentId add_segment(SegmentId parent, std::uint32_t size_class,
                                      std::span<const BlockHash> hashes,
                                      std::span<const SlotId> slots, Position at) noexcept;
  [[nodiscard]] std::uint32_t choose_class(SegmentId deepest, Position at,
                                           std::uint32_t blocks) const noexcept;
  [[nodiscard]] std::uint32_t available_class(std::uint32_t wanted) const noexcept;
  void grow_table() noexcept;
  // slots[i] is for the block at found.matched + i. Returns: the end of what was attached.
  [[nodiscard]] Position attach(std::span<const BlockHash> hashes, std::span<const SlotId> slots,
                                const Walk& found) noexcept;
  void change_children(SegmentId parent, Position child_start, int delta) noexcept;
  void publish_stored(SegmentId id, std::span<const BlockHash> hashes, Position at,
                      Position end) noexcept;
  void count_live(int segments, std::int64_t blocks) noexcept;

  // evict.cc
  std::uint32_t evict_until(std::uint32_t wanted, bool for_segment, Protected keep,
                            Grant* grant) noexcept;
  [[nodiscard]] std::uint32_t choose_victims(std::uint32_t wanted, bool for_segment, Protected keep,
                                             std::array<Victim, kMaxVictims>& out,
                                             EvictionLap& lap) noexcept;
  void truncate(std::span<const Victim> batch) noexcept;
  // Takes pinned segments out of the batch; gives them their count back if they were truncated.
  void spare_pinned(std::span<Victim> batch, bool truncated, EvictionLap& lap) noexcept;
  [[nodiscard]] std::uint32_t free_victim(const Victim& victim, Grant* grant) noexcept;
  // Notes the depth of pins whose mask has one of the components of `mask`.
  void collect_pins(std::uint32_t mask) noexcept;
  [[nodiscard]] std::uint32_t pinned_depth(SegmentId id) const noexcept;
  // Calls visit(segment, depth, mask) for every pin, with live ancestors of pinned zombies.
  template <typename Visit>
  void scan_protection(Visit visit) const noexcept;

  // aux_insert.cc, aux_evict.cc
  [[nodiscard]] std::uint32_t aux_pools() const noexcept {
    return (enabled(Component::kSwa) ? 1u : 0u) + (enabled(Component::kMamba) ? 1u : 0u);
  }
  [[nodiscard]] Component aux_component(std::uint32_t index) const noexcept {
    return index == 0 && enabled(Component::kSwa) ? Component::kSwa : Component::kMamba;
  }
  // Cuts the aux of entries [from, to) of a segment inside the caller's transaction.
  void free_aux(SegmentId id, std::uint32_t from, std::uint32_t to, bool publish,
                FreeingSet& freeing) noexcept;
  void detach_side(SideId id) noexcept;
  // Attaches `slot` to an entry that has none. Returns: false when no side block could be had.
  [[nodiscard]] bool attach_aux(Component c, SegmentId id, const Change& stored, SlotId slot,
                                SegmentId deepest) noexcept;
  // Segments from `deepest` up to, not including, `end`: where an insert has just put slots.
  struct OwnWindow {
    SegmentId deepest = 0;
    SegmentId end = 0;
  };
  // Words chosen to be cleared together, and the side blocks they are in.
  struct AuxBatch {
    static constexpr std::uint32_t kMaxBlocks = 8;
    static constexpr std::uint32_t kMaxWords = 2 * kMaxSegmentBlocks;
    struct Word {
      SideId side = 0;  // 0 = pinned, taken out again
      std::uint32_t pool = 0;
      std::uint32_t entry = 0;
      std::uint64_t old = 0;
    };
    std::array<Word, kMaxWords> word;
    std::array<SideId, kMaxBlocks> block;
    std::uint32_t words = 0;
    std::uint32_t blocks = 0;
    SideId cut_short = 0;  // has more to give: stays in front
    [[nodiscard]] std::span<Word> taken() noexcept { return {word.data(), words}; }
  };
  [[nodiscard]] static std::uint64_t cleared_aux(std::uint64_t word) noexcept {
    return mutant(Mutant::kNoAuxVersionBump) ? (word >> 32) << 32 : AuxWord::absent_after(word);
  }
  [[nodiscard]] std::uint32_t aux_mask(std::uint32_t index) const noexcept {
    return 1u << static_cast<std::uint32_t>(aux_component(index));
  }
  std::uint32_t evict_aux_until(Component c, std::uint32_t wanted, bool for_side,
                                OwnWindow keep) noexcept;
  [[nodiscard]] std::uint32_t spared_depth(SegmentId holder, OwnWindow keep) const noexcept;
  void choose_words(std::uint32_t list, std::uint32_t wanted, bool for_side, OwnWindow keep,
                    AuxBatch& batch, EvictionLap& lap) noexcept;
  void spare_pinned_words(AuxBatch& batch, bool hidden) noexcept;
  // Returns: whether any word was not spared.
  bool free_words(AuxBatch& batch) noexcept;
  void requeue_sides(const AuxBatch& batch, bool any_went) noexcept;

  // rebuild.cc
  void rebuild() noexcept;
  void normalise_heads(bool to_zombie) noexcept;
  // Returns: whether the parent that `child` names can be its parent (I3, dead or alive).
  [[nodiscard]] bool parent_fits(Segment child) const noexcept;
  [[nodiscard]] bool drop_orphans() noexcept;
  [[nodiscard]] bool relink_tree() noexcept;
  void relink_sides() noexcept;
  void restore_owners() noexcept;
  [[nodiscard]] bool mark_slot(Component c, SlotId slot) noexcept;
  [[nodiscard]] bool slot_marked(Component c, SlotId slot) const noexcept;

  // reset.cc
  void link_zombie(SegmentId id) noexcept;
  void free_zombie(SegmentId id) noexcept;

  std::byte* region_;
  IndexPlan plan_;
  IndexLayout layout_;
  Control* control_;
  UndoLog log_;
  ChangeRing ring_;
  ClientTable clients_;
  PageArena arena_;
  std::array<SlotPool, kComponents> pools_;
  HashTable table_;
  EvictionList eviction_;
  SidePool sides_;
  std::uint64_t* scratch_words_;  // one per arena unit
  std::uint64_t* scratch_bits_;   // one bit per slot
  std::array<std::uint64_t, kComponents> bits_begin_{};

  // Pins seen before truncating: open addressing, cleared by epoch. Only a filter: pins that do
  // not fit are found by the scan after truncating.
  struct PinFilterEntry {
    SegmentId segment = 0;
    std::uint32_t depth = 0;
    std::uint64_t epoch = 0;
  };
  std::vector<PinFilterEntry> pin_filter_;
  std::uint64_t pin_filter_epoch_ = 0;
};

template <typename Visit>
void Tree::scan_protection(Visit visit) const noexcept {
  const bool zombies = control_->zombies.load(std::memory_order_relaxed) != 0;
  clients_.scan_pins([&](ClientId, PinWord pin) {
    if (!arena_.valid(pin.segment)) return;
    visit(pin.segment, pin.depth, pin.mask);
    if (!zombies || mutant(Mutant::kZombieForgetsAncestor)) return;
    if (segment(pin.segment).head().state != SegmentState::kZombie) return;
    // A pinned segment that a reset cut off still needs its ancestors' slots.
    SegmentId id = segment(pin.segment).parent();
    for (std::uint32_t hops = 0; arena_.valid(id) && hops < arena_.units(); ++hops) {
      const SegmentHead head = segment(id).head();
      if (head.live()) visit(id, head.owned, pin.mask);
      if (head.state != SegmentState::kZombie) break;
      id = segment(id).parent();
    }
  });
}

}  // namespace radixshmem
