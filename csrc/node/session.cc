// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The life of a session: mapped, registered, closed; and what a fork does to it.
#include "node/session.h"

#include <pthread.h>
#include <unistd.h>

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
      tree_(std::make_unique<Tree>(region_.base(), header)),
      peer_table_(tree_->area(AreaKind::kPeerTable)) {
  incarnation_ = tree_->header().incarnation.load(std::memory_order_acquire);
  events_ = tree_->ring().at_head();
  ForkRegistry::add(this);
}

void Session::begin_incarnation(std::uint64_t incarnation) noexcept {
  tree_->header().incarnation.store(incarnation, std::memory_order_release);
  incarnation_ = incarnation;
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
  session->act_as(0);
  return session;
}

void Session::act_as(ClientId id) {
  self_ = id;
  lock_ = std::make_unique<OwnerLock>(&tree_->control().lock, live_.get(), id,
                                      std::chrono::milliseconds(plan().lock_timeout_ms));
  pins_ = std::make_unique<PinAllocator>(&tree_->clients(), id);
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
    act_as(id);
    group_ = group.empty() ? id : group_of_text_hash(hash_bytes(std::as_bytes(std::span(group))));
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
  if (lock_ && self_ != 0 && !give_back()) leave_to_reaper();
  // The server's file and byte 0 are IndexServer's; a client's go here. The last client of an index
  // whose server has gone for good takes the live file with it.
  if (live_ && self_ != 0 && region_state(region_.base()) != RegionState::kReady) {
    (void)live_->unlink_if_unused();
  }
  live_.reset();
  const SharedRegion unmapped = std::move(region_);
}

bool Session::give_back() noexcept {
  (void)locked([&] { tree_->clients().clear_pins(self_); });
  Released outcome = Released::kOutdated;
  for (std::uint32_t slots = 0; outcome == Released::kOutdated;) {
    outcome = release_client(self_, /*to_quarantine=*/false, slots);
  }
  return outcome == Released::kDone;
}

void Session::leave_to_reaper() noexcept {
  ClientTable& clients = tree_->clients();
  for (std::uint32_t i = 0; i < clients.max_pins(); ++i) {
    clients.pin(self_, i).store(0, std::memory_order_release);
  }
  clients.entry(self_).exited.store(1, std::memory_order_release);
}

}  // namespace radixshmem
