// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Slots in the hands of clients: allocate, recycle, and what a dead client leaves.
//
// Every transaction moves at most 64 slots. Killed between two of them: the slots moved so far are
// the (dead) client's and come back when it is reaped. Killed inside one: undone as a whole.
#include <algorithm>

#include "tree/tree.h"

namespace radixshmem {
namespace {
constexpr std::size_t kBatch = 64;
}

std::uint32_t Tree::allocate(Component c, std::span<SlotId> out, ClientId self) noexcept {
  SlotPool& from = pool(c);
  const auto wanted = static_cast<std::uint32_t>(out.size());
  const std::uint32_t owner = client_owner(self);
  if (from.free_count() < wanted) {
    control_->work.demand_evictions[static_cast<std::size_t>(c)].fetch_add(
        1, std::memory_order_relaxed);
    if (c == Component::kFull) {
      if (control_->zombies.load(std::memory_order_relaxed) != 0) (void)sweep();
    } else {
      evict_aux(c, wanted - from.free_count());
      if (from.free_count() < wanted) return 0;
    }
  }
  const std::uint32_t got = std::min(wanted, from.free_count());
  for (std::size_t begin = 0; begin < got; begin += kBatch) {
    const std::size_t count = std::min(kBatch, got - begin);
    from.take(out.subspan(begin, count), owner);
    commit();
  }
  if (got == wanted) return got;
  Grant rest{out.subspan(got), owner};
  evict_until(wanted - got, /*for_segment=*/false, Protected{}, &rest);
  return got + rest.got;
}

void Tree::recycle(Component c, std::span<const std::int32_t> slots) noexcept {
  for (std::size_t begin = 0; begin < slots.size(); begin += kBatch) {
    SlotPool::Freeing freeing(&pool(c));
    freeing.add(slot_ids(slots.subspan(begin, std::min(kBatch, slots.size() - begin))),
                FaultPoint::recycle_owner);
    freeing.finish();
    commit();
  }
}

bool Tree::owned_by_group(Component c, std::int32_t slot, std::uint32_t group) const noexcept {
  if (slot < 0 || static_cast<std::uint32_t>(slot) >= pool(c).size()) return false;
  const std::uint32_t owner = pool(c).owner(static_cast<SlotId>(slot));
  if (!owner_is_client(owner)) return false;
  const ClientId client = owner_client(owner);
  return client < clients_.ids_used() &&
         clients_.entry(client).group.load(std::memory_order_relaxed) == group;
}

std::size_t Tree::first_bad_slot(Component c, std::span<const std::int32_t> slots,
                                 std::uint32_t group, bool gaps) const noexcept {
  for (std::size_t i = 0; i < slots.size();) {
    if (gaps && slots[i] == -1) {
      ++i;
      continue;
    }
    if (!owned_by_group(c, slots[i], group)) return i;
    // Mostly all of them are of one client.
    i = pool(c).first_not_of(pool(c).owner(static_cast<SlotId>(slots[i])), slot_ids(slots), i);
  }
  return slots.size();
}

std::vector<std::int32_t> Tree::slots_of(Component c, std::uint32_t owner) const {
  std::vector<std::int32_t> found;
  for (SlotId slot = 0; slot < pool(c).size(); ++slot) {
    if (pool(c).owner(slot) == owner) found.push_back(static_cast<std::int32_t>(slot));
  }
  return found;
}

std::uint32_t Tree::release_owned(Component c, std::span<const std::int32_t> slots,
                                  std::uint32_t owner, bool to_quarantine) noexcept {
  std::uint32_t released = 0;
  for (std::size_t begin = 0; begin < slots.size(); begin += kBatch) {
    SlotPool::Freeing freeing(&pool(c));
    for (const std::int32_t slot : slots.subspan(begin, std::min(kBatch, slots.size() - begin))) {
      if (pool(c).owner(static_cast<SlotId>(slot)) != owner) continue;
      if (to_quarantine) {
        // Counted first: a count too many makes somebody look, one too few leaves slots behind.
        control_->work.quarantined_slots.fetch_add(1, std::memory_order_relaxed);
        pool(c).set_owner(static_cast<SlotId>(slot), kOwnerQuarantine);
      } else {
        freeing.add(static_cast<SlotId>(slot));
      }
      ++released;
      fault_point(FaultPoint::reap_slots);
    }
    freeing.finish();
    commit();
  }
  return released;
}

}  // namespace radixshmem
