// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tests/crash/server_role.h"

#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "tests/crash/inspector.h"

namespace radixshmem::crash {
namespace {

using Clock = std::chrono::steady_clock;

// Claims the name within ten seconds: the byte of a killed server is free once it has exited.
std::unique_ptr<IndexServer> claim(Board& board, const Options& options) {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  for (;;) {
    auto claimed = IndexServer::claim(options.name, 0600, -1);
    if (claimed) return std::move(claimed).value();
    if (Clock::now() > deadline) {
      board.violate("server: %s", claimed.error().message.c_str());
      return nullptr;
    }
    ::usleep(1000);
  }
}

std::shared_ptr<Session> adopt(Board& board, IndexServer& server) {
  if (server.found() != Predecessor::kAdoptable) {
    board.violate("server: its predecessor's index is not adoptable");
    return nullptr;
  }
  // Busy while a stopped client holds the lock: again, like a starting server would.
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  for (;;) {
    auto adopted = server.adopt();
    if (adopted) {
      board.count(Tally::servers_adopted);
      return std::move(adopted).value();
    }
    if (adopted.error().code != ErrorCode::TIMEOUT || Clock::now() > deadline) {
      board.violate("server: %s", adopted.error().message.c_str());
      return nullptr;
    }
  }
}

void release_quarantine(Board& board, IndexServer& server) {
  auto released = server.release_quarantine();
  if (released) board.count(Tally::quarantine_released, released.value());
}

// What must hold when every client is gone and reaped.
void check_nothing_left(Board& board, Session& session) {
  std::vector<std::string> found;
  const bool done = session.locked([&] {
    session.tree().sweep();
    found = session.tree().check();
  });
  if (!done) return board.violate("final: the lock is busy, though nobody lives");
  if (!found.empty()) return board.violate("final: %s", found.front().c_str());
  for (const Component c : kAllComponents) {
    const SlotPool& pool = session.tree().pool(c);
    for (SlotId slot = 0; slot < pool.size(); ++slot) {
      const std::uint32_t owner = pool.owner(slot);
      if (!owner_is_free(owner) && owner != kOwnerTree) {
        board.violate("final: slot %u of pool %u has owner %08x", slot, static_cast<unsigned>(c),
                      owner);
      }
    }
  }
  session.tree().clients().scan_pins([&](ClientId client, PinWord pin) {
    board.violate("final: client %u still pins segment %u", client, pin.segment);
  });
  for (const TreeBlock& block : TreeInspector::blocks(session.tree())) {
    const Seen seen = read_slot(board, block.component, static_cast<std::int32_t>(block.slot));
    if (!holds(seen, block.component, block.hash)) {
      board.violate("final: slot %u does not hold its block", block.slot);
    }
  }
  if (!session.reset()) return board.violate("final: reset failed");
  for (const Component c : kAllComponents) {
    if (session.tree().pool(c).free_count() != session.tree().pool(c).size()) {
      board.violate("final: %u of %u slots free after a reset", session.tree().pool(c).free_count(),
                    session.tree().pool(c).size());
    }
  }
}

void report_work(Board& board, Session& session) {
  const WorkCounters& work = session.tree().control().work;
  board.count(Tally::recoveries_undone, work.recoveries_undone.load());
  board.count(Tally::recoveries_committed, work.recoveries_committed.load());
  board.count(Tally::rebuilds, work.rebuilds.load());
  board.count(Tally::rollbacks, work.eviction_rollbacks.load());
  board.count(Tally::table_moves, work.table_moves.load());
  board.count(Tally::table_growths, work.table_growths.load());
  board.count(Tally::takeovers, session.tree().clients().total(Counter::kLockTakeovers));
  board.count(Tally::busy, session.tree().clients().total(Counter::kBusy));
}

}  // namespace

void reap_round(Board& board, IndexServer& server, Session& session, Dice& dice,
                std::uint32_t quarantine_odds) {
  const ClientTable& clients = session.tree().clients();
  for (ClientId id = 1; id < clients.ids_used(); ++id) {
    const ClientState now = clients.state(id);
    if (now == ClientState::kFree || server.client_alive(id)) continue;
    const auto pid = static_cast<std::int32_t>(clients.entry(id).pid.load());
    const bool exited = !board.runs(pid) && !dice.one_in(quarantine_odds);
    auto reaped = server.reap(id, exited);
    if (!reaped) continue;  // busy, or it lives after all
    if (now == ClientState::kLive) board.count(Tally::reaped);
    board.count(Tally::reaped_slots, reaped.value().slots);
  }
}

void run_server(Board& board, const Options& options, std::uint64_t seed, bool first, bool mortal) {
  const std::unique_ptr<IndexServer> server = claim(board, options);
  if (!server) return;
  std::shared_ptr<Session> session;
  if (first) {
    auto created = server->create(options.plan, /*prefault=*/false);
    if (!created) return board.violate("server: %s", created.error().message.c_str());
    session = std::move(created).value();
  }
  if (mortal) make_mortal(&board, seed, options.rate);
  if (!first) session = adopt(board, *server);
  if (!session) return;
  Dice dice(seed);
  board.server_pid.store(::getpid(), std::memory_order_release);
  auto quarantine_due = Clock::now() + std::chrono::milliseconds(50);
  while (board.server_stop.load(std::memory_order_relaxed) == 0) {
    board.server_beat.fetch_add(1, std::memory_order_relaxed);
    reap_round(board, *server, *session, dice, 4);
    if (Clock::now() > quarantine_due) {
      release_quarantine(board, *server);
      quarantine_due = Clock::now() + std::chrono::milliseconds(50);
    }
    ::usleep(500);
  }
}

void run_final_server(Board& board, const Options& options) {
  const std::unique_ptr<IndexServer> server = claim(board, options);
  if (!server) return;
  const std::shared_ptr<Session> session = adopt(board, *server);
  if (!session) return;
  board.server_pid.store(::getpid(), std::memory_order_release);
  Dice dice(1);
  // Everybody is dead now: the supervisor waited for all of them, then said so.
  while (board.server_stop.load(std::memory_order_relaxed) == 0) ::usleep(500);
  for (int round = 0; round < 3; ++round) {
    reap_round(board, *server, *session, dice, ~0u);
    release_quarantine(board, *server);
  }
  check_nothing_left(board, *session);
  report_work(board, *session);
  server->close();
}

}  // namespace radixshmem::crash
