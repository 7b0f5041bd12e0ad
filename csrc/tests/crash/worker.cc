// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tests/crash/worker.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "node/session.h"
#include "tests/crash/answers.h"
#include "tests/crash/disruptions.h"

namespace radixshmem::crash {
namespace {

constexpr std::uint32_t kMasks[] = {kMaskFull,
                                    kMaskFull,
                                    kMaskFull | kMaskSwa,
                                    kMaskFull | kMaskSwa,
                                    kMaskFull | kMaskMamba,
                                    kMaskFull | kMaskSwa | kMaskMamba,
                                    kMaskSwa,
                                    kMaskMamba};

class Worker final {
 public:
  Worker(Board& board, const Options& options, std::uint32_t index, std::uint64_t seed)
      : board_(board), options_(options), index_(index), dice_(seed), paths_(options.shape) {}

  void run() {
    while (!board_.stopping()) {
      if (!session_ && !attach()) continue;
      state().beat.fetch_add(1, std::memory_order_relaxed);
      step();
    }
    held_.clear();
    if (options_.threads && session_) leave();
  }

 private:
  WorkerState& state() { return board_.workers[index_]; }

  bool attach() {
    state().beat.fetch_add(1, std::memory_order_relaxed);
    // Pairs share a group for a third of a second, so that all of a group are dead soon enough.
    std::string group;
    if (index_ % 3 == 0) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      const auto third = std::chrono::duration_cast<std::chrono::milliseconds>(now).count() / 333;
      group = "pair" + std::to_string(index_ / 6) + "-" + std::to_string(third);
    }
    auto attached = Session::attach(options_.name, group, /*read_only=*/false);
    if (!attached) {
      const ErrorCode code = attached.error().code;
      // Stopped lock holders, and entries of clients that are not reaped yet.
      if (code != ErrorCode::TIMEOUT && code != ErrorCode::SYSTEM) {
        board_.violate("attach failed: %s", attached.error().message.c_str());
      }
      ::sched_yield();
      return false;
    }
    session_ = std::move(attached).value();
    return true;
  }

  void leave() {
    for (auto& held : held_) held->hit.finalize();
    held_.clear();
    session_->close();
    session_.reset();
  }

  void step() {
    paths_.make(dice_, path_);
    if (rare_step()) return;
    release_some();
    const std::uint32_t op = dice_.below(100);
    if (op < 42) {
      query_pinned();
    } else if (op < 46) {
      extend();
    } else if (op < 54) {
      copy_unpinned();
    } else if (op < 80) {
      insert();
    } else {
      insert_aux(op < 93 ? Component::kSwa : Component::kMamba);
    }
  }

  bool rare_step() {
    const std::uint32_t calm = options_.calm;
    if (dice_.one_in(500 * calm)) {
      reset(board_, *session_, dice_);
    } else if (dice_.one_in(3000 * calm)) {
      repair(board_, *session_);
    } else if (dice_.one_in(900 * calm)) {
      shrink(board_, *session_);
    } else if (options_.damage && dice_.one_in(2000)) {
      damage(board_, *session_, dice_);
    } else if (dice_.one_in(200 * calm)) {
      evict();
    } else if (dice_.one_in(700)) {
      const int fd = ::open(("/dev/shm" + options_.name + ".live").c_str(), O_RDWR | O_CLOEXEC);
      if (fd >= 0) ::close(fd);
      board_.count(Tally::live_file_opened);
    } else if (!options_.threads && dice_.one_in(4000)) {
      fork_idle_child(board_, *session_);
    } else if (dice_.one_in(900)) {
      leave();
      board_.count(Tally::reattached);
    } else {
      return false;
    }
    return true;
  }

  // ---- readers

  bool expect(bool good, const char* what, BlockHash hash, std::int32_t slot) {
    return crash::expect(board_, index_, good, what, hash, slot);
  }
  bool look(Held& held, const char* when) { return crash::look(board_, index_, held, when); }
  bool look_again(Held& held, const char* when) {
    return crash::look_again(board_, index_, held, when);
  }

  void rest() {
    const std::uint32_t kind = dice_.below(4);
    if (kind == 0) {
      ::sched_yield();
    } else if (kind == 1) {
      for (int i = 0; i < 2000; ++i) asm volatile("");
    }
  }

  // For one aux component, half of the time all slots from some block on instead of a window.
  QueryOptions question(std::uint32_t mask, bool lock, bool touch) {
    QueryOptions asked{mask, lock, touch};
    if ((mask == kMaskSwa || mask == kMaskMamba) && dice_.one_in(2)) {
      asked.aux_from = dice_.below(static_cast<std::uint32_t>(path_.size()));
    }
    return asked;
  }
  bool complete(const Hit& hit, const QueryOptions& asked) {
    return crash::complete(board_, index_, hit, asked, options_.plan.swa_window_blocks, path_);
  }

