// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Calls of the model driver that change the index, each answer predicted from the model.
#include <algorithm>
#include <unordered_map>

#include "tests/node/model_driver.h"

namespace radixshmem {
namespace {

Slots ids(const auto& held) {
  Slots slots;
  for (const auto& h : held) slots.push_back(h.slot);
  return slots;
}

}  // namespace

std::uint32_t ModelDriver::aux_evictable(Component c) {
  // Slots of side blocks, but those in entries that a pin of the component covers.
  Tree& tree = rig_.own().tree();
  std::unordered_map<SegmentId, std::uint32_t> covered;
  tree.clients().scan_pins([&](ClientId, PinWord pin) {
    if ((pin.mask >> static_cast<std::uint32_t>(c) & 1) == 0) return;
    std::uint32_t& depth = covered[pin.segment];
    depth = std::max(depth, pin.depth);
  });
  const IndexLayout& layout = tree.layout();
  const std::byte* at = reinterpret_cast<const std::byte*>(&tree.header()) +
                        layout.area(AreaKind::kSideBlocks).offset;
  const std::uint32_t s = tree.segment_blocks();
  const std::uint32_t pool = c == Component::kMamba && tree.enabled(Component::kSwa) ? 1 : 0;
  std::uint32_t count = 0;
  for (SideId id = 1; id < layout.side_blocks; ++id) {
    const std::byte* block = at + std::uint64_t{id} * layout.side_bytes;
    const SegmentId holder = reinterpret_cast<const SideHeader*>(block)->segment.load();
    if (holder == 0 || !tree.arena().segment(holder).head().live()) continue;
    const auto* words =
        reinterpret_cast<const std::atomic<std::uint64_t>*>(block + kSideHeaderBytes) + pool * s;
    const auto depth = covered.find(holder);
    for (std::uint32_t i = depth == covered.end() ? 0 : depth->second; i < s; ++i) {
      count += AuxWord::present(words[i].load()) ? 1u : 0u;
    }
  }
  return count;
}

void ModelDriver::do_allocate() {
  const std::size_t s = below(kSessions);
  const Component c = kAll[below(3)];
  if (!rig_.own().tree().enabled(c)) return;
  const std::uint32_t size = rig_.plan().slots[static_cast<std::size_t>(c)];
  const std::uint32_t most = below(50) == 0 ? size : std::max(1u, size / 12);
  const std::uint32_t n = below(most + 1);
  if (held_total(c) > size / 2) return;
  const std::uint32_t free = free_now(c);
  const std::uint32_t evictable = free >= n               ? 0
                                  : c == Component::kFull ? model_.evictable()
                                                          : aux_evictable(c);
  const Slots got = allocate(sessions_[s], n, c);
  fetch_events();
  const std::uint64_t before = c == Component::kFull ? seen_.evicted : seen_.aux_evicted;
  apply_removals();
  if (!events_.empty()) fail("allocate: an event that is no removal");
  const std::uint64_t taken = (c == Component::kFull ? seen_.evicted : seen_.aux_evicted) - before;
  const std::uint32_t missing = n > free ? n - free : 0;
  const bool enough = evictable >= missing;
  const std::uint32_t expected = enough ? n : c == Component::kFull ? free + evictable : 0;
  if (got.size() != expected || taken != std::min(missing, evictable)) {
    fail("allocate " + std::to_string(n) + " of component " + std::to_string(static_cast<int>(c)) +
         ": got " + std::to_string(got.size()) + " of expected " + std::to_string(expected) +
         ", evicted " + std::to_string(taken) + ", free were " + std::to_string(free) +
         ", evictable " + std::to_string(evictable));
  }
  if (!enough) ++(c == Component::kFull ? seen_.short_allocations : seen_.aux_refused);
  for (const auto& pinned : pinned_) {
    if (got.empty() || below(8) != 0) break;
    for (const std::int32_t slot : pinned->slots[static_cast<std::size_t>(c)]) {
      if (std::find(got.begin(), got.end(), slot) != got.end()) fail("allocated a pinned slot");
    }
  }
  for (const std::int32_t slot : got) held(s, c).push_back({slot, s});
}

void ModelDriver::expect_outcome(const char* call, const InsertOutcome& outcome,
                                 const InsertOutcome& expected) {
  if (outcome.error == expected.error && outcome.unused == expected.unused &&
      outcome.first == expected.first && outcome.last == expected.last) {
    return;
  }
  const auto text = [](const InsertOutcome& o) {
    return std::string(error_name(o.error)) + " [" + std::to_string(o.first) + ", " +
           std::to_string(o.last) + ")";
  };
  fail(std::string(call) + ": " + text(outcome) + ", expected " + text(expected));
}

Position ModelDriver::follow_insert(const Path& path, const Slots& slots, Position start,
                                    Position from, ModelBlock*& parent) {
  const auto n = static_cast<Position>(path.size());
  Position at = from;
  // Own path: an eviction for segments must not take it.
  while (!events_.empty() && !failed_) {
    if (parent != nullptr) model_.pin(parent);
    if (events_.front().kind == ChangeKind::kRemoved) ++seen_.segment_evictions;
    apply_removals();
    if (parent != nullptr) model_.unpin(parent);
    if (events_.empty()) break;
    const Change& change = events_.front();
    if (change.kind != ChangeKind::kStored || change.component != Component::kFull || at >= n ||
        change.hash != path[at] || change.position != at ||
        change.parent != (at > 0 ? path[at - 1] : BlockHash{0})) {
      fail("insert: a wrong event");
      break;
    }
    model_.add(path[at], at, parent, slots[at - start]);
    parent = model_.find(path[at], at);
    events_.pop_front();
    ++at;
  }
  return at;
}

void ModelDriver::do_insert() {
  const std::size_t s = below(kSessions);
  Path path = random_path();
  std::vector<ModelBlock*> found = model_.walk(path);
  const auto matched = static_cast<Position>(found.size());
  // Mostly where the known path ends, sometimes before, sometimes behind.
  Position start = matched;
  if (below(4) == 0) start = below(static_cast<std::uint32_t>(path.size()) + 1);
  const std::vector<Held> mine = take_held(s, Component::kFull, path.size() - start);
  const Slots slots = ids(mine);
  path.resize(start + slots.size());
  const auto n = static_cast<Position>(path.size());
  const bool recycle = below(2) == 0;
  (void)free_now(Component::kFull);  // frees what a reset left, so that counts are exact
  const InsertOutcome outcome = insert(sessions_[s], path, slots, start, recycle);
  fetch_events();
  const auto keep = [&](const Slots& unused) {  // unused slots stay the caller's or were recycled
    if (recycle) return;
    for (const std::int32_t slot : unused) {
      const auto at =
          std::find_if(mine.begin(), mine.end(), [&](const Held& h) { return h.slot == slot; });
      if (at == mine.end()) {
        fail("insert: an unused slot that was not given");
      } else {
        held(s, Component::kFull).push_back(*at);
      }
    }
  };
  if (matched < start) {
    ++seen_.path_missing;
    if (outcome.error != ErrorCode::FULL_PATH_MISSING || outcome.unused != slots ||
        outcome.first != outcome.last || !events_.empty()) {
      fail("insert behind a gap");
    }
    keep(outcome.unused);
    return;
  }
  const Position from = std::min(matched, n);
  Slots unused(slots.begin(), slots.begin() + (from - start));
  ModelBlock* parent = from > 0 ? found[from - 1] : nullptr;
  const Position at = follow_insert(path, slots, start, from, parent);
  if (failed_) return;
  seen_.attached += at - from;
  seen_.unused += unused.size();
  unused.insert(unused.end(), slots.begin() + (at - start), slots.end());
  const ErrorCode expected = at == n ? ErrorCode::OK : ErrorCode::MEMPOOL_FULL;
  expect_outcome("insert", outcome, {expected, from, at, unused});
  if (at < n) {
    ++seen_.mempool_full;
    if (parent != nullptr) model_.pin(parent);
    if (model_.evictable() != 0) fail("MEMPOOL_FULL while there is something to evict");
    if (parent != nullptr) model_.unpin(parent);
  }
  keep(outcome.unused);
}

InsertOutcome ModelDriver::follow_insert_aux(Component c, const Path& path, const Slots& slots,
                                             const std::vector<ModelBlock*>& found) {
  const auto k = static_cast<std::size_t>(c);
  const auto n = static_cast<Position>(path.size());
  const Position first = n - static_cast<Position>(slots.size());
  InsertOutcome predicted{ErrorCode::OK, n, n, slots};
  for (Position p = n; p-- > first && !failed_;) {
    const std::int32_t slot = slots[p - first];
    if (slot == -1) continue;
    if (found[p]->slot[k] < 0) {  // a side block may have to be freed
      seen_.side_evictions += !events_.empty() && events_.front().kind == ChangeKind::kRemoved;
      apply_removals();
    }
    const bool stored = !events_.empty() && events_.front().kind == ChangeKind::kStored &&
                        events_.front().hash == path[p] && events_.front().component == c;
    if (found[p]->slot[k] >= 0) continue;
    if (!stored) {
      predicted.error = ErrorCode::MEMPOOL_FULL;
      ++seen_.mempool_full;
      break;
    }
    events_.pop_front();
    model_.add_aux(*found[p], c, slot);
    predicted.unused[p - first] = -1;
    if (predicted.first == predicted.last) predicted.last = p + 1;
    predicted.first = p;
  }
  return predicted;
}

void ModelDriver::do_insert_aux() {
  const std::size_t s = below(kSessions);
  const Component c = below(3) == 0 ? Component::kMamba : Component::kSwa;
  if (!rig_.own().tree().enabled(c)) return;
  const auto k = static_cast<std::size_t>(c);
  Path path = random_path();
  const auto known = static_cast<std::uint32_t>(model_.walk(path).size());
  if (known == 0) return;
  if (below(10) != 0) path.resize(1 + below(known));
  const auto n = static_cast<Position>(path.size());
  const std::uint32_t most = c == Component::kMamba ? 1 : rig_.plan().swa_window_blocks;
  const std::uint32_t wanted = below(2) == 0 ? 1 : most;
  const std::vector<Held> mine = take_held(s, c, std::min<std::size_t>(wanted, n));
  if (mine.empty()) return;
  Slots slots = ids(mine);
  std::vector<Held> spared;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots.size() > 1 && below(6) == 0) {
      spared.push_back(mine[i]);
      slots[i] = -1;
    }
  }
  put_back(s, c, spared);
  const Position start = c == Component::kMamba && below(2) == 0 ? n - 1 : 0;
  const bool recycle = below(2) == 0;
  const std::vector<ModelBlock*> found = model_.walk(path);
  const InsertOutcome outcome = insert(sessions_[s], path, slots, start, recycle, c);
  fetch_events();
  InsertOutcome predicted{ErrorCode::FULL_PATH_MISSING, n, n, slots};
  if (found.size() < n) {
    ++seen_.path_missing;
  } else {
    predicted = follow_insert_aux(c, path, slots, found);
    apply_removals();
  }
  std::erase(predicted.unused, -1);
  if (!events_.empty()) fail("insert of aux: an unexpected event");
  expect_outcome("insert of aux", outcome, predicted);
  if (failed_) return;
  const auto& [error, low, high, unused] = predicted;
  if (low < high && (found[low]->slot[k] < 0 || found[high - 1]->slot[k] < 0)) {
    fail("insert of aux: what landed was evicted by the same call");
  }
  seen_.unused += unused.size();
  if (recycle) return;
  for (const Held& h : mine) {
    if (std::find(unused.begin(), unused.end(), h.slot) != unused.end()) held(s, c).push_back(h);
  }
}

