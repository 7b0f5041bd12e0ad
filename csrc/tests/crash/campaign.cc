// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tests/crash/campaign.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "shm/shared_region.h"
#include "tests/crash/checker.h"
#include "tests/crash/server_role.h"
#include "tests/crash/worker.h"

namespace radixshmem::crash {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kHang = std::chrono::seconds(10);
constexpr auto kArmedFor = milliseconds(300);

void apply(const Options& options) {
  fault::active_mutant = options.mutant;
  fault::stress = options.stress;
}

class Supervisor final {
 public:
  Supervisor(const Options& options, Totals& totals)
      : options_(options), totals_(totals), dice_(options.seed), board_(make_board()) {
    if (options_.name.empty()) {
      static int runs = 0;
      options_.name = "/radix_crash_" + std::to_string(::getpid()) + "_" + std::to_string(runs++);
    }
  }
  ~Supervisor() {
    free_board(board_);
    (void)SharedRegion::unlink(options_.name);
    ::unlink(("/dev/shm" + options_.name + ".live").c_str());
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  std::string run() {
    // Children that workers fork and leave behind come to us.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    begin_ = Clock::now();
    const auto end = begin_ + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(options_.seconds));
    if (start()) {
      while (Clock::now() < end && !board_->stopping()) {
        reap_children();
        arm();
        kill_from_outside();
        look_for_hangs();
        ::usleep(500);
      }
    }
    std::string violation = board_->verdict();
    finish(violation.empty());
    totals_.add(*board_);
    totals_.seconds += std::chrono::duration<double>(Clock::now() - begin_).count();
    return violation.empty() ? board_->verdict() : violation;
  }

 private:
  struct Child {
    pid_t pid = 0;
    std::uint64_t beat = 0;
    Clock::time_point moved{};
  };

  pid_t spawn(const std::function<void()>& body) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    apply(options_);
    body();
    ::_exit(0);
  }

  template <typename Condition>
  bool wait_until(Condition condition) {
    const auto deadline = Clock::now() + kHang;
    while (!condition()) {
      if (board_->violated.load() != 0) return false;
      if (Clock::now() > deadline) return false;
      ::usleep(200);
    }
    return true;
  }

  bool start() {
    server_.pid = spawn([&] { run_server(*board_, options_, options_.seed, true, true); });
    if (!wait_until([&] { return board_->server_pid.load() == server_.pid; })) {
      board_->violate("the first server did not start");
      return false;
    }
    checker_.pid = spawn([&] { run_checker(*board_, options_); });
    if (!wait_until([&] { return board_->checker_beat.load() != 0; })) {
      board_->violate("the checker did not start");
      return false;
    }
    const auto now = Clock::now();
    server_.moved = checker_.moved = now;
    for (std::uint32_t i = 0; i < options_.workers; ++i) start_worker(i);
    return true;
  }

  void start_worker(std::uint32_t index) {
    const std::uint64_t seed = dice_.next();
    workers_[index].pid = spawn([&] {
      // Before anything else: the server believes a process that is not here to have exited.
      board_->workers[index].pid.store(::getpid(), std::memory_order_release);
      make_mortal(board_, seed, options_.rate);
      if (options_.spoil_logs) spoil_logs(options_);
      run_worker(*board_, options_, index, seed);
    });
    workers_[index].moved = Clock::now();
  }

  void start_server() {
    const std::uint64_t seed = dice_.next();
    server_.pid = spawn([&] { run_server(*board_, options_, seed, false, true); });
    server_.moved = Clock::now();
  }

  void spoil_logs(const Options& options);