  void hold_or_finalize(std::unique_ptr<Held> held) {
    for (int round = 0; round < 2; ++round) {
      rest();
      if (!look_again(*held, "changed under a pin")) return;
    }
    if (held_.size() < options_.held_pins && dice_.one_in(4)) {
      board_.count(Tally::held_pins);
      held_.push_back(std::move(held));
      return;
    }
    held->hit.finalize();
    if (dice_.one_in(8)) held->hit.finalize();
  }

  void query_pinned() {
    const std::uint32_t mask = kMasks[dice_.below(std::size(kMasks))];
    const bool aux = mask != kMaskFull;
    const QueryOptions asked = question(mask, /*lock=*/true, /*touch=*/!dice_.one_in(8));
    auto answer = session_->query(path_, asked);
    board_.count(aux ? Tally::aux_queries : Tally::queries);
    if (!answer) return board_.violate("query: %s", answer.error().message.c_str());
    auto held = std::make_unique<Held>(Held{std::move(answer).value(), path_, {}, {}, {}});
    if (held->hit.status == ErrorCode::PINS_FULL) {
      board_.count(Tally::pins_full);
      return;
    }
    if (held->hit.blocks == 0) return;
    board_.count(aux ? Tally::aux_hits : Tally::hits);
    if (!complete(held->hit, asked)) return;
    held->path.resize(held->hit.blocks);
    if (!look(*held, "wrong bytes at first look")) return;
    hold_or_finalize(std::move(held));
  }

  void extend() {
    const std::size_t part = 1 + dice_.below(static_cast<std::uint32_t>(path_.size()));
    auto first = session_->query(std::span(path_).first(part), {kMaskFull, false, true});
    if (!first || first.value().blocks != part || part == path_.size()) return;
    rest();
    auto more = session_->extend(*first.value().cursor, std::span(path_).subspan(part),
                                 {kMaskFull, true, true});
    if (!more) return board_.violate("extend: %s", more.error().message.c_str());
    const auto rest_of_path = path_.begin() + static_cast<std::ptrdiff_t>(part);
    auto held = std::make_unique<Held>(
        Held{std::move(more).value(), {rest_of_path, path_.end()}, {}, {}, {}});
    const bool stale = held->hit.status == ErrorCode::CURSOR_STALE;
    board_.count(stale ? Tally::extends_stale : Tally::extends);
    if (!held->hit.pinned()) return;
    held->path.resize(held->hit.blocks);
    if (held->path.empty()) return held->hit.finalize();
    if (!look(*held, "wrong bytes after extend")) return;
    hold_or_finalize(std::move(held));
  }

  // Copies without a pin; what validate() confirms afterwards must have been right.
  void copy_unpinned() {
    const std::uint32_t mask = kMasks[dice_.below(std::size(kMasks))];
    const QueryOptions asked = question(mask, /*lock=*/false, /*touch=*/true);
    auto answer = session_->query(path_, asked);
    if (!answer || answer.value().blocks == 0) return;
    const Hit& hit = answer.value();
    if (!complete(hit, asked)) return;
    const std::vector<std::int32_t>& slots = hit.window.aux_slots;
    rest();
    std::vector<Seen> full;
    std::vector<Seen> swa;
    std::vector<Seen> aux;
    Seen mamba;
    if constexpr (!kPlainBytes) {
      for (std::uint32_t i = 0; i < hit.full_count; ++i) {
        full.push_back(read_slot(board_, Component::kFull, hit.full_slots[i]));
      }
      for (const std::int32_t slot : hit.window.swa_slots) {
        swa.push_back(read_slot(board_, Component::kSwa, slot));
      }
      for (const std::int32_t slot : slots) {
        aux.push_back(slot < 0 ? Seen{} : read_slot(board_, aux_of(hit), slot));
      }
      if (hit.window.mamba) {
        mamba = read_slot(board_, Component::kMamba, static_cast<std::int32_t>(*hit.window.mamba));
      }
    }
    if (!hit.validate()) return board_.count(Tally::copies_stale);
    board_.count(Tally::copies_valid);
    bool good = true;
    for (std::size_t i = 0; i < full.size(); ++i)
      good &= holds(full[i], Component::kFull, path_[i]);
    for (std::size_t i = 0; i < swa.size(); ++i) {
      good &= holds(swa[i], Component::kSwa, path_[hit.window.swa_start + i]);
    }
    for (std::size_t i = 0; i < aux.size(); ++i) {
      good &= slots[i] < 0 || holds(aux[i], aux_of(hit), path_[aux_start(hit) + i]);
    }
    if (hit.window.mamba && !kPlainBytes) {
      good &= holds(mamba, Component::kMamba, path_[hit.blocks - 1]);
    }
    (void)expect(good, "a validated copy is wrong", path_[hit.blocks - 1], -1);
  }

