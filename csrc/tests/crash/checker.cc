// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tests/crash/checker.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "node/session.h"
#include "tests/crash/events.h"
#include "tests/crash/inspector.h"

namespace radixshmem::crash {
namespace {

using Clock = std::chrono::steady_clock;

// Every undone transaction makes the follower resync, so it compares often.
void check_events(Board& board, Session& session, EventFollower& events) {
  std::string wrong;
  bool resynced = false;
  if (session.locked(
          [&] { wrong = events.compare(TreeInspector::blocks(session.tree()), resynced); })) {
    board.count(resynced ? Tally::ring_resynced : Tally::ring_agreed);
  }
  if (!wrong.empty()) board.violate("check: %s", wrong.c_str());
}

void check(Board& board, Session& session) {
  std::vector<std::string> found;
  const bool done = session.locked([&] {
    found = session.tree().check();
    const std::vector<TreeBlock> blocks = TreeInspector::blocks(session.tree());
    for (const TreeBlock& block : blocks) {
      const Seen seen = read_slot(board, block.component, static_cast<std::int32_t>(block.slot));
      if (!holds(seen, block.component, block.hash)) {
        board.violate("check: slot %u of pool %u does not hold its block", block.slot,
                      static_cast<unsigned>(block.component));
      }
    }
  });
  board.count(done ? Tally::checks : Tally::checks_busy);
  if (!found.empty()) board.violate("check: %s", found.front().c_str());
}

// Returns: whether process `pid` is stopped, as /proc tells.
bool is_stopped(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  std::FILE* file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return false;
  char state = 0;
  const int got = std::fscanf(file, "%*d (%*[^)]) %c", &state);
  std::fclose(file);
  return got == 1 && state == 'T';
}

// Stops a worker that holds the lock: the others must get BUSY, and nobody may rob it.
void stop_an_owner(Board& board, const Options& options, Session& session) {
  const auto search_ends = Clock::now() + std::chrono::milliseconds(100);
  while (Clock::now() < search_ends && !board.stopping()) {
    const std::int64_t owner = session.lock().owner();
    if (owner <= 0 || owner == session.client_id()) continue;
    const auto id = static_cast<ClientId>(owner);
    const auto pid = static_cast<std::int32_t>(session.tree().clients().entry(id).pid.load());
    WorkerState* victim = nullptr;
    for (WorkerState& worker : board.workers) {
      if (worker.pid.load() == pid && pid != 0) victim = &worker;
    }
    if (victim == nullptr) continue;
    victim->stopped.store(1);
    if (::kill(pid, SIGSTOP) != 0) {
      victim->stopped.store(0);
      continue;
    }
    const auto stop_deadline = Clock::now() + std::chrono::seconds(2);
    while (!is_stopped(pid) && victim->pid.load() == pid && Clock::now() < stop_deadline) {
    }
    const std::uint32_t acquisition = session.lock().acquisitions();
    const bool holds_lock = session.lock().owner() == owner && is_stopped(pid);
    const std::uint64_t busy_before = session.tree().clients().total(Counter::kBusy);
    if (holds_lock) {
      board.count(Tally::stops);
      const auto deadline =
          Clock::now() + std::chrono::milliseconds(20 * options.plan.lock_timeout_ms);
      while (session.tree().clients().total(Counter::kBusy) < busy_before + 3) {
        if (Clock::now() > deadline) {
          board.violate("nobody got BUSY beside a stopped lock owner");
          break;
        }
        ::usleep(1000);
      }
      if (session.lock().acquisitions() != acquisition || session.lock().owner() != owner) {
        board.violate("the lock of a stopped process was taken over");
      }
    }
    ::kill(pid, SIGCONT);
    victim->beat.fetch_add(1);
    victim->stopped.store(0);
    if (holds_lock) return;
  }
}

}  // namespace

void run_checker(Board& board, const Options& options) {
  auto attached = Session::attach(options.name, "", /*read_only=*/false);
  if (!attached) return board.violate("checker: %s", attached.error().message.c_str());
  Session& session = *attached.value();
  EventFollower events(session.tree().ring());
  auto due = Clock::now();
  auto stop_due = Clock::now() + std::chrono::milliseconds(300);
  while (!board.stopping()) {
    board.checker_beat.fetch_add(1, std::memory_order_relaxed);
    check_events(board, session, events);
    if (Clock::now() > due) {
      check(board, session);
      due = Clock::now() + std::chrono::milliseconds(100);
    }
    if (options.stop_owners && Clock::now() > stop_due) {
      stop_an_owner(board, options, session);
      stop_due = Clock::now() + std::chrono::milliseconds(300);
    }
    for (int i = 0; i < 4; ++i) {
      events.follow();
      ::usleep(1000);
    }
  }
  // Holds its byte until the final server has adopted the index.
  while (board.server_stop.load(std::memory_order_relaxed) == 0 &&
         board.violated.load(std::memory_order_relaxed) == 0) {
    ::usleep(1000);
  }
}

}  // namespace radixshmem::crash
