// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tests/node/model_driver.h"

#include <algorithm>
#include <unordered_map>

namespace radixshmem {
namespace {

constexpr std::size_t kSessions = 3;  // two of one group, one on its own
constexpr std::array kAll{Component::kFull, Component::kSwa, Component::kMamba};
constexpr std::uint64_t kOperationsPerCheck = 500;
constexpr std::size_t kFewPins = 24;
constexpr std::size_t kManyPins = 400;  // more than the sessions have

std::uint64_t digest(std::uint64_t parent, std::uint64_t token) {
  return mix_hash(parent * 0x9e3779b97f4a7c15u + token + 1);
}

Slots ids(const auto& held) {
  Slots slots;
  for (const auto& h : held) slots.push_back(h.slot);
  return slots;
}

}  // namespace

ModelDriver::ModelDriver(const IndexPlan& plan, const DriverOptions& options)
    : rig_(plan), options_(options), random_(options.seed), model_(plan.swa_window_blocks) {
  for (std::size_t i = 0; i < kSessions; ++i) {
    sessions_.push_back(rig_.attach(group_of(i) == 0 ? "engine" : ""));
  }
  events_cursor_ = rig_.own().tree().ring().at_head();
}

void ModelDriver::fail(const std::string& what) {
  if (!failed_) {
    ADD_FAILURE() << what << " (seed " << options_.seed << ", operation " << operation_ << ")";
  }
  failed_ = true;
}

// Chained hashes of made-up tokens: one of a few trunks, left at some block for one of a few tails.
Path ModelDriver::random_path() {
  const std::uint32_t s = rig_.own().tree().segment_blocks();
  const std::uint64_t trunk = below(options_.trunks);
  std::uint32_t length = 1 + below(options_.longest_path);
  std::uint32_t leave = below(4) == 0 ? below(length + 1) : s * below(length / s + 1) + below(3);
  std::uint64_t tail = 1 + below(4);
  if (options_.wide && below(100) != 0) {
    leave = s;
    length = s + 1;
    tail = 1 + below(20'000);
  }
  Path path;
  std::uint64_t h = digest(0, trunk);
  for (std::uint32_t p = 0; p < length; ++p) {
    h = digest(h, p < leave ? p : p + 1000 * tail);
    path.push_back(h);
  }
  return path;
}

std::uint32_t ModelDriver::held_total(Component c) const {
  std::size_t n = 0;
  for (const auto& group : held_) n += group[static_cast<std::size_t>(c)].size();
  return static_cast<std::uint32_t>(n);
}

std::vector<ModelDriver::Held> ModelDriver::take_held(std::size_t session, Component c,
                                                      std::size_t n) {
  auto& from = held(session, c);
  std::vector<Held> out;
  while (out.size() < n && !from.empty()) {
    const std::size_t at = below(static_cast<std::uint32_t>(from.size()));
    out.push_back(from[at]);
    from[at] = from.back();
    from.pop_back();
  }
  return out;
}

void ModelDriver::put_back(std::size_t session, Component c, const std::vector<Held>& slots) {
  auto& to = held(session, c);
  to.insert(to.end(), slots.begin(), slots.end());
}

std::uint32_t ModelDriver::free_now(Component c) {
  if (zombies_) {
    ++seen_.zombie_calls;
    const std::uint32_t free = free_slots(sessions_[0], c);  // sweeps
    if (zombie_pins_ == 0) zombies_ = false;
    return free;
  }
  return rig_.plan().slots[static_cast<std::size_t>(c)] - held_total(c) - model_.attached(c);
}

void ModelDriver::expect_counts(const char* call) {
  for (const Component c : kAll) {
    const auto k = static_cast<std::size_t>(c);
    const std::uint32_t used = held_total(c) + model_.attached(c);
    const std::uint32_t free = rig_.own().tree().pool(c).free_count();
    if (zombies_ ? free + used > rig_.plan().slots[k] : free + used != rig_.plan().slots[k]) {
      fail(std::string(call) + ": component " + std::to_string(k) + " has " +
           std::to_string(free) + " free slots, " + std::to_string(used) + " are used");
    }
  }
}

void ModelDriver::fetch_events() {
  std::array<Change, 256> changes;
  for (;;) {
    bool resync = false;
    const std::size_t got = rig_.own().tree().ring().drain(events_cursor_, changes, resync);
    if (resync) fail("a resync was demanded");
    events_.insert(events_.end(), changes.begin(),
                   changes.begin() + static_cast<std::ptrdiff_t>(got));
    if (got == 0) return;
  }
}

void ModelDriver::apply_removals() {
  while (!events_.empty() && events_.front().kind == ChangeKind::kRemoved) {
    const std::string wrong = model_.remove(events_.front());
    if (!wrong.empty()) fail(wrong);
    ++(events_.front().component == Component::kFull ? seen_.evicted : seen_.aux_evicted);
    events_.pop_front();
  }
  const std::string wrong = model_.end_of_batch();
  if (!wrong.empty()) fail(wrong);
}

void ModelDriver::expect_no_events() {
  fetch_events();
  if (!events_.empty()) fail("an unexpected change event");
}

void ModelDriver::pin_model(Pinned& pinned, const std::vector<ModelBlock*>& path,
                            std::uint32_t mask) {
  const Position n = pinned.hit.blocks;
  pinned.deepest = path[n - 1];
  model_.pin(pinned.deepest);
  if ((mask & kMaskSwa) != 0) {
    for (Position p = pinned.hit.window.swa_start; p < n; ++p) {
      pinned.aux.emplace_back(path[p], Component::kSwa);
    }
  }
  if ((mask & kMaskMamba) != 0) pinned.aux.emplace_back(path[n - 1], Component::kMamba);
  for (auto& [block, c] : pinned.aux) {
    ++block->aux_pins[static_cast<std::size_t>(c)];
    pinned.slots[static_cast<std::size_t>(c)].push_back(
        block->slot[static_cast<std::size_t>(c)]);
  }
  for (Position p = 0; p < n; ++p) pinned.slots[0].push_back(path[p]->slot[0]);
}

void ModelDriver::release(Pinned& pinned) {
  pinned.hit.finalize();
  if (pinned.deepest == nullptr) {
    --zombie_pins_;
    return;
  }
  model_.unpin(pinned.deepest);
  for (auto& [block, c] : pinned.aux) --block->aux_pins[static_cast<std::size_t>(c)];
}

void ModelDriver::do_query() {
  const std::size_t s = below(kSessions);
  const Path path = random_path();
  const bool lock = below(2) == 0;
  std::uint32_t mask = 1 + below(7);
  for (const auto& [bit, c] : {std::pair{kMaskSwa, Component::kSwa},
                               std::pair{kMaskMamba, Component::kMamba}}) {
    if (!rig_.own().tree().enabled(c)) mask = (mask & ~bit) | kMaskFull;
  }
  Hit hit = query(sessions_[s], path, mask, lock);
  std::vector<ModelBlock*> found = model_.walk(path);
  if (mask != kMaskFull) found.resize(model_.window(found, mask));
  if (hit.status == ErrorCode::PINS_FULL) {
    ++seen_.pins_full;
    if (!lock || hit.blocks != 0 ||
        sessions_[s]->pins_outstanding() + 8 < rig_.plan().max_pins) {
      fail("PINS_FULL with room for pins");
    }
    return;
  }
  if (hit.status != ErrorCode::OK || hit.blocks != found.size()) {
    fail("query of mask " + std::to_string(mask) + " found " + std::to_string(hit.blocks) +
         " blocks, the model " + std::to_string(found.size()));
    return;
  }
  ++(hit.blocks != 0 ? seen_.hits : seen_.misses);
  const std::uint32_t wanted = (mask & kMaskFull) != 0 ? hit.blocks : 0;
  if (hit.full_count != wanted) fail("query: wrong number of FULL slots");
  for (Position p = 0; p < hit.full_count; ++p) {
    if (hit.full_slots[p] != found[p]->slot[0]) fail("query: wrong FULL slot");
  }
  if ((mask & kMaskSwa) != 0 && hit.blocks != 0) {
    ++seen_.windows;
    const Position start = hit.blocks - std::min(hit.blocks, rig_.plan().swa_window_blocks);
    if (hit.window.swa_start != start || start + hit.window.swa_slots.size() != hit.blocks) {
      fail("query: wrong window");
      return;
    }
    for (Position p = start; p < hit.blocks; ++p) {
      if (hit.window.swa_slots[p - start] != found[p]->slot[1]) fail("query: wrong SWA slot");
    }
  }
  const bool mamba = (mask & kMaskMamba) != 0 && hit.blocks != 0;
  if (hit.window.mamba.has_value() != mamba ||
      (mamba && static_cast<std::int32_t>(*hit.window.mamba) != found.back()->slot[2])) {
    fail("query: wrong MAMBA slot");
  }
  if (hit.pinned() != (lock && hit.blocks != 0)) fail("query: pinned or not");
  if (hit.blocks == 0) return;
  if (hit.cursor && below(8) == 0) {
    cursors_.push_back({*hit.cursor, first_of(path, hit.blocks), s});
    if (cursors_.size() > 20) cursors_.pop_front();
  }
  if (lock) {
    ++seen_.pinned;
    pinned_.push_back(std::unique_ptr<Pinned>(new Pinned{std::move(hit), s, nullptr, {}, {}}));
    pin_model(*pinned_.back(), found, mask);
    while (pinned_.size() > most_pinned_) do_finalize();
  } else if (below(4) == 0) {
    unpinned_.push_back({std::move(hit), path});
    if (unpinned_.size() > 20) unpinned_.pop_front();
  }
}

void ModelDriver::do_finalize() {
  if (pinned_.empty()) return;
  const std::size_t at = below(static_cast<std::uint32_t>(pinned_.size()));
  Pinned& pinned = *pinned_[at];
  release(pinned);
  pinned.hit.finalize();  // once more: nothing happens
  pinned_.erase(pinned_.begin() + static_cast<std::ptrdiff_t>(at));
}

void ModelDriver::do_validate() {
  if (unpinned_.empty()) return;
  const Unpinned old = std::move(unpinned_.front());
  unpinned_.pop_front();
  if (!old.hit.validate()) {
    ++seen_.invalid;
    return;
  }
  ++seen_.still_valid;
  for (Position p = 0; p < old.hit.full_count; ++p) {
    const ModelBlock* block = model_.find(old.path[p], p);
    if (block == nullptr || block->slot[0] != old.hit.full_slots[p]) {
      fail("validate() of an answer that is not true any more");
    }
  }
}

void ModelDriver::do_extend() {
  if (cursors_.empty()) return;
  const Cursor cursor = cursors_[below(static_cast<std::uint32_t>(cursors_.size()))];
  Path path = cursor.path;
  const Path other = random_path();
  const auto known = static_cast<Position>(path.size());
  const bool same = other.size() > known && std::equal(path.begin(), path.end(), other.begin());
  const Path more = same ? Path(other.begin() + known, other.end()) : make_path(random_(), 3);
  path.insert(path.end(), more.begin(), more.end());
  const Hit hit = ServerRig::take(
      sessions_[cursor.session]->extend(cursor.point, more, {kMaskFull, false, true}));
  if (hit.status == ErrorCode::CURSOR_STALE) {
    ++seen_.stale_cursors;
    if (hit.blocks != 0) fail("a stale cursor with a hit");
    return;
  }
  ++seen_.extended;
  const std::vector<ModelBlock*> found = model_.walk(path);
  if (hit.status != ErrorCode::OK || found.size() < known ||
      hit.blocks != found.size() - known) {
    fail("extend found " + std::to_string(hit.blocks) + " blocks, the model has " +
         std::to_string(found.size()) + " from the root");
    return;
  }
  for (Position p = 0; p < hit.blocks; ++p) {
    if (hit.full_slots[p] != found[known + p]->slot[0]) fail("extend: wrong slot");
  }
}

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
  const std::uint32_t evictable =
      free >= n ? 0 : c == Component::kFull ? model_.evictable() : aux_evictable(c);
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
    fail("allocate " + std::to_string(n) + " of component " +
         std::to_string(static_cast<int>(c)) + ": got " + std::to_string(got.size()) +
         " of expected " + std::to_string(expected) + ", evicted " + std::to_string(taken) +
         ", free were " + std::to_string(free) + ", evictable " + std::to_string(evictable));
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
      const auto at = std::find_if(mine.begin(), mine.end(),
                                   [&](const Held& h) { return h.slot == slot; });
      if (at == mine.end()) fail("insert: an unused slot that was not given");
      else held(s, Component::kFull).push_back(*at);
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
  Position at = from;
  // Own path: an eviction for segments must not take it.
  ModelBlock* parent = from > 0 ? found[from - 1] : nullptr;
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
      return;
    }
    model_.add(path[at], at, parent, slots[at - start]);
    parent = model_.find(path[at], at);
    events_.pop_front();
    ++at;
  }
  seen_.attached += at - from;
  seen_.unused += unused.size();
  unused.insert(unused.end(), slots.begin() + (at - start), slots.end());
  const ErrorCode expected = at == n ? ErrorCode::OK : ErrorCode::MEMPOOL_FULL;
  if (outcome.error != expected || outcome.unused != unused || outcome.first != from ||
      outcome.last != at) {
    fail(std::string("insert: ") + error_name(outcome.error) + " [" +
         std::to_string(outcome.first) + ", " + std::to_string(outcome.last) + "), expected " +
         error_name(expected) + " [" + std::to_string(from) + ", " + std::to_string(at) + ")");
  }
  if (at < n) {
    ++seen_.mempool_full;
    if (parent != nullptr) model_.pin(parent);
    if (model_.evictable() != 0) fail("MEMPOOL_FULL while there is something to evict");
    if (parent != nullptr) model_.unpin(parent);
  }
  keep(outcome.unused);
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
  const Position first = n - static_cast<Position>(slots.size());
  const Position start = c == Component::kMamba && below(2) == 0 ? n - 1 : 0;
  const bool recycle = below(2) == 0;
  const std::vector<ModelBlock*> found = model_.walk(path);
  const InsertOutcome outcome = insert(sessions_[s], path, slots, start, recycle, c);
  fetch_events();
  ErrorCode expected = ErrorCode::OK;
  Slots unused;
  Position low = n;
  Position high = n;
  if (found.size() < n) {
    ++seen_.path_missing;
    expected = ErrorCode::FULL_PATH_MISSING;
    for (const std::int32_t slot : slots) {
      if (slot != -1) unused.push_back(slot);
    }
  } else {
    for (Position p = n; p-- > first && !failed_;) {
      const std::int32_t slot = slots[p - first];
      if (slot == -1) continue;
      if (found[p]->slot[k] < 0) {  // a side block may have to be freed
        seen_.side_evictions += !events_.empty() && events_.front().kind == ChangeKind::kRemoved;
        apply_removals();
      }
      const bool stored = !events_.empty() && events_.front().kind == ChangeKind::kStored &&
                          events_.front().hash == path[p] && events_.front().component == c;
      if (found[p]->slot[k] >= 0) {
        unused.push_back(slot);
      } else if (stored) {
        events_.pop_front();
        model_.add_aux(*found[p], c, slot);
        if (low == high) high = p + 1;
        low = p;
      } else {
        expected = ErrorCode::MEMPOOL_FULL;
        ++seen_.mempool_full;
        for (Position q = first; q <= p; ++q) {
          if (slots[q - first] != -1) unused.push_back(slots[q - first]);
        }
        break;
      }
    }
    apply_removals();
  }
  if (!events_.empty()) fail("insert of aux: an unexpected event");
  if (low == high) low = high = n;
  if (outcome.error != expected || outcome.unused != unused || outcome.first != low ||
      outcome.last != high) {
    fail(std::string("insert of aux: ") + error_name(outcome.error) + " [" +
         std::to_string(outcome.first) + ", " + std::to_string(outcome.last) + "), expected " +
         error_name(expected) + " [" + std::to_string(low) + ", " + std::to_string(high) + ")");
    return;
  }
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
      if (theirs.empty()) slots[0] = -1;
      else slots[0] = theirs[below(static_cast<std::uint32_t>(theirs.size()))].slot;
      break;
    }
    case 1:  // a slot of the tree
      if (model_.blocks().empty()) slots[0] = -2;
      else slots[0] = model_.blocks().begin()->second->slot[0];
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
  const std::uint32_t evictable =
      c == Component::kFull ? model_.evictable() : aux_evictable(c);
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