  void release_some() {
    // Mostly one at a time; now and then all, so that the high water mark can fall.
    if (held_.empty() || !dice_.one_in(3)) return;
    std::size_t count = dice_.one_in(40) ? held_.size() : 1;
    if (held_.size() < options_.held_pins && options_.held_pins > 8 && count == 1 &&
        dice_.one_in(2)) {
      count = 0;
    }
    for (; count > 0; --count) {
      const std::size_t k = dice_.below(static_cast<std::uint32_t>(held_.size()));
      std::swap(held_[k], held_.back());
      if (!look_again(*held_.back(), "a held pin's bytes changed")) return;
      held_.back()->hit.finalize();
      held_.pop_back();
    }
  }

  // ---- writers

  std::vector<std::int32_t> allocate(std::size_t count, Component c) {
    const std::size_t most = session_->tree().pool(c).size();
    auto got = session_->allocate(static_cast<std::int64_t>(std::min(count, most)), c);
    if (!got) {
      board_.violate("allocate: %s", got.error().message.c_str());
      return {};
    }
    return std::move(got).value();
  }

  void recycle(std::span<const std::int32_t> slots, Component c) {
    auto done = session_->recycle(slots, c);
    if (!done) board_.violate("recycle: %s", done.error().message.c_str());
    board_.count(Tally::recycles);
  }

  void finish_insert(Result<InsertOutcome> done, const std::vector<std::int32_t>& slots,
                     bool auto_recycle, Component c) {
    if (!done) return board_.violate("insert: %s", done.error().message.c_str());
    const InsertOutcome& outcome = done.value();
    std::vector<std::int32_t> mine = outcome.unused;
    switch (outcome.error) {
      case ErrorCode::OK:
        break;
      case ErrorCode::FULL_PATH_MISSING:
        break;
      case ErrorCode::MEMPOOL_FULL:
        board_.count(Tally::inserts_full);
        break;
      case ErrorCode::BUSY:
        board_.count(Tally::inserts_busy);
        mine.clear();
        for (const std::int32_t slot : slots) {
          if (slot >= 0) mine.push_back(slot);
        }
        auto_recycle = false;
        break;
      default:
        return board_.violate("insert refused own slots: %s", error_name(outcome.error));
    }
    if (!auto_recycle) recycle(mine, c);
  }

  void insert() {
    auto there = session_->query(path_, {kMaskFull, false, false});
    if (!there) return board_.violate("query: %s", there.error().message.c_str());
    const std::uint32_t start = there.value().blocks;
    if (start == path_.size()) return;
    const std::vector<std::int32_t> slots = allocate(path_.size() - start, Component::kFull);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      write_slot(board_, Component::kFull, slots[i], path_[start + i], dice_.next() | 1);
    }
    if (slots.empty()) return;
    if (dice_.one_in(20)) return recycle(slots, Component::kFull);
    const bool auto_recycle = !dice_.one_in(5);
    board_.count(Tally::inserts);
    finish_insert(session_->insert(path_, slots, start, auto_recycle, Component::kFull), slots,
                  auto_recycle, Component::kFull);
  }

  void insert_aux(Component c) {
    auto there = session_->query(path_, {kMaskFull, false, false});
    if (!there || there.value().blocks == 0) return;
    const std::size_t n =
        dice_.one_in(3) ? 1 + dice_.below(there.value().blocks) : there.value().blocks;
    const std::size_t width =
        c == Component::kMamba ? 1 : std::min<std::size_t>(n, options_.plan.swa_window_blocks);
    const std::vector<std::int32_t> got = allocate(width, c);
    if (got.empty()) return;
    std::vector<std::int32_t> slots = got;
    std::vector<std::int32_t> kept_back;
    const bool sparse = c == Component::kSwa && dice_.one_in(3);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (sparse && !dice_.one_in(3)) {
        kept_back.push_back(slots[i]);
        slots[i] = -1;
        continue;
      }
      write_slot(board_, c, slots[i], path_[n - width + i], dice_.next() | 1);
    }
    if (!kept_back.empty()) recycle(kept_back, c);
    if (dice_.one_in(20)) {
      std::erase(slots, -1);
      if (!slots.empty()) recycle(slots, c);
      return;
    }
    board_.count(Tally::aux_inserts);
    finish_insert(session_->insert(std::span(path_).first(n), slots, 0, true, c), slots, true, c);
  }

  void evict() {
    const std::uint32_t kind = dice_.below(4);
    const Component c = kind < 2    ? Component::kFull
                        : kind == 2 ? Component::kSwa
                                    : Component::kMamba;
    (void)session_->evict(1 + dice_.below(dice_.one_in(3) ? session_->tree().pool(c).size() : 60),
                          c);
    board_.count(Tally::evictions);
  }

  Board& board_;
  const Options& options_;
  std::uint32_t index_;
  Dice dice_;
  std::shared_ptr<Session> session_;
  PathMaker paths_;
  std::vector<BlockHash> path_;
  std::vector<std::unique_ptr<Held>> held_;
};

}  // namespace

void run_worker(Board& board, const Options& options, std::uint32_t index, std::uint64_t seed) {
  Worker(board, options, index, seed).run();
}

}  // namespace radixshmem::crash