void ModelDriver::do_bad_request() {
  const std::size_t s = below(kSessions);
  const Path path = random_path();
  std::vector<Held> mine = take_held(s, Component::kFull, path.size());
  if (mine.empty()) return;
  Slots slots = ids(mine);
  Position start = 0;
  Component c = Component::kFull;
  switch (below(6)) {
    case 0: {  // a slot of the other group
      const auto& theirs = held_[1 - group_of(s)][0];
      if (theirs.empty())
        slots[0] = -1;
      else
        slots[0] = theirs[below(static_cast<std::uint32_t>(theirs.size()))].slot;
      break;
    }
    case 1:  // a slot of the tree
      if (model_.blocks().empty())
        slots[0] = -2;
      else
        slots[0] = model_.blocks().begin()->second->slot[0];
      break;
    case 2:  // beyond the pool
      slots.back() = static_cast<std::int32_t>(rig_.plan().slots[0]);
      break;
    case 3:  // one slot twice
      slots.push_back(slots[0]);
      break;
    case 4:  // more slots than blocks
      start = static_cast<Position>(path.size()) - static_cast<Position>(slots.size()) + 1;
      break;
    default:  // a start where SWA has none, or a component that is not there
      c = Component::kSwa;
      start = 1;
      break;
  }
  const InsertOutcome outcome = insert(sessions_[s], path, slots, start, true, c);
  if (outcome.error != ErrorCode::BAD_REQUEST || !outcome.unused.empty() ||
      outcome.first != outcome.last) {
    fail(std::string("a bad insert gave ") + error_name(outcome.error));
  }
  if (c == Component::kFull && slots != ids(mine) &&
      sessions_[s]->recycle(slots, Component::kFull).ok()) {
    fail("a bad recycle was accepted");
  }
  ++seen_.bad_request;
  expect_no_events();
  put_back(s, Component::kFull, mine);
}

