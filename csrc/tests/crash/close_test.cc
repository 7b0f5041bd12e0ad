// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A client closes while a process of its group dies with one of its slots in hand.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>

#include "tests/crash/lab.h"

namespace radixshmem::crash {
namespace {

TEST(Close, gives_back_a_slot_that_the_death_of_a_group_member_returned) {
  Lab lab(Mutant::kNone);
  auto closing = Session::attach(lab.name(), "engine", false).value();
  const std::vector<std::int32_t> slots = closing->allocate(1, Component::kFull).value();
  std::array<int, 2> ready{};
  std::array<int, 2> go{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  ASSERT_EQ(::pipe(go.data()), 0);
  char byte = 0;
  const pid_t member = ::fork();
  if (member == 0) {
    auto session = Session::attach(lab.name(), "engine", false).value();
    on_fault_point = [](FaultPoint point) {
      if (point == FaultPoint::segment_owner) ::kill(::getpid(), SIGKILL);
    };
    if (::write(ready[1], &byte, 1) != 1 || ::read(go[0], &byte, 1) != 1) ::_exit(1);
    (void)session->insert(path_of(1, 1), slots, 0, true, Component::kFull);
    ::_exit(1);
  }
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);

  // close() takes the lock twice. In its first hold the member queues up; between the two the
  // member gets the lock and dies.
  int status = 0;
  bool queued = false;
  on_fault_point = [&](FaultPoint point) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    if (point == FaultPoint::locked && !queued) {
      queued = true;
      EXPECT_EQ(::write(go[1], &byte, 1), 1);
      while ((lab.tree().control().lock.word.load() & 1) == 0 &&
             std::chrono::steady_clock::now() < deadline) {
      }
    } else if (point == FaultPoint::unlock_before_wake && status == 0) {
      ::waitpid(member, &status, 0);
    }
  };
  closing->close();
  on_fault_point = nullptr;
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  for (const int fd : {ready[0], ready[1], go[0], go[1]}) ::close(fd);
  EXPECT_EQ(lab.first_violation(), "");
  EXPECT_TRUE(
      owner_is_free(lab.tree().pool(Component::kFull).owner(static_cast<SlotId>(slots[0]))));
}

// A server that dies right after it put slots into quarantine has not counted them.
TEST(Quarantine, of_a_dead_server_is_released_by_the_next_one) {
  Lab lab(Mutant::kNone);
  const std::vector<std::int32_t> slots = lab.writer().allocate(3, Component::kFull).value();
  ASSERT_TRUE(lab.server().locked([&] {
    for (const std::int32_t slot : slots) {
      lab.tree().pool(Component::kFull).restore_owner(static_cast<SlotId>(slot), kOwnerQuarantine);
    }
  }));
  lab.release_quarantine();
  EXPECT_TRUE(
      owner_is_free(lab.tree().pool(Component::kFull).owner(static_cast<SlotId>(slots[0]))));
}

}  // namespace
}  // namespace radixshmem::crash
