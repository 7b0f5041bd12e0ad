// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Bytes under load: every slot's data carries the hash of its block and a generation that no other
// writing has. Writers allocate, write, insert; readers copy under pins, or without and validate
// afterwards; evictors and resets run all the time. No copy may ever be wrong.
// Every session maps the region at an address of its own, and the thread sanitizer does not see
// that an atomic in two mappings is one word: the slot bytes are kept from it, else it would call
// every hand-over of a slot a race.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <array>
#include <iterator>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "tests/node/server_rig.h"

namespace radixshmem {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr std::uint32_t kRounds = 6'000;
constexpr bool kCopyUnpinned = false;  // a race by design: only validate() makes it good
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t kRounds = 8'000;
constexpr bool kCopyUnpinned = true;
#else
constexpr std::uint32_t kRounds = 150'000;
constexpr bool kCopyUnpinned = true;
#endif

constexpr std::uint32_t kFullSlots = 150;
constexpr std::uint32_t kSwaSlots = 40;

#if defined(__SANITIZE_THREAD__)
#define RADIX_UNSEEN __attribute__((no_sanitize("thread"), noinline))
#else
#define RADIX_UNSEEN
#endif

struct SlotBytes {
  std::uint64_t word[16];

  RADIX_UNSEEN void copy_from(const SlotBytes& other) {
    for (std::size_t i = 0; i < std::size(word); ++i) word[i] = other.word[i];
  }
  RADIX_UNSEEN void fill(BlockHash hash, std::uint64_t generation) {
    word[0] = hash;
    word[1] = generation;
    for (std::uint64_t i = 2; i < std::size(word); ++i) word[i] = mix_hash(hash ^ (generation + i));
  }
  [[nodiscard]] bool holds(BlockHash hash) const {
    if (word[0] != hash) return false;
    for (std::uint64_t i = 2; i < std::size(word); ++i) {
      if (word[i] != mix_hash(hash ^ (word[1] + i))) return false;
    }
    return true;
  }
};

// What all workers share beside the index.
struct Shared {
  std::array<SlotBytes, kFullSlots> full;
  std::array<SlotBytes, kSwaSlots> swa;
  std::atomic<std::uint64_t> wrong;
  std::atomic<std::uint64_t> pinned_copies;
  std::atomic<std::uint64_t> aux_copies;
  std::atomic<std::uint64_t> valid_copies;
  std::atomic<std::uint64_t> discarded_copies;
  std::atomic<std::uint64_t> inserted;
};

class Worker final {
 public:
  Worker(const ServerRig& rig, Shared& shared, std::uint64_t seed)
      : shared_(shared), session_(rig.attach()), random_(seed), generation_(seed << 40) {}
  ~Worker() { session_->close(); }

  void run(std::uint32_t rounds) {
    for (std::uint32_t i = 0; i < rounds; ++i) {
      const std::uint32_t dice = below(1000);
      if (dice < 500)
        read_pinned();
      else if (dice < 620)
        kCopyUnpinned ? read_and_validate() : read_pinned();
      else if (dice < 980)
        write();
      else if (dice < 999)
        (void)session_->evict(below(30), Component::kFull).ok();
      else
        (void)session_->reset().ok();
    }
  }

 private:
  [[nodiscard]] std::uint32_t below(std::uint32_t n) {
    return static_cast<std::uint32_t>(random_() % n);
  }
  [[nodiscard]] Path random_path() {
    const std::uint64_t trunk = 1 + below(4);
    const std::uint32_t keep = below(3) == 0 ? 1 + below(39) : 16;
    // Chained as real hashes are: a tail of its own for each place where a trunk is left.
    const std::uint64_t tail = 1000 + (trunk * 64 + keep) * 4 + below(3);
    return branch_of(make_path(trunk, 40), keep, tail, below(24));
  }
  void check(const SlotBytes& copy, BlockHash hash) {
    if (!copy.holds(hash)) shared_.wrong.fetch_add(1);
  }

  void read_pinned() {
    const Path path = random_path();
    const std::uint32_t kind = below(6);
    const std::uint32_t mask = kind < 2 ? kMaskFull | kMaskSwa : kMaskFull;
    Hit hit = kind == 5 ? query_aux(session_, path, Component::kSwa, below(20), /*lock=*/true)
                        : query(session_, path, mask, /*lock=*/true);
    const std::vector<std::int32_t>& aux = hit.window.aux_slots;
    SlotBytes copy;
    std::array<std::uint64_t, 64> generations{};
    for (const int pass : {0, 1}) {  // the same bytes as long as the pin holds
      for (Position p = 0; p < hit.blocks; ++p) {
        copy.copy_from(shared_.full[static_cast<std::size_t>(hit.full_slots[p])]);
        check(copy, path[p]);
        if (pass == 1 && generations[p] != copy.word[1]) shared_.wrong.fetch_add(1);
        generations[p] = copy.word[1];
      }
      for (std::size_t i = 0; i < hit.window.swa_slots.size(); ++i) {
        copy.copy_from(shared_.swa[static_cast<std::size_t>(hit.window.swa_slots[i])]);
        check(copy, ~path[hit.window.swa_start + i]);
      }
      for (std::size_t i = 0; i < aux.size(); ++i) {
        if (aux[i] < 0) continue;
        copy.copy_from(shared_.swa[static_cast<std::size_t>(aux[i])]);
        check(copy, ~path[hit.blocks - aux.size() + i]);
        shared_.aux_copies.fetch_add(1);
      }
      if (pass == 0 && below(4) == 0) std::this_thread::yield();
    }
    if (hit.blocks != 0) shared_.pinned_copies.fetch_add(1);
    hit.finalize();
  }

