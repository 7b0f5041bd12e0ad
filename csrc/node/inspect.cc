// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "node/inspect.h"

#include "base/memory_orders.h"
#include "node/call.h"

namespace radixshmem {
namespace {

constexpr const char* kCounterNames[kCounters] = {
    "queries",       "queried_blocks", "hit_blocks",      "missed_blocks",   "query_restarts",
    "query_gave_up", "inserts",        "inserted_blocks", "allocated_slots", "recycled_slots",
    "busy",          "pins_full",      "lock_takeovers"};

using Figures = std::vector<Figure>;

void add_counters(Figures& out, const Tree& tree) {
  for (std::size_t c = 0; c < kCounters; ++c) {
    out.emplace_back(kCounterNames[c], tree.clients().total(static_cast<Counter>(c)));
  }
}

void add_work(Figures& out, const Control& control) {
  const WorkCounters& work = control.work;
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, const std::atomic<std::uint64_t>*>>{
           {"eviction_victims", &work.eviction_victims},
           {"eviction_steps", &work.eviction_steps},
           {"eviction_rollbacks", &work.eviction_rollbacks},
           {"evicted_blocks", &work.evicted_blocks},
           {"recoveries", &work.recoveries},
           {"recoveries_undone", &work.recoveries_undone},
           {"recoveries_committed", &work.recoveries_committed},
           {"rebuilds", &work.rebuilds},
           {"resets", &work.resets},
           {"table_moves", &work.table_moves},
           {"table_growths", &work.table_growths},
           {"quarantined_slots", &work.quarantined_slots},
           {"ring_head", &control.ring.head},
           {"ring_overflows", &control.ring.overflow}}) {
    out.emplace_back(name, value->load(kRelaxed));
  }
}

// What the index holds now.
void add_contents(Figures& out, const Tree& tree) {
  const Control& control = tree.control();
  out.emplace_back("blocks", control.live_blocks.load(kRelaxed));
  out.emplace_back("segments", control.live_segments.load(kRelaxed));
  out.emplace_back("zombies", control.zombies.load(kRelaxed));
  constexpr const char* kTotals[] = {"full_slots", "swa_slots", "mamba_slots"};
  constexpr const char* kFree[] = {"full_free", "swa_free", "mamba_free"};
  constexpr const char* kDemand[] = {"full_demand_evictions", "swa_demand_evictions",
                                     "mamba_demand_evictions"};
  for (const Component c : kAllComponents) {
    const auto k = static_cast<std::size_t>(c);
    out.emplace_back(kTotals[k], tree.pool(c).size());
    out.emplace_back(kFree[k], tree.pool(c).free_count());
    out.emplace_back(kDemand[k], control.work.demand_evictions[k].load(kRelaxed));
  }
  std::uint64_t clients = 0;
  for (ClientId id = 0; id < tree.clients().ids_used(); ++id) {
    clients += tree.clients().state(id) == ClientState::kLive ? 1u : 0u;
  }
  std::uint64_t pins = 0;
  tree.clients().scan_pins([&](ClientId, PinWord) { ++pins; });
  out.emplace_back("clients", clients);
  out.emplace_back("pins", pins);
}

void add_bytes(Figures& out, const Tree& tree) {
  const IndexLayout& layout = tree.layout();
  const auto reserved = [&](AreaKind kind) { return layout.area(kind).bytes; };
  const std::uint64_t page_bytes = std::uint64_t{kPageUnits} * kUnitBytes;
  const std::uint64_t arena = tree.arena().pages_in_use() * page_bytes;
  const std::uint64_t table = std::uint64_t{tree.table().lines_in_use()} * kCacheLine;
  std::uint64_t owners = 0;
  for (const Component c : kAllComponents) owners += std::uint64_t{tree.pool(c).size()} * 4;
  std::uint64_t sides = 0;
  if (layout.side_blocks != 0) {
    const std::uint32_t unused = tree.control().sides.free_count.load(kRelaxed);
    sides = std::uint64_t{layout.side_blocks - 1 - unused} * layout.side_bytes;
  }
  out.emplace_back("region_bytes", layout.region_bytes);
  out.emplace_back("peer_readable_bytes", layout.peer_readable_bytes);
  out.emplace_back("index_bytes_in_use", arena + table + owners + sides);
  out.emplace_back("arena_bytes_in_use", arena);
  out.emplace_back("arena_bytes_reserved", reserved(AreaKind::kArena));
  out.emplace_back("table_bytes_in_use", table);
  out.emplace_back("table_bytes_reserved", reserved(AreaKind::kTable));
  out.emplace_back("side_bytes_in_use", sides);
  out.emplace_back("side_bytes_reserved", reserved(AreaKind::kSideBlocks));
  out.emplace_back("owner_bytes", owners);
  out.emplace_back("pin_bytes", reserved(AreaKind::kPins));
  out.emplace_back("ring_bytes", reserved(AreaKind::kRing));
}

}  // namespace