  void bad_end(const char* who, int status) {
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return;
    if (board_->stopping()) return;
    board_->violate("the %s ended by %s %d", who, WIFSIGNALED(status) ? "signal" : "exit",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }

  void reap_children() {
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid == server_.pid) {
        bad_end("server", status);
        if (!board_->stopping()) start_server();
      } else if (pid == checker_.pid) {
        checker_.pid = 0;
        if (!board_->stopping()) board_->violate("the checker ended: status %x", status);
      }
      for (std::uint32_t i = 0; i < options_.workers; ++i) {
        if (workers_[i].pid != pid) continue;
        bad_end("worker", status);
        workers_[i].pid = 0;
        board_->workers[i].pid.store(0, std::memory_order_release);
        board_->workers[i].stopped.store(0);
        if (!board_->stopping()) start_worker(i);
      }
    }
  }

  [[nodiscard]] std::uint64_t killed(std::size_t point) const {
    return totals_.killed[point] + board_->killed[point].load(std::memory_order_relaxed);
  }

  // Keeps a few points armed: those with the fewest kills, counting the times nobody came by.
  void arm() {
    const auto now = Clock::now();
    std::erase_if(armed_, [&](const auto& order) {
      auto& wanted = board_->armed[order.point];
      if (wanted.load(std::memory_order_relaxed) <= 0) return true;
      if (now < order.until) return false;
      wanted.store(0, std::memory_order_relaxed);
      misses_[order.point] += 1;
      return true;
    });
    while (armed_.size() < options_.armed_at_once) {
      std::size_t best = kFaultPoints;
      for (std::size_t i = 0; i < kFaultPoints; ++i) {
        const bool taken = std::any_of(armed_.begin(), armed_.end(),
                                       [&](const auto& order) { return order.point == i; });
        if (taken) continue;
        if (best == kFaultPoints || cost(i) < cost(best)) best = i;
      }
      board_->armed[best].store(1, std::memory_order_relaxed);
      armed_.push_back({best, now + kArmedFor});
    }
  }
  [[nodiscard]] std::uint64_t cost(std::size_t point) const {
    return killed(point) + 3 * misses_[point];
  }

  void kill_from_outside() {
    if (!dice_.one_in(20)) return;
    if (dice_.one_in(20)) {
      if (server_.pid > 0) ::kill(server_.pid, SIGKILL);
    } else {
      const std::uint32_t i = dice_.below(options_.workers);
      if (workers_[i].pid <= 0 || board_->workers[i].stopped.load() != 0) return;
      ::kill(workers_[i].pid, SIGKILL);
    }
    board_->count(Tally::kills_outside);
  }

  void look_for_hangs() {
    const auto now = Clock::now();
    const auto watch = [&](Child& child, std::uint64_t beat, const std::string& who) {
      if (beat != child.beat) {
        child.beat = beat;
        child.moved = now;
      } else if (now - child.moved > kHang) {
        board_->violate("%s hangs", who.c_str());
      }
    };
    for (std::uint32_t i = 0; i < options_.workers; ++i) {
      watch(workers_[i], board_->workers[i].beat.load(std::memory_order_relaxed),
            "worker " + std::to_string(i));
    }
    watch(server_, board_->server_beat.load(std::memory_order_relaxed), "the server");
    watch(checker_, board_->checker_beat.load(std::memory_order_relaxed), "the checker");
  }

  void end_child(pid_t& pid) {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = 0;
  }

  void finish(bool good) {
    board_->stop.store(1);
    for (std::uint32_t i = 0; i < options_.workers; ++i) {
      end_child(workers_[i].pid);
      board_->workers[i].pid.store(0, std::memory_order_release);
    }
    end_child(server_.pid);
    if (good) {
      board_->server_pid.store(0);
      server_.pid = spawn([&] { run_final_server(*board_, options_); });
      if (!wait_until([&] { return board_->server_pid.load() == server_.pid; })) {
        board_->violate("the final server did not adopt the index");
      }
      board_->server_stop.store(1);
      int status = 0;
      const bool ended =
          wait_until([&] { return ::waitpid(server_.pid, &status, WNOHANG) == server_.pid; });
      if (!ended) {
        board_->violate("the final server hangs");
      } else {
        server_.pid = 0;
        if (status != 0) board_->violate("the final server ended with status %x", status);
      }
    }
    board_->server_stop.store(1);
    end_child(server_.pid);
    end_child(checker_.pid);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }

  struct Order {
    std::size_t point = 0;
    Clock::time_point until{};
  };

  Options options_;
  Totals& totals_;
  Dice dice_;
  Board* board_;
  Clock::time_point begin_{};
  Child server_;
  Child checker_;
  std::array<Child, kMaxWorkers> workers_{};
  std::vector<Order> armed_;
  std::array<std::uint64_t, kFaultPoints> misses_{};
};

