// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Queries, pins and cursors of the model driver.
#include <algorithm>

#include "tests/node/model_driver.h"

namespace radixshmem {

namespace {

Component aux_of(const Hit& hit) {
  return hit.mask == kMaskSwa ? Component::kSwa : Component::kMamba;
}

Position aux_start(const Hit& hit) {
  return hit.blocks - static_cast<Position>(hit.window.aux_slots.size());
}

}  // namespace

void ModelDriver::pin_model(Pinned& pinned, const std::vector<ModelBlock*>& path) {
  const Position n = pinned.hit.blocks;
  const Window& window = pinned.hit.window;
  pinned.deepest = path[n - 1];
  model_.pin(pinned.deepest);
  for (std::size_t i = 0; i < window.swa_slots.size(); ++i) {
    pinned.aux.emplace_back(path[window.swa_start + i], Component::kSwa);
  }
  if (window.mamba) pinned.aux.emplace_back(path[n - 1], Component::kMamba);
  for (std::size_t i = 0; i < window.aux_slots.size(); ++i) {
    if (window.aux_slots[i] < 0) continue;
    pinned.aux.emplace_back(path[aux_start(pinned.hit) + i], aux_of(pinned.hit));
  }
  for (auto& [block, c] : pinned.aux) {
    ++block->aux_pins[static_cast<std::size_t>(c)];
    pinned.slots[static_cast<std::size_t>(c)].push_back(block->slot[static_cast<std::size_t>(c)]);
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

void ModelDriver::expect_slots(const Hit& hit, const std::vector<ModelBlock*>& found,
                               std::uint32_t mask) {
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
}

void ModelDriver::do_query() {
  const std::size_t s = below(kSessions);
  const Path path = random_path();
  const bool lock = below(2) == 0;
  std::uint32_t mask = 1 + below(7);
  for (const auto& [bit, c] :
       {std::pair{kMaskSwa, Component::kSwa}, std::pair{kMaskMamba, Component::kMamba}}) {
    if (!rig_.own().tree().enabled(c)) mask = (mask & ~bit) | kMaskFull;
  }
  Hit hit = query(sessions_[s], path, mask, lock);
  std::vector<ModelBlock*> found = model_.walk(path);
  if (mask != kMaskFull) found.resize(model_.window(found, mask));
  if (hit.status == ErrorCode::PINS_FULL) {
    ++seen_.pins_full;
    if (!lock || hit.blocks != 0 || sessions_[s]->pins_outstanding() + 8 < rig_.plan().max_pins) {
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
  expect_slots(hit, found, mask);
  if (hit.pinned() != (lock && hit.blocks != 0)) fail("query: pinned or not");
  if (hit.blocks == 0) return;
  if (hit.cursor && below(8) == 0) {
    cursors_.push_back({*hit.cursor, first_of(path, hit.blocks), s});
    if (cursors_.size() > 20) cursors_.pop_front();
  }
  keep(std::move(hit), s, path, found);
}

void ModelDriver::keep(Hit hit, std::size_t session, const Path& path,
                       const std::vector<ModelBlock*>& found) {
  if (hit.pinned()) {
    ++seen_.pinned;
    pinned_.push_back(
        std::unique_ptr<Pinned>(new Pinned{std::move(hit), session, nullptr, {}, {}}));
    pin_model(*pinned_.back(), found);
    while (pinned_.size() > most_pinned_) do_finalize();
  } else if (below(4) == 0) {
    unpinned_.push_back({std::move(hit), path});
    if (unpinned_.size() > 20) unpinned_.pop_front();
  }
}

void ModelDriver::do_query_aux(Component c) {
  if (!rig_.own().tree().enabled(c)) return do_query();
  const std::size_t s = below(kSessions);
  const Path path = random_path();
  const bool lock = below(2) == 0;
  const Position from = below(static_cast<std::uint32_t>(path.size()) + 3);
  const std::uint32_t pins = sessions_[s]->pins_outstanding();
  Hit hit = query_aux(sessions_[s], path, c, from, lock);
  if (hit.status == ErrorCode::PINS_FULL) {
    ++seen_.pins_full;
    if (!lock || hit.blocks != 0 || pins + path.size() <= rig_.plan().max_pins) {
      fail("query_aux: PINS_FULL with room for pins");
    }
    return;
  }
  const std::vector<ModelBlock*> found = model_.walk(path);
  std::vector<std::int32_t> slots;
  for (std::size_t p = from; p < found.size(); ++p) {
    slots.push_back(found[p]->slot[static_cast<std::size_t>(c)]);
    if (slots.back() >= 0) ++seen_.aux_found;
  }
  if (hit.status != ErrorCode::OK || hit.blocks != found.size() || hit.window.aux_slots != slots) {
    fail("query_aux of component " + std::to_string(static_cast<int>(c)) + " from " +
         std::to_string(from) + ": other slots than in the model, or not " +
         std::to_string(found.size()) + " blocks but " + std::to_string(hit.blocks));
    return;
  }
  if (hit.pinned() != (lock && hit.blocks != 0)) fail("query_aux: pinned or not");
  if (hit.blocks != 0) keep(std::move(hit), s, path, found);
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
  const std::vector<std::int32_t>& slots = old.hit.window.aux_slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Position p = aux_start(old.hit) + static_cast<Position>(i);
    const ModelBlock* block = model_.find(old.path[p], p);
    if (block == nullptr ||
        (slots[i] >= 0 && block->slot[static_cast<std::size_t>(aux_of(old.hit))] != slots[i])) {
      fail("validate() of slots that are not there any more");
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
  if (hit.status != ErrorCode::OK || found.size() < known || hit.blocks != found.size() - known) {
    fail("extend found " + std::to_string(hit.blocks) + " blocks, the model has " +
         std::to_string(found.size()) + " from the root");
    return;
  }
  for (Position p = 0; p < hit.blocks; ++p) {
    if (hit.full_slots[p] != found[known + p]->slot[0]) fail("extend: wrong slot");
  }
}

}  // namespace radixshmem