  void read_and_validate() {
    const Path path = random_path();
    const Hit hit = query(session_, path);
    std::vector<SlotBytes> copies(hit.blocks);
    for (Position p = 0; p < hit.blocks; ++p) {
      copies[p].copy_from(shared_.full[static_cast<std::size_t>(hit.full_slots[p])]);
    }
    if (!hit.validate()) {
      shared_.discarded_copies.fetch_add(1);
      return;
    }
    for (Position p = 0; p < hit.blocks; ++p) check(copies[p], path[p]);
    if (hit.blocks != 0) shared_.valid_copies.fetch_add(1);
  }

  void write() {
    Path path = random_path();
    const Position have = query(session_, path).blocks;
    const std::int64_t missing = static_cast<std::int64_t>(path.size()) - have;
    const Slots slots = allocate(session_, std::min<std::int64_t>(missing, 24));
    path.resize(have + slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      shared_.full[static_cast<std::size_t>(slots[i])].fill(path[have + i], ++generation_);
    }
    const InsertOutcome outcome = insert(session_, path, slots, have);
    shared_.inserted.fetch_add(outcome.last - outcome.first);
    if (outcome.error != ErrorCode::OK || path.empty() || below(2) == 0) return;
    const auto window = std::min<std::int64_t>(4, static_cast<std::int64_t>(path.size()));
    const Slots swa = allocate(session_, window, Component::kSwa);
    for (std::size_t i = 0; i < swa.size(); ++i) {
      const BlockHash hash = path[path.size() - swa.size() + i];
      shared_.swa[static_cast<std::size_t>(swa[i])].fill(~hash, ++generation_);
    }
    (void)insert(session_, path, swa, 0, true, Component::kSwa);
  }

  Shared& shared_;
  SessionPtr session_;
  std::mt19937_64 random_;
  std::uint64_t generation_;
};

class BytesTest : public ::testing::Test {
 protected:
  static IndexPlan plan() {
    IndexPlan plan = small_plan(kFullSlots, kSwaSlots);
    plan.lock_timeout_ms = 20'000;
    return plan;
  }
  BytesTest() : rig_(plan()) {
    void* at =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RADIX_CHECK(at != MAP_FAILED, sizeof(Shared));
    shared_ = new (at) Shared{};
  }
  ~BytesTest() override { ::munmap(shared_, sizeof(Shared)); }

  void expect_sound(std::uint32_t checks) {
    EXPECT_EQ(shared_->wrong, 0u);
    EXPECT_GT(shared_->pinned_copies, 0u);
    EXPECT_GT(shared_->aux_copies, 0u);
    EXPECT_GT(shared_->inserted, 0u);
    EXPECT_GT(checks, 0u);
    if (kCopyUnpinned) {
      EXPECT_GT(shared_->valid_copies, 0u);
    }
    EXPECT_EQ(wrong(), "");
    // Nothing is in anybody's hands any more.
    EXPECT_EQ(
        ServerRig::take(rig_.own().slots_free({})) + ServerRig::take(rig_.own().total_blocks()),
        kFullSlots);
    EXPECT_GT(rig_.own().tree().control().work.evicted_blocks.load(), 0u);
  }
  [[nodiscard]] std::string wrong() {
    std::string text;
    for (const std::string& line : ServerRig::take(rig_.own().check(false))) text += line + "\n";
    return text;
  }

  ServerRig rig_;
  Shared* shared_;
};

TEST_F(BytesTest, ThreadsNeverCopyWrongBytes) {
  std::atomic<int> running{4};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&, t] {
      Worker(rig_, *shared_, t).run(kRounds);
      --running;
    });
  }
  std::uint32_t checks = 0;
  while (running > 0) {
    ASSERT_EQ(wrong(), "");
    ++checks;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a pace, nothing waits for it
  }
  for (std::thread& thread : threads) thread.join();
  expect_sound(checks);
}

TEST_F(BytesTest, ProcessesNeverCopyWrongBytes) {
  std::vector<std::unique_ptr<Child>> children;
  for (std::uint64_t t = 1; t <= 3; ++t) {
    children.push_back(std::make_unique<Child>([&](Child&) {
      Worker(rig_, *shared_, 100 + t).run(kRounds);
      return 0;
    }));
  }
  std::uint32_t checks = 0;
  const auto all_ended = [&] {
    for (const auto& child : children) {
      siginfo_t info{};
      ::waitid(P_PID, static_cast<id_t>(child->pid()), &info, WEXITED | WNOHANG | WNOWAIT);
      if (info.si_pid == 0) return false;
    }
    return true;
  };
  while (!all_ended()) {
    ASSERT_EQ(wrong(), "");
    ++checks;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a pace, nothing waits for it
  }
  for (const auto& child : children) EXPECT_EQ(child->wait(), 0);
  expect_sound(checks);
}

}  // namespace
}  // namespace radixshmem