void ModelDriver::do_recycle() {
  const std::size_t s = below(kSessions);
  const Component c = kAll[below(3)];
  if (!rig_.own().tree().enabled(c)) return;
  const std::vector<Held> mine = take_held(s, c, below(20));
  const auto done = sessions_[s]->recycle(ids(mine), c);
  if (!done.ok()) fail("recycle: " + done.error().message);
  expect_no_events();
}

void ModelDriver::do_evict() {
  const Component c = kAll[below(3)];
  if (!rig_.own().tree().enabled(c)) return;
  (void)free_now(c);
  const std::uint32_t evictable = c == Component::kFull ? model_.evictable() : aux_evictable(c);
  const std::uint32_t n = below(12);
  const std::uint32_t freed = ServerRig::take(rig_.own().evict(n, c));
  fetch_events();
  apply_removals();
  if (freed != std::min(n, evictable) || !events_.empty()) {
    fail("evict " + std::to_string(n) + " freed " + std::to_string(freed) + " of " +
         std::to_string(evictable));
  }
}

void ModelDriver::do_reset() {
  if (below(2) == 0) {
    while (!pinned_.empty()) do_finalize();
  }
  if (!sessions_[below(kSessions)]->reset().ok()) fail("reset");
  ++seen_.resets;
  fetch_events();
  if (events_.size() != 1 || events_.front().kind != ChangeKind::kCleared) fail("reset: events");
  events_.clear();
  model_.clear();
  for (const auto& pinned : pinned_) {
    if (pinned->deepest != nullptr) ++zombie_pins_;
    pinned->deepest = nullptr;
    pinned->aux.clear();
  }
  zombies_ = zombie_pins_ != 0;
  for (const Unpinned& old : unpinned_) {
    if (old.hit.validate()) fail("an answer from before a reset is still valid");
  }
}

void ModelDriver::do_reattach() {
  ++seen_.reattached;
  const std::size_t s = below(kSessions);
  // A close gives back the session's pins and slots, also those that its group would use.
  for (std::size_t i = pinned_.size(); i-- > 0;) {
    if (pinned_[i]->session != s) continue;
    Pinned& pinned = *pinned_[i];
    if (pinned.deepest == nullptr) {
      --zombie_pins_;
    } else {
      model_.unpin(pinned.deepest);
      for (auto& [block, c] : pinned.aux) --block->aux_pins[static_cast<std::size_t>(c)];
    }
  }
  sessions_[s]->close();
  for (const auto& pinned : pinned_) {
    if (pinned->session == s) pinned->hit.finalize();  // after the close: nothing happens
  }
  std::erase_if(pinned_, [&](const auto& p) { return p->session == s; });
  std::erase_if(cursors_, [&](const Cursor& c) { return c.session == s; });
  unpinned_.clear();
  for (auto& group : held_) {
    for (auto& slots : group) {
      std::erase_if(slots, [&](const Held& h) { return h.session == s; });
    }
  }
  sessions_[s] = rig_.attach(group_of(s) == 0 ? "engine" : "");
  expect_no_events();
}

}  // namespace radixshmem
