// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "node/index_server.h"

#include <sys/random.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "node/call.h"

namespace radixshmem {
namespace {

std::uint64_t fresh_incarnation() noexcept {
  std::uint64_t value = 0;
  if (::getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) {
    value = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  }
  return value | 1;  // never 0
}

Error lock_busy(const char* what) {
  return Error{ErrorCode::TIMEOUT, std::string(what) + ": the writer lock is busy: try later"};
}

}  // namespace

Result<std::unique_ptr<IndexServer>> IndexServer::claim(const std::string& name, mode_t mode,
                                                        std::int64_t gid) {
  if (auto path = region_path(name); !path) return path.error();
  for (;;) {
    auto live = LiveFile::open(name, /*create=*/true);
    if (!live) return live.error();
    if (!live.value().try_lock(0)) {
      return Error{ErrorCode::SYSTEM, "another radix-server of the name " + name +
                                          " is running: stop it or choose another --name"};
    }
    if (!live.value().still_named()) continue;  // a closing server took the file away meanwhile
    if (auto set = live.value().set_access(mode, static_cast<gid_t>(gid)); !set) {
      (void)live.value().unlink_if_unused();
      return set.error();
    }
    return std::unique_ptr<IndexServer>(
        new IndexServer(name, mode, gid, std::make_shared<LiveFile>(std::move(live).value())));
  }
}

IndexServer::IndexServer(std::string name, mode_t mode, std::int64_t gid,
                         std::shared_ptr<LiveFile> live)
    : name_(std::move(name)), mode_(mode), gid_(gid), live_(std::move(live)) {}

IndexServer::~IndexServer() = default;  // dies like a process: nothing is deleted without close()

Predecessor IndexServer::found() const {
  auto region = SharedRegion::open(name_, /*read_only=*/true);
  if (!region) {
    // A file that cannot be mapped (size 0: its maker died) is only good for deletion.
    return ::access(("/dev/shm" + name_).c_str(), F_OK) == 0 ? Predecessor::kForeign
                                                             : Predecessor::kNone;
  }
  auto view = read_header({region.value().base(), region.value().bytes()}, name_);
  if (!view) return Predecessor::kForeign;
  const RegionState state = region_state(region.value().base());
  // Not the last entry: that is an inspector's, who keeps nothing.
  const bool clients_live = live_->any_held_elsewhere(1, view.value().plan.max_clients + 1);
  return state == RegionState::kReady && clients_live ? Predecessor::kAdoptable
                                                      : Predecessor::kDead;
}

Result<> IndexServer::reclaim() {
  if (auto region = SharedRegion::open(name_, /*read_only=*/false);
      region && region.value().bytes() >= kHeaderBytes &&
      reinterpret_cast<const RegionHeader*>(region.value().base())->magic.load() == kIndexMagic) {
    set_region_state(region.value().base(), RegionState::kSuperseded);
  }
  auto unlinked = SharedRegion::unlink(name_);
  if (!unlinked) return unlinked.error();
  return Unit{};
}

Result<std::shared_ptr<Session>> IndexServer::start_session(SharedRegion region) {
  auto view = read_header({region.base(), region.bytes()}, name_);
  if (!view) return view.error();
  session_ = Session::for_server(std::move(region), std::move(view).value(), live_);
  return session_;
}

Result<std::shared_ptr<Session>> IndexServer::create(const IndexPlan& plan, bool prefault) {
  auto layout = IndexLayout::from_plan(plan);
  if (!layout) return layout.error();
  RegionOptions options;
  options.mode = mode_;
  options.gid = gid_;
  auto region = SharedRegion::create(name_, layout.value().region_bytes, options);
  if (!region) return region.error();
  std::byte* base = region.value().base();
  if (prefault) {
    if (auto done = region.value().prefault(0, layout.value().region_bytes); !done) {
      return done.error();
    }
  }
  write_header(base, plan, layout.value(), fresh_incarnation());
  {
    Tree tree(base, HeaderView{plan, std::move(layout).value()});
    tree.init();
    tree.clients().claim(0, 0, static_cast<std::uint32_t>(::getpid()));
  }
  publish_header(base);
  return start_session(std::move(region).value());
}

Result<std::shared_ptr<Session>> IndexServer::adopt() {
  auto region = SharedRegion::open(name_, /*read_only=*/false);
  if (!region) return region.error();
  auto started = start_session(std::move(region).value());
  if (!started) return started;
  Tree& tree = session_->tree();
  std::vector<std::string> violations;
  const bool done = session_->locked([&] {
    ClientTable& clients = tree.clients();
    clients.clear_pins(0);
    clients.claim(0, 0, static_cast<std::uint32_t>(::getpid()));
    tree.quarantine_server_slots();
    for (const Component c : kAllComponents) {
      tree.release_owned(c, tree.slots_of(c, client_owner(0)), client_owner(0),
                         /*to_quarantine=*/true);
    }
    tree.repair();
    violations = tree.check();
  });
  if (!done) {
    return Error{ErrorCode::TIMEOUT, "cannot adopt " + name_ +
                                         ": a stopped client holds its writer lock; continue or "
                                         "kill it (client " +
                                         std::to_string(session_->lock().owner()) + ")"};
  }
  if (!violations.empty()) {
    return Error{ErrorCode::CORRUPT,
                 "the index left at " + name_ + " is damaged: " + violations.front()};
  }
  session_->begin_incarnation(fresh_incarnation());
  return session_;
}

Error IndexServer::no_index(const char* what) const {
  return Error{ErrorCode::CLOSED, std::string(what) + ": the server " + name_ +
                                      " has no open index; create or adopt one first"};
}

bool IndexServer::client_alive(ClientId id) const noexcept {
  return live_->held_elsewhere(id);
}

Result<IndexServer::Reaped> IndexServer::reap(ClientId id, bool exited) {
  if (!session_) return no_index("reap");
  const Session::Call call(*session_);
  if (!call.mapped()) return no_index("reap");
  Tree& tree = session_->tree();
  ClientTable& clients = tree.clients();
  if (id == 0 || id >= clients.ids_used()) return Reaped{};
  const std::uint32_t generation = clients.entry(id).generation.load(std::memory_order_acquire);
  if (clients.state(id) == ClientState::kFree) return Reaped{};
  if (client_alive(id)) {
    return Error{ErrorCode::INVALID_ARGUMENT, "client " + std::to_string(id) + " of " + name_ +
                                                  " is alive and cannot be reaped"};
  }
  Reaped reaped;
  std::uint32_t group = 0;
  bool group_lives = false;
  bool left = false;
  const bool done = session_->locked([&] {
    ClientEntry& entry = clients.entry(id);
    // The dead one may have been a closing one, whose entry another client has taken since.
    left = clients.state(id) == ClientState::kFree ||
           entry.generation.load(std::memory_order_relaxed) != generation;
    if (left) return;
    reaped.pins = clients.clear_pins(id);
    fault_point(FaultPoint::reap_pins);
    if (exited) entry.exited.store(1, std::memory_order_release);
    entry.state.store(static_cast<std::uint32_t>(ClientState::kDead), std::memory_order_release);
    group = entry.group.load(std::memory_order_relaxed);
    group_lives = clients.group_lives(group, id);
  });
  if (!done) return lock_busy("reap");
  if (left || group_lives) return reaped;
  for (ClientId member = 1; member < clients.ids_used(); ++member) {
    if (clients.state(member) != ClientState::kDead ||
        clients.entry(member).group.load(std::memory_order_relaxed) != group) {
      continue;
    }
    const bool member_exited = clients.entry(member).exited.load(std::memory_order_relaxed) != 0;
    switch (session_->release_client(member, /*to_quarantine=*/!member_exited, reaped.slots)) {
      case Session::Released::kDone:
        break;
      case Session::Released::kBusy:
        return lock_busy("reap");
      case Session::Released::kOutdated:
        return Error{ErrorCode::TIMEOUT, "reap: another owner of the lock died: try later"};
    }
  }
  return reaped;
}

Result<std::uint32_t> IndexServer::release_quarantine() {
  if (!session_) return no_index("release_quarantine");
  const Session::Call call(*session_);
  if (!call.mapped()) return no_index("release_quarantine");
  Tree& tree = session_->tree();
  const std::uint64_t seen = tree.control().work.quarantined_slots.load(std::memory_order_relaxed);
  bool waiting = seen != quarantined_seen_;
  for (const auto& slots : quarantined_) waiting = waiting || !slots.empty();
  if (!waiting) return std::uint32_t{0};
  std::uint32_t released = 0;
  const bool done = session_->locked([&] {
    for (const Component c : kAllComponents) {
      released += tree.release_owned(c, quarantined_[static_cast<std::size_t>(c)], kOwnerQuarantine,
                                     /*to_quarantine=*/false);
    }
  });
  if (!done) return lock_busy("quarantine");
  for (const Component c : kAllComponents) {
    quarantined_[static_cast<std::size_t>(c)] = tree.slots_of(c, kOwnerQuarantine);
  }
  quarantined_seen_ = seen;
  return released;
}

void IndexServer::close() noexcept {
  if (session_) {
    if (const Session::Call call(*session_); call.mapped()) {
      // Through its own mapping: somebody may have taken the file's name away.
      set_region_state(reinterpret_cast<std::byte*>(&session_->tree().header()),
                       RegionState::kClosed);
    } else if (auto region = SharedRegion::open(name_, /*read_only=*/false)) {
      set_region_state(region.value().base(), RegionState::kClosed);
    }
    (void)SharedRegion::unlink(name_);
    session_->close();
    session_.reset();
  }
  if (live_) {
    (void)live_->unlink_if_unused();
    live_.reset();
  }
}

}  // namespace radixshmem