Result<std::vector<Figure>> figures(const Session& session) {
  const Session::Call call(session);
  if (!call.mapped()) return session.refusal(call.code());
  const Tree& tree = session.tree();
  Figures out;
  add_counters(out, tree);
  add_work(out, tree.control());
  add_contents(out, tree);
  add_bytes(out, tree);
  return out;
}

Result<std::vector<SegmentInfo>> dump(Session& session, std::size_t most) {
  const Session::Call call(session);
  if (!call) return session.refusal(call.code());
  if (session.read_only()) {
    return Error{ErrorCode::INVALID_ARGUMENT, "dump takes the writer lock: not read-only"};
  }
  std::vector<SegmentInfo> out;
  const bool done = session.locked([&] {
    session.tree().arena().for_each([&](SegmentId id, Segment segment) {
      const SegmentHead head = segment.head();
      if (head.state == SegmentState::kFree || out.size() >= most) return;
      SegmentInfo info{id,
                       segment->size_class.load(kRelaxed),
                       head.state,
                       segment.start(),
                       head.count,
                       segment.parent(),
                       segment.children(),
                       segment->touch.load(kRelaxed),
                       segment.hash(0),
                       {}};
      for (std::uint32_t i = 0; i < head.count; ++i) {
        info.slots.push_back(static_cast<std::int32_t>(segment.slot(i)));
      }
      out.push_back(std::move(info));
    });
  });
  if (!done) return Error{ErrorCode::TIMEOUT, "dump: the writer lock is busy: try later"};
  return out;
}

Result<std::vector<PinInfo>> list_pins(const Session& session) {
  const Session::Call call(session);
  if (!call.mapped()) return session.refusal(call.code());
  const Tree& tree = session.tree();
  std::vector<PinInfo> out;
  tree.clients().scan_pins([&](ClientId client, PinWord pin) {
    const bool known = tree.arena().valid(pin.segment);
    out.push_back({client, pin.segment, pin.depth, pin.mask,
                   known ? tree.arena().segment(pin.segment).start() : 0});
  });
  return out;
}

Result<std::vector<ClientInfo>> list_clients(const Session& session) {
  const Session::Call call(session);
  if (!call.mapped()) return session.refusal(call.code());
  const Tree& tree = session.tree();
  const ClientTable& table = tree.clients();
  std::vector<std::uint32_t> slots(table.ids_used());
  for (const Component c : kAllComponents) {
    for (SlotId slot = 0; slot < tree.pool(c).size(); ++slot) {
      const std::uint32_t owner = tree.pool(c).owner(slot);
      if (owner_is_client(owner) && owner_client(owner) < slots.size()) {
        ++slots[owner_client(owner)];
      }
    }
  }
  std::vector<std::uint32_t> pins(table.ids_used());
  table.scan_pins([&](ClientId client, PinWord) {
    if (client < pins.size()) ++pins[client];
  });
  std::vector<ClientInfo> out;
  for (ClientId id = 0; id < slots.size(); ++id) {
    const ClientState state = table.state(id);
    if (state == ClientState::kFree) continue;
    const ClientEntry& entry = table.entry(id);
    const bool own = id == session.client_id() && !session.read_only();
    ClientInfo info{id,
                    state,
                    entry.generation.load(kRelaxed),
                    entry.group.load(kRelaxed),
                    entry.pid.load(kRelaxed),
                    own || session.live().held_elsewhere(id),
                    entry.exited.load(kRelaxed) != 0,
                    pins[id],
                    slots[id],
                    {}};
    for (std::size_t c = 0; c < kCounters; ++c) {
      info.counters.emplace_back(kCounterNames[c], entry.counters[c].load(kRelaxed));
    }
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace radixshmem