void ModelDriver::step() {
  const std::uint32_t dice = below(1000);
  if (dice < 330) do_query();
  else if (dice < 420) most_pinned_ == kManyPins ? do_query() : do_finalize();
  else if (dice < 460) do_extend();
  else if (dice < 480) do_validate();
  else if (dice < 680) do_allocate();
  else if (dice < 860) do_insert();
  else if (dice < 940) do_insert_aux();
  else if (dice < 960) do_bad_request();
  else if (dice < 985) do_recycle();
  else if (dice < 998) do_evict();
  else if (below(options_.wide ? 40 : 4) != 0) do_reattach();
  else do_reset();
}

bool ModelDriver::run(std::uint64_t operations) {
  for (const std::uint64_t end = operation_ + operations; operation_ < end && !failed_;) {
    ++operation_;
    step();
    expect_counts("after a call");
    if (operation_ % kOperationsPerCheck != 0 || failed_) continue;
    ++seen_.checks;
    if (below(10) == 0) most_pinned_ = below(4) == 0 ? kManyPins : kFewPins;
    const std::string wrong = problems(sessions_[0]);
    if (!wrong.empty()) fail(wrong);
    const auto blocks = ServerRig::take(sessions_[0]->total_blocks());
    if (blocks != model_.attached(Component::kFull)) fail("total_blocks");
  }
  return !failed_;
}

}  // namespace radixshmem