// The region as a spoiler sees it: it has no session of its own at hand.
Board* spoiler_board = nullptr;
UndoLogShared* spoiled_log = nullptr;

void spoil(Dice& dice) {
  if (spoiled_log == nullptr || !dice.one_in(4)) return;
  if (spoiled_log->entries.load() == 0) return;
  switch (dice.below(3)) {
    case 0:
      spoiled_log->entries.store(kUndoEntries + 5);
      break;
    case 1:
      spoiled_log->entry[0].where.store(0x77);
      break;
    case 2:
      spoiled_log->commit_offset.store(~std::uint64_t{0});
      break;
  }
  spoiler_board->count(Tally::logs_spoiled);
}

void Supervisor::spoil_logs(const Options& options) {
  const auto layout = IndexLayout::from_plan(options.plan);
  auto region = SharedRegion::open(options.name, /*read_only=*/false);
  if (!layout || !region) return;
  static const SharedRegion mapped = std::move(region).value();
  spoiled_log = reinterpret_cast<UndoLogShared*>(mapped.base() +
                                                 layout.value().area(AreaKind::kUndoLog).offset);
  spoiler_board = board_;
  set_recovery_hook(spoil);
}

}  // namespace

void Totals::add(const Board& board) noexcept {
  for (std::size_t i = 0; i < kFaultPoints; ++i) {
    killed[i] += board.killed[i].load();
    passed[i] += board.passed[i].load();
  }
  for (std::size_t i = 0; i < kTallies; ++i) tallies[i] += board.tallies[i].load();
  for (const WorkerState& worker : board.workers) operations += worker.beat.load();
}

std::uint64_t Totals::kills() const noexcept {
  const auto of = [&](Tally tally) { return tallies[static_cast<std::size_t>(tally)]; };
  return of(Tally::kills_armed) + of(Tally::kills_by_rate) + of(Tally::kills_outside);
}

std::string run_campaign(const Options& options, Totals& totals) {
  Supervisor supervisor(options, totals);
  return supervisor.run();
}

std::string run_threads(const Options& given, Totals& totals) {
  Options options = given;
  options.threads = true;
  options.name = "/radix_crash_t" + std::to_string(::getpid());
  apply(options);
  Board* board = make_board();
  const auto begin = Clock::now();
  {
    std::jthread server([&] { run_server(*board, options, options.seed, true, false); });
    const auto deadline = begin + kHang;
    while (board->server_pid.load() == 0 && Clock::now() < deadline) std::this_thread::yield();
    std::jthread checker([&] { run_checker(*board, options); });
    {
      std::vector<std::jthread> workers;
      for (std::uint32_t i = 0; i < options.workers; ++i) {
        workers.emplace_back([&, i] { run_worker(*board, options, i, options.seed * 31 + i); });
      }
      while (!board->stopping() &&
             Clock::now() - begin < std::chrono::duration<double>(options.seconds)) {
        ::usleep(10'000);
      }
      board->stop.store(1);
    }
    board->server_stop.store(1);
  }
  const std::string violation = board->verdict();
  totals.add(*board);
  totals.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  free_board(board);
  (void)SharedRegion::unlink(options.name);
  ::unlink(("/dev/shm" + options.name + ".live").c_str());
  return violation;
}

}  // namespace radixshmem::crash
