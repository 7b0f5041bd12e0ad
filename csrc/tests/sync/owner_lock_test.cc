// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "sync/owner_lock.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/sync/child.h"

namespace radixshmem {
namespace {

using Acquired = OwnerLock::Acquired;
using std::chrono::milliseconds;
constexpr milliseconds kPatient{20'000};
constexpr milliseconds kHasty{60};

// What the processes of a test share.
struct Shared {
  LockRoot lock;
  std::uint64_t counter;  // guarded by the lock
};

class OwnerLockTest : public ::testing::Test {
 protected:
  OwnerLockTest() : name_(unique_name("lock")) {
    void* at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RADIX_CHECK(at != MAP_FAILED, 0);
    shared_ = new (at) Shared{};
    (void)LiveFile::open(name_, /*create=*/true).ok();
  }
  ~OwnerLockTest() override {
    ::unlink(("/dev/shm" + name_ + ".live").c_str());
    ::munmap(shared_, 4096);
  }

  // A client of its own: live file, byte, lock object.
  struct Client {
    Client(OwnerLockTest& test, ClientId id, milliseconds timeout)
        : live(std::move(LiveFile::open(test.name_, /*create=*/false)).value()),
          lock(&test.shared_->lock, &live, id, timeout) {
      RADIX_CHECK(live.try_lock(id), id);
    }
    LiveFile live;
    OwnerLock lock;
  };

  // What a child does that holds the lock as `id` until it is told to go on.
  [[nodiscard]] auto hold_as(ClientId id) {
    return [this, id](Child& self) {
      Client mine(*this, id, kPatient);
      if (mine.lock.acquire() != Acquired::kClean) return 1;
      self.say_ready();
      self.wait_for_parent();
      mine.lock.release();
      return 0;
    };
  }

  std::string name_;
  Shared* shared_ = nullptr;
};

TEST_F(OwnerLockTest, NamesItsOwnerAndCountsAcquisitions) {
  Client a(*this, 1, kPatient);
  EXPECT_EQ(a.lock.owner(), -1);
  ASSERT_EQ(a.lock.acquire(), Acquired::kClean);
  EXPECT_EQ(a.lock.owner(), 1);
  EXPECT_EQ(a.lock.acquisitions(), 1u);
  a.lock.release();
  EXPECT_EQ(a.lock.owner(), -1);
  ASSERT_EQ(a.lock.acquire(), Acquired::kClean);
  EXPECT_EQ(a.lock.acquisitions(), 2u);
  a.lock.release();
}

TEST_F(OwnerLockTest, ClientZeroIsAnOwnerLikeTheOthers) {
  Client server(*this, 0, kPatient);
  Client other(*this, 1, kHasty);
  ASSERT_EQ(server.lock.acquire(), Acquired::kClean);
  EXPECT_EQ(server.lock.owner(), 0);
  EXPECT_EQ(other.lock.acquire(), Acquired::kBusy);
  server.lock.release();
  EXPECT_EQ(other.lock.acquire(), Acquired::kClean);
  other.lock.release();
}

TEST_F(OwnerLockTest, ThreadsOfSeveralClientsExcludeEachOther) {
  constexpr int kRounds = 3000;
  std::vector<std::unique_ptr<Client>> clients;
  for (ClientId id = 1; id <= 3; ++id) {
    clients.push_back(std::make_unique<Client>(*this, id, kPatient));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      OwnerLock& lock = clients[static_cast<std::size_t>(t % 3)]->lock;  // two threads per client
      for (int i = 0; i < kRounds; ++i) {
        if (lock.acquire() != Acquired::kClean) return;
        ++shared_->counter;
        lock.release();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shared_->counter, 6u * kRounds);
  EXPECT_EQ(clients[0]->lock.owner(), -1);
}

TEST_F(OwnerLockTest, ProcessesExcludeEachOther) {
  constexpr int kRounds = 3000;
  const auto work = [&](ClientId id) {
    Client self(*this, id, kPatient);
    for (int i = 0; i < kRounds; ++i) {
      if (self.lock.acquire() != Acquired::kClean) return 1;
      ++shared_->counter;
      self.lock.release();
    }
    return 0;
  };
  Child one([&](Child&) { return work(1); });
  Child two([&](Child&) { return work(2); });
  EXPECT_EQ(work(3), 0);
  EXPECT_EQ(one.wait(), 0);
  EXPECT_EQ(two.wait(), 0);
  EXPECT_EQ(shared_->counter, 3u * kRounds);
}

TEST_F(OwnerLockTest, AKilledOwnerIsTakenOverAndThatIsTold) {
  Client heir(*this, 2, kPatient);
  Child owner(hold_as(1));
  ASSERT_TRUE(owner.wait_ready());
  owner.kill_and_wait();
  ASSERT_EQ(heir.lock.acquire(), Acquired::kTakenOver);
  EXPECT_EQ(heir.lock.owner(), 2);
  heir.lock.release();
  ASSERT_EQ(heir.lock.acquire(), Acquired::kClean);
  heir.lock.release();
}

TEST_F(OwnerLockTest, OfManyHeirsExactlyOneTakesOver) {
  Child owner(hold_as(7));
  ASSERT_TRUE(owner.wait_ready());
  std::vector<std::unique_ptr<Client>> clients;
  for (ClientId id = 1; id <= 4; ++id) {
    clients.push_back(std::make_unique<Client>(*this, id, kPatient));
  }
  std::atomic<int> taken_over{0};
  std::atomic<int> clean{0};
  std::vector<std::thread> threads;
  for (auto& client : clients) {
    threads.emplace_back([&] {
      const Acquired how = client->lock.acquire();
      if (how == Acquired::kBusy) return;
      (how == Acquired::kTakenOver ? taken_over : clean).fetch_add(1);
      client->lock.release();
    });
  }
  owner.kill_and_wait();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken_over, 1);
  EXPECT_EQ(clean, 3);
}

TEST_F(OwnerLockTest, ASuccessorUnderTheSameIdTakesOverFromItsPredecessor) {
  Child owner([&](Child&) {
    Client mine(*this, 1, kPatient);
    return mine.lock.acquire() == Acquired::kClean ? 9 : 1;  // exits while it holds the lock
  });
  EXPECT_EQ(owner.wait(), 9);
  Client successor(*this, 1, kHasty);
  ASSERT_EQ(successor.lock.acquire(), Acquired::kTakenOver);
  successor.lock.release();
}

TEST_F(OwnerLockTest, AStoppedOwnerIsNotRobbedAndOthersGetBusy) {
  Client other(*this, 2, kHasty);
  Child owner(hold_as(1));
  ASSERT_TRUE(owner.wait_ready());
  owner.stop();
  EXPECT_EQ(other.lock.acquire(), Acquired::kBusy);
  EXPECT_EQ(other.lock.owner(), 1);
  EXPECT_EQ(other.lock.acquire(), Acquired::kBusy) << "busy leaves the object usable";
  owner.signal(SIGCONT);
  owner.go_on();
  EXPECT_EQ(owner.wait(), 0);
  EXPECT_EQ(other.lock.acquire(), Acquired::kClean);
  other.lock.release();
}

TEST_F(OwnerLockTest, AStoppedOwnerCostsTheTimeoutOnce) {
  constexpr milliseconds kTimeout{200};
  constexpr int kCalls = 200;
  Client other(*this, 2, kTimeout);
  Child owner(hold_as(1));
  ASSERT_TRUE(owner.wait_ready());
  owner.stop();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) ASSERT_EQ(other.lock.acquire(), Acquired::kBusy);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, kTimeout) << "the first one waits";
  EXPECT_LT(took, kTimeout * (kCalls / 4)) << "each one waited";
  owner.signal(SIGCONT);
  owner.go_on();
  EXPECT_EQ(owner.wait(), 0);
  Child next(hold_as(1));
  ASSERT_TRUE(next.wait_ready());
  next.stop();
  const auto again = std::chrono::steady_clock::now();
  EXPECT_EQ(other.lock.acquire(), Acquired::kBusy);
  EXPECT_GE(std::chrono::steady_clock::now() - again, kTimeout) << "of another acquisition";
  next.kill_and_wait();
  EXPECT_EQ(other.lock.acquire(), Acquired::kTakenOver) << "at once, too";
  other.lock.release();
}

TEST_F(OwnerLockTest, AStoppedOwnerThatIsKilledIsTakenOver) {
  Client other(*this, 2, kHasty);
  Child owner(hold_as(1));
  ASSERT_TRUE(owner.wait_ready());
  owner.stop();
  EXPECT_EQ(other.lock.acquire(), Acquired::kBusy);
  owner.kill_and_wait();
  EXPECT_EQ(other.lock.acquire(), Acquired::kTakenOver);
  other.lock.release();
}

TEST_F(OwnerLockTest, ASecondThreadOfAClientThatHoldsItGetsBusyToo) {
  Client client(*this, 1, milliseconds(50));
  ASSERT_EQ(client.lock.acquire(), Acquired::kClean);
  Acquired second = Acquired::kClean;
  std::thread thread([&] { second = client.lock.acquire(); });
  thread.join();
  EXPECT_EQ(second, Acquired::kBusy);
  client.lock.release();
}

TEST_F(OwnerLockTest, ALostWakeUpCostsASleeperNoMoreThanItsTimeout) {
  Client sleeper(*this, 2, kPatient);
  Client holder(*this, 1, kPatient);
  ASSERT_EQ(holder.lock.acquire(), Acquired::kClean);
  std::thread thread([&] {
    EXPECT_EQ(sleeper.lock.acquire(), Acquired::kClean);
    sleeper.lock.release();
  });
  auto& word = shared_->lock.word;
  while ((word.load() & 1) == 0) std::this_thread::yield();  // it is going to sleep
  // An unlocker that is killed before its wake-up: the word is free, nobody is woken.
  word.fetch_and(~std::uint64_t{0xffffffff});
  thread.join();
  EXPECT_EQ(sleeper.lock.owner(), -1);
}

}  // namespace
}  // namespace radixshmem
