// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "node/session.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <unordered_set>

#include "hash/prefix_hash.h"
#include "node/call.h"

namespace radixshmem {

// Sessions of this process, so that a forked child can mark its copies unusable.
struct ForkRegistry {
  static inline std::mutex mutex;
  static inline std::unordered_set<Session*> sessions;

  static void add(Session* session) {
    static const int registered = ::pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); },
                                                   [] {
                                                     for (Session* s : sessions) s->forked_ = true;
                                                     mutex.unlock();
                                                   });
    (void)registered;
    const std::lock_guard guard(mutex);
    sessions.insert(session);
  }
  static void remove(Session* session) {
    const std::lock_guard guard(mutex);
    sessions.erase(session);
  }
};

namespace {

Result<HeaderView> read_ready_header(const SharedRegion& region) {
  auto view = read_header({region.base(), region.bytes()}, region.name());
  if (!view) return view;
  if (region_state(region.base()) == RegionState::kReady) return view;
  return Error{ErrorCode::NOT_READY, "the index region " + region.name() +
                                         " belongs to a server that is gone: start it again"};
}

}  // namespace

Session::Session(SharedRegion region, HeaderView header, std::shared_ptr<LiveFile> live)
    : region_(std::move(region)),
      live_(std::move(live)),
      tree_(std::make_unique<Tree>(region_.base(), header)) {
  incarnation_ = tree_->header().incarnation.load(std::memory_order_acquire);
  events_ = tree_->ring().at_head();
  ForkRegistry::add(this);
}

Session::~Session() {
  ForkRegistry::remove(this);
  close();
}

Result<std::shared_ptr<Session>> Session::map(const std::string& name, bool read_only) {
  auto live = LiveFile::open(name, /*create=*/false);
  if (!live) return live.error();
  auto region = SharedRegion::open(name, read_only);
  if (!region) return region.error();
  auto header = read_ready_header(region.value());
  if (!header) return header.error();
  return std::shared_ptr<Session>(new Session(std::move(region).value(), std::move(header).value(),
                                              std::make_shared<LiveFile>(std::move(live).value())));
}

Result<std::shared_ptr<Session>> Session::join(const std::string& name, const std::string& group,
                                               std::uint32_t spared) {
  auto session = map(name, /*read_only=*/false);
  if (!session) return session;
  if (auto joined = session.value()->register_client(group, spared); !joined) {
    session.value()->closed_ = true;  // nothing to give back
    return joined.error();
  }
  return session;
}

Result<std::shared_ptr<Session>> Session::attach(const std::string& name, const std::string& group,
                                                 bool read_only) {
  return read_only ? map(name, read_only) : join(name, group, /*spared=*/1);
}

Result<std::shared_ptr<Session>> Session::inspect(const std::string& name) {
  return join(name, "", /*spared=*/0);
}

std::shared_ptr<Session> Session::for_server(SharedRegion region, HeaderView header,
                                             std::shared_ptr<LiveFile> live) {
  std::shared_ptr<Session> session(
      new Session(std::move(region), std::move(header), std::move(live)));
  session->lock_ = std::make_unique<OwnerLock>(
      &session->tree_->control().lock, session->live_.get(), ClientId{0},
      std::chrono::milliseconds(session->plan().lock_timeout_ms));
  session->pins_ = std::make_unique<PinAllocator>(&session->tree_->clients(), ClientId{0});
  return session;
}

Result<> Session::register_client(const std::string& group, std::uint32_t spared) {
  ClientTable& clients = tree_->clients();
  const ClientId end = clients.max_clients() - spared;
  for (ClientId id = 1; id < end; ++id) {
    if (clients.state(id) != ClientState::kFree || !live_->try_lock(id)) continue;
    if (!live_->still_named()) {  // a byte of a file that nobody looks at proves no life
      return Error{ErrorCode::NOT_READY,
                   "the server of " + region_.name() + " was replaced just now: attach again"};
    }
    self_ = id;
    group_ = group.empty() ? id : group_of_text_hash(hash_bytes(std::as_bytes(std::span(group))));
    lock_ = std::make_unique<OwnerLock>(&tree_->control().lock, live_.get(), id,
                                        std::chrono::milliseconds(plan().lock_timeout_ms));
    pins_ = std::make_unique<PinAllocator>(&clients, id);
    bool claimed = false;
    const bool got_lock = locked([&] {
      if (clients.state(id) != ClientState::kFree) return;
      clients.claim(id, group_, static_cast<std::uint32_t>(::getpid()));
      generation_ = clients.entry(id).generation.load(std::memory_order_relaxed);
      claimed = true;
      fault_point(FaultPoint::register_claimed);
    });
    if (claimed) {
      fault_point(FaultPoint::register_done);
      return Unit{};
    }
    live_->unlock(id);
    lock_.reset();
    pins_.reset();
    if (!got_lock) {
      return Error{ErrorCode::TIMEOUT, "cannot register with " + region_.name() +
                                           ": a stopped process holds its writer lock"};
    }
  }
  const char* remedy = spared == 0 ? " are taken, one by another check or dump: let it end"
                                   : " are taken: close clients or raise --max-clients";
  return Error{ErrorCode::SYSTEM,
               "all " + std::to_string(end - 1) + " client entries of " + region_.name() + remedy};
}

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

Session::Released Session::release_client(ClientId id, bool to_quarantine, std::uint32_t& slots) {
  const auto& recoveries = tree_->control().work.recoveries;
  const std::uint64_t seen = recoveries.load(std::memory_order_relaxed);
  std::array<std::vector<std::int32_t>, kComponents> owned;
  for (const Component c : kAllComponents) {
    owned[static_cast<std::size_t>(c)] = tree_->slots_of(c, client_owner(id));
  }
  bool outdated = false;
  const bool done = locked([&] {
    outdated = recoveries.load(std::memory_order_relaxed) != seen;
    if (outdated) return;
    for (const Component c : kAllComponents) {
      slots += tree_->release_owned(c, owned[static_cast<std::size_t>(c)], client_owner(id),
                                    to_quarantine);
    }
    tree_->clients().free_entry(id);
  });
  if (!done) return Released::kBusy;
  return outdated ? Released::kOutdated : Released::kDone;
}

void Session::close() noexcept {
  if (closed_.exchange(true, std::memory_order_acq_rel)) return;
  if (forked_) return;  // the parent's registration, not ours; the mapping goes with this object
  while (in_flight_.load(std::memory_order_acquire) != 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (lock_ && self_ != 0) {
    // Busy: the entry stays LIVE with a free byte, and the reaper gives everything back.
    (void)locked([&] { tree_->clients().clear_pins(self_); });
    std::uint32_t slots = 0;
    while (release_client(self_, /*to_quarantine=*/false, slots) == Released::kOutdated) {
    }
  }
  // The server's file and byte 0 are IndexServer's; a client's go here. The last client of an index
  // whose server has gone for good takes the live file with it.
  if (live_ && self_ != 0 && region_state(region_.base()) != RegionState::kReady) {
    (void)live_->unlink_if_unused();
  }
  live_.reset();
  const SharedRegion unmapped = std::move(region_);
}

}  // namespace radixshmem
