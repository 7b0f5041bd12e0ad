// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What all calls of a session share (states, refusals, the lock, counters), and the short calls.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "node/call.h"

namespace radixshmem {

ErrorCode Session::state() const noexcept {
  if (closed_.load(std::memory_order_acquire) || forked_.load(std::memory_order_relaxed)) {
    return ErrorCode::CLOSED;
  }
  const auto state =
      static_cast<RegionState>(tree_->header().state.load(std::memory_order_acquire));
  return state == RegionState::kReady ? ErrorCode::OK : ErrorCode::NOT_READY;
}

bool Session::usable() const noexcept {
  return bool{Call(*this)};
}

Error Session::refusal(ErrorCode code) const {
  if (code == ErrorCode::NOT_READY) {
    return Error{
        code, "the server of " + region_.name() +
                  " has stopped or was replaced: call again once a server of this name is ready"};
  }
  return Error{code, forked_ ? "this client of " + region_.name() +
                                   " belongs to the parent process: make one after the fork"
                             : "this client of " + region_.name() + " is closed"};
}

Error Session::busy_error(const char* what) const {
  return Error{ErrorCode::TIMEOUT, std::string(what) + ": the writer lock of " + region_.name() +
                                       " is held by a living but stopped process (client " +
                                       std::to_string(lock_->owner()) + "); continue or kill it"};
}

Result<> Session::require_writable(const char* what) const {
  if (!read_only()) return Unit{};
  return Error{ErrorCode::INVALID_ARGUMENT,
               std::string(what) + " needs a client that was not made with read_only=True"};
}

Result<> Session::require_component(Component component) const {
  if (tree_->enabled(component)) return Unit{};
  return Error{ErrorCode::INVALID_ARGUMENT, std::string("component ") + component_name(component) +
                                                " is not enabled in the geometry of " +
                                                region_.name()};
}

void Session::count(Counter counter, std::uint64_t amount) noexcept {
  if (read_only() || amount == 0) return;
  tree_->clients().entry(self_).counters[static_cast<std::size_t>(counter)].fetch_add(
      amount, std::memory_order_relaxed);
}

bool Session::acquire() {
  switch (lock_->acquire()) {
    case OwnerLock::Acquired::kBusy:
      count(Counter::kBusy, 1);
      return false;
    case OwnerLock::Acquired::kTakenOver:
      tree_->recover();
      count(Counter::kLockTakeovers, 1);
      break;
    case OwnerLock::Acquired::kClean:
      break;
  }
  tree_->log().begin();
  pins_->lower_high_water();
  flush_deferred();
  return true;
}

void Session::flush_deferred() noexcept {
  if (!any_deferred_.load(std::memory_order_relaxed)) return;
  const std::lock_guard guard(deferred_mutex_);
  any_deferred_.store(false, std::memory_order_relaxed);
  for (std::size_t k = 0; k < kComponents; ++k) {
    if (deferred_[k].empty()) continue;
    const auto c = static_cast<Component>(k);
    // Another process of the group may have used one meanwhile: its word says whose it is.
    std::erase_if(deferred_[k],
                  [&](std::int32_t slot) { return !tree_->owned_by_group(c, slot, group_); });
    tree_->recycle(c, deferred_[k]);
    deferred_[k].clear();
  }
}

std::uint32_t Session::pins_outstanding() const noexcept {
  return pins_ ? pins_->outstanding() : 0;
}

std::uint32_t Session::rank() const noexcept {
  const Call call(*this);
  const auto own = call.mapped() ? peer_table_.own() : std::nullopt;
  return own ? own->rank : 0;
}

std::uint32_t Session::world_size() const {
  const Call call(*this);
  std::vector<PeerInfo> peers;
  if (call.mapped()) peer_table_.peers(peers);
  return std::max(1u, static_cast<std::uint32_t>(peers.size()));
}

Result<std::uint32_t> Session::slots_total(Component component) const {
  const Call call(*this);
  if (!call) return refusal(call.code());
  return tree_->pool(component).size();
}

Result<std::uint32_t> Session::slots_free(Component component) {
  const Call call(*this);
  if (!call) return refusal(call.code());
  if (!read_only() && tree_->control().zombies.load(std::memory_order_relaxed) != 0) {
    (void)locked([&] { tree_->sweep(); });
  }
  return tree_->pool(component).free_count();
}

Result<std::uint32_t> Session::total_blocks() const {
  const Call call(*this);
  if (!call) return refusal(call.code());
  return tree_->control().live_blocks.load(std::memory_order_relaxed);
}

Result<std::uint32_t> Session::total_segments() const {
  const Call call(*this);
  if (!call) return refusal(call.code());
  return tree_->control().live_segments.load(std::memory_order_relaxed);
}

Result<> Session::seek_events_to_head() {
  const Call call(*this);
  if (!call) return refusal(call.code());
  const std::lock_guard guard(events_mutex_);
  events_ = tree_->ring().at_head();
  return Unit{};
}

Result<std::vector<BlockHash>> Session::drain_removed(std::size_t most, bool& overflow) {
  const Call call(*this);
  if (!call) return refusal(call.code());
  const std::lock_guard guard(events_mutex_);
  std::vector<BlockHash> removed;
  std::array<Change, 256> changes;
  overflow = false;
  while (removed.size() < most) {
    const std::size_t room = std::min(changes.size(), most - removed.size());
    const std::size_t got = tree_->ring().drain(events_, std::span(changes).first(room), overflow);
    for (const Change& change : std::span(changes).first(got)) {
      if (change.kind == ChangeKind::kCleared) overflow = true;
      if (change.kind == ChangeKind::kRemoved && change.component == Component::kFull) {
        removed.push_back(change.hash);
      }
    }
    if (got == 0) break;
  }
  return removed;
}

Result<std::vector<std::string>> Session::check(bool repair) {
  const Call call(*this);
  if (!call) return refusal(call.code());
  if (auto writable = require_writable("check"); !writable) return writable.error();
  std::vector<std::string> violations;
  if (!locked([&] {
        if (repair) tree_->repair();
        violations = tree_->check();
      })) {
    return busy_error("check");
  }
  return violations;
}

}  // namespace radixshmem
