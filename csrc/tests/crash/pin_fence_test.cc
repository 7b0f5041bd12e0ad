// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The one rule that no deterministic interleaving shows: a pin must be visible before the versions
// are read again. Two threads meet right before their first store: one publishes its pin and
// validates, the other truncates and scans. x86 lets loads pass an earlier plain store that still
// waits in the store buffer; the reader fills that buffer with stores to cold memory first, so that
// under the mutant the pin is late often enough.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "tests/crash/lab.h"

namespace radixshmem::crash {
namespace {

struct Litmus {
  std::uint64_t meetings = 0;
  std::uint64_t both = 0;  // pinned and freed: neither saw the other
};

// Waits for the other side; gives up after a while, so that a bug ends in a failure.
bool wait_for(const std::atomic<std::uint64_t>& side, std::uint64_t round) {
  for (std::uint64_t spins = 0; side.load(std::memory_order_acquire) < round; ++spins) {
    if (spins > 2'000'000'000) return false;
    if (spins % 4096 == 4095) std::this_thread::yield();
  }
  return true;
}

void delay(std::uint64_t loops) {
  for (std::uint64_t i = 0; i < loops; ++i) asm volatile("");
}

// More cache lines than any cache holds; a handful of stores to them keeps the store buffer busy.
class ColdMemory final {
 public:
  ColdMemory() : words_(kWords) {}
  void store_some() {
    for (int i = 0; i < 24; ++i) {
      at_ = (at_ * 6364136223846793005u + 1442695040888963407u);
      words_[(at_ >> 33) % kWords].store(at_, std::memory_order_relaxed);
    }
  }

 private:
  static constexpr std::size_t kWords = std::size_t{1} << 24;  // 128 MiB
  std::vector<std::atomic<std::uint64_t>> words_;
  std::uint64_t at_ = 1;
};

Litmus meet(Mutant mutant, std::chrono::seconds limit, std::uint64_t most) {
  Lab lab(mutant);
  const Path path = path_of(1, 1);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  std::atomic<std::uint64_t> round{0};      // begun
  std::atomic<std::uint64_t> reader_at{0};  // before its pin
  std::atomic<std::uint64_t> writer_at{0};  // before its truncation
  std::atomic<std::uint64_t> finished{0};   // the reader has its answer
  std::optional<Hit> hit;
  ColdMemory cold;
  on_reader_point = [&](ReaderPoint point) {
    const std::uint64_t now = round.load(std::memory_order_relaxed);
    if (point != ReaderPoint::kBeforePin || reader_at.load(std::memory_order_relaxed) == now)
      return;
    reader_at.store(now, std::memory_order_release);
    (void)wait_for(writer_at, now);
    cold.store_some();
  };
  on_fault_point = [&](FaultPoint point) {
    if (point != FaultPoint::logged) return;
    const std::uint64_t now = round.load(std::memory_order_relaxed);
    if (now == 0 || writer_at.load(std::memory_order_relaxed) == now) return;
    if (TreeInspector::last_logged(lab.tree()) != UndoLog::kTagHead) return;
    writer_at.store(now, std::memory_order_release);
    (void)wait_for(reader_at, now);
    delay(now % 1021);
  };
  lab.put(lab.writer(), path);
  Litmus result;
  {
    std::jthread reader([&](std::stop_token stop) {
      for (std::uint64_t mine = 1;; ++mine) {
        while (round.load(std::memory_order_acquire) < mine) {
          if (stop.stop_requested()) return;
          std::this_thread::yield();
        }
        hit.emplace(lab.query(lab.reader(), path, kMaskFull, true));
        finished.store(mine, std::memory_order_release);
      }
    });
    while (result.both == 0 && result.meetings < most &&
           std::chrono::steady_clock::now() < deadline) {
      round.store(++result.meetings, std::memory_order_release);
      const std::uint32_t freed = lab.writer().evict(1, Component::kFull).value();
      if (!wait_for(finished, result.meetings)) break;
      if (freed != 0 && hit->pinned()) ++result.both;
      hit->finalize();
      hit.reset();
      lab.put(lab.writer(), path);
    }
  }
  on_reader_point = nullptr;
  on_fault_point = nullptr;
  return result;
}

TEST(PinFence, a_pin_and_a_truncation_see_each_other) {
  const Litmus good = meet(Mutant::kNone, std::chrono::seconds(4), 200'000);
  EXPECT_EQ(good.both, 0u) << "of " << good.meetings << " meetings";
  RecordProperty("meetings", static_cast<int>(good.meetings));
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(PinFence, no_pin_fence_is_caught) {
  const Litmus wrong = meet(Mutant::kNoPinFence, std::chrono::seconds(120), ~std::uint64_t{0});
  EXPECT_NE(wrong.both, 0u) << "survived " << wrong.meetings << " meetings";
}
#endif

}  // namespace
}  // namespace radixshmem::crash
