// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Registration, slots in hand, groups, events, close and fork.
#include "node/session.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/node/server_rig.h"

namespace radixshmem {
namespace {

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() : rig_(plan()), client_(rig_.attach()), path_(make_path(1, 40)) {}
  static IndexPlan plan() {
    IndexPlan plan = small_plan(200, 40, 10);
    plan.lock_timeout_ms = 60;
    return plan;
  }
  ServerRig rig_;
  SessionPtr client_;
  Path path_;
};

TEST_F(SessionTest, ClientsGetIdsOfTheirOwnAndReuseThem) {
  const SessionPtr other = rig_.attach();
  EXPECT_NE(client_->client_id(), other->client_id());
  EXPECT_NE(client_->client_id(), 0u);
  const ClientId id = other->client_id();
  const std::uint32_t generation = other->generation();
  other->close();
  const SessionPtr next = rig_.attach();
  EXPECT_EQ(next->client_id(), id);
  EXPECT_EQ(next->generation(), generation + 1);
}

TEST_F(SessionTest, AFullClientTableIsAClearErrorThatLeavesNothingBehind) {
  std::vector<SessionPtr> clients;
  for (std::uint32_t i = 1; i < rig_.plan().max_clients; ++i) clients.push_back(rig_.attach());
  const auto refused = Session::attach(rig_.name(), "", false);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("max-clients"), std::string::npos);
  clients.pop_back();
  EXPECT_TRUE(Session::attach(rig_.name(), "", false).ok());
}

TEST_F(SessionTest, AFullClientTableCanBeInspected) {
  std::vector<SessionPtr> clients;
  for (std::uint32_t i = 1; i < rig_.plan().max_clients; ++i) clients.push_back(rig_.attach());
  put(clients.back(), path_);
  {
    const SessionPtr inspector = ServerRig::take(Session::inspect(rig_.name()));
    EXPECT_EQ(problems(inspector), "");
    const auto second = Session::inspect(rig_.name());
    ASSERT_FALSE(second.ok());
    EXPECT_NE(second.error().message.find("another check or dump"), std::string::npos);
    EXPECT_FALSE(Session::attach(rig_.name(), "", false).ok());
  }
  EXPECT_FALSE(Session::attach(rig_.name(), "", false).ok()) << "its entry is no client's";
}

TEST_F(SessionTest, AnInspectorKilledUnderTheLockIsTakenOverAndReaped) {
  std::vector<SessionPtr> clients;
  for (std::uint32_t i = 1; i < rig_.plan().max_clients; ++i) clients.push_back(rig_.attach());
  Child child([&](Child& self) {
    const SessionPtr inspector = ServerRig::take(Session::inspect(rig_.name()));
    (void)inspector->locked([&] {
      self.say_ready();
      self.wait_for_parent();
    });
    return 0;
  });
  ASSERT_TRUE(child.wait_ready());
  child.kill_and_wait();
  put(client_, path_);
  EXPECT_FALSE(Session::inspect(rig_.name()).ok()) << "not before the dead one is reaped";
  EXPECT_TRUE(rig_.server().reap(rig_.plan().max_clients + 1, /*exited=*/true).ok());
  EXPECT_EQ(problems(ServerRig::take(Session::inspect(rig_.name()))), "");
}

TEST_F(SessionTest, WhoInspectsTheIndexOfADeadServerDoesNotKeepIt) {
  std::vector<SessionPtr> clients;
  for (std::uint32_t i = 1; i < rig_.plan().max_clients; ++i) clients.push_back(rig_.attach());
  const SessionPtr inspector = ServerRig::take(Session::inspect(rig_.name()));
  rig_.die();
  clients.clear();
  client_.reset();
  rig_.claim();
  EXPECT_EQ(rig_.server().found(), Predecessor::kDead);
}

TEST_F(SessionTest, WithoutAServerAttachIsNotReady) {
  const auto session = Session::attach(unique_name("nobody"), "", false);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.error().code, ErrorCode::NOT_READY);
}

TEST_F(SessionTest, AllocationsOutOfRangeAreErrors) {
  for (const std::int64_t n : {std::int64_t{-1}, std::int64_t{201}, std::int64_t{1} << 40}) {
    const auto slots = client_->allocate(n, Component::kFull);
    ASSERT_FALSE(slots.ok()) << n;
    EXPECT_EQ(slots.error().code, ErrorCode::INVALID_ARGUMENT);
  }
  EXPECT_TRUE(allocate(client_, 0).empty());
  EXPECT_EQ(allocate(client_, 200).size(), 200u) << "a pool can be taken to the last slot";
  EXPECT_TRUE(allocate(client_, 1).empty());
}

TEST_F(SessionTest, RecycleRefusesWhatIsNotTheGroupsAndRecyclesNothing) {
  const Slots in_tree = put(client_, path_);
  const Slots mine = allocate(client_, 3);
  const SessionPtr other = rig_.attach();
  const Slots theirs = allocate(other, 1);
  for (const std::int32_t bad : {in_tree[0], theirs[0], -1, 200, 199, 0x7fffffff}) {
    const auto done = client_->recycle(Slots{mine[0], bad, mine[1]}, Component::kFull);
    ASSERT_FALSE(done.ok()) << bad;
    EXPECT_NE(done.error().message.find(std::to_string(bad)), std::string::npos);
  }
  EXPECT_FALSE(client_->recycle(Slots{mine[0], mine[0]}, Component::kFull).ok());
  EXPECT_TRUE(client_->recycle(mine, Component::kFull).ok());
  EXPECT_FALSE(client_->recycle(mine, Component::kFull).ok()) << "once only";
  EXPECT_TRUE(client_->recycle(Slots{}, Component::kFull).ok());
  EXPECT_EQ(problems(client_), "");
}

TEST_F(SessionTest, UnusedSlotsAreRecycledOnlyIfAsked) {
  put(client_, path_);
  const Slots keep = allocate(client_, 40);
  EXPECT_EQ(insert(client_, path_, keep, 0, /*recycle=*/false).unused, keep);
  EXPECT_EQ(free_slots(client_), 120u);
  EXPECT_EQ(insert(client_, path_, keep, 0, /*recycle=*/true).unused, keep);
  EXPECT_EQ(free_slots(client_), 160u);
  const Slots lost = allocate(client_, 5);
  EXPECT_EQ(insert(client_, make_path(3, 20), lost, 15).error, ErrorCode::FULL_PATH_MISSING);
  EXPECT_EQ(free_slots(client_), 160u);
}

TEST_F(SessionTest, InsertsThatBreakARuleChangeNothing) {
  const Slots slots = allocate(client_, 10);
  const Path ten = first_of(path_, 10);
  const auto refused = [&](const Path& path, const Slots& used, Position start, Component c) {
    const InsertOutcome outcome = insert(client_, path, used, start, true, c);
    EXPECT_EQ(outcome.error, ErrorCode::BAD_REQUEST);
    EXPECT_TRUE(outcome.unused.empty());
    EXPECT_EQ(outcome.first, outcome.last);
  };
  refused(ten, slots, 1, Component::kFull);  // beyond the path
  refused(ten, slots, 11, Component::kFull);
  refused(ten, slots, 0xffffffffu, Component::kFull);
  refused(ten, Slots(10, slots[0]), 0, Component::kFull);
  ASSERT_EQ(insert(client_, ten, slots).error, ErrorCode::OK);
  const Slots swa = allocate(client_, 5, Component::kSwa);
  refused(ten, swa, 0, Component::kSwa);  // longer than the window
  refused(ten, {swa[0]}, 9, Component::kSwa);
  refused(first_of(ten, 2), {swa[0], swa[1], swa[2]}, 0, Component::kSwa);
  const Slots mamba = allocate(client_, 2, Component::kMamba);
  refused(ten, mamba, 0, Component::kMamba);
  refused(ten, {}, 0, Component::kMamba);
  refused(ten, {mamba[0]}, 5, Component::kMamba);
  refused({}, {mamba[0]}, 0, Component::kMamba);
  for (const Position start : {0u, 9u}) {
    EXPECT_EQ(
        insert(client_, ten, {mamba[start == 0 ? 0 : 1]}, start, false, Component::kMamba).error,
        ErrorCode::OK);
  }
  ServerRig full(small_plan(50));
  const SessionPtr client = full.attach();
  EXPECT_EQ(insert(client, ten, {}, 0, true, Component::kSwa).error, ErrorCode::BAD_REQUEST);
  EXPECT_FALSE(client->allocate(1, Component::kSwa).ok());
  EXPECT_FALSE(client->recycle(Slots{0}, Component::kMamba).ok());
  EXPECT_EQ(problems(client_), "");
}

TEST_F(SessionTest, MembersOfAGroupShareTheirSlots) {
  const SessionPtr a = rig_.attach("engine");
  const SessionPtr b = rig_.attach("engine");
  const SessionPtr stranger = rig_.attach("another");
  const Slots slots = allocate(a, 10);
  EXPECT_EQ(insert(stranger, first_of(path_, 5), Slots(slots.begin(), slots.begin() + 5)).error,
            ErrorCode::BAD_REQUEST);
  EXPECT_EQ(insert(b, first_of(path_, 5), Slots(slots.begin(), slots.begin() + 5)).error,
            ErrorCode::OK);
  EXPECT_FALSE(stranger->recycle(Slots{slots[5]}, Component::kFull).ok());
  EXPECT_TRUE(b->recycle(Slots(slots.begin() + 5, slots.end()), Component::kFull).ok());
  EXPECT_EQ(problems(a), "");
}

TEST_F(SessionTest, CloseGivesSlotsAndIdBackAndRefusesEverything) {
  const SessionPtr other = rig_.attach();
  (void)allocate(client_, 50);
  (void)allocate(client_, 5, Component::kSwa);
  client_->close();
  client_->close();
  EXPECT_EQ(free_slots(other), 200u);
  EXPECT_EQ(free_slots(other, Component::kSwa), 40u);
  EXPECT_EQ(client_->state(), ErrorCode::CLOSED);
  EXPECT_FALSE(client_->usable());
  EXPECT_EQ(client_->query(path_, {}).error().code, ErrorCode::CLOSED);
  EXPECT_EQ(client_->allocate(1, Component::kFull).error().code, ErrorCode::CLOSED);
  EXPECT_EQ(client_->reset().error().code, ErrorCode::CLOSED);
  EXPECT_EQ(problems(other), "");
}

TEST_F(SessionTest, CloseWaitsForCallsOfOtherThreads) {
  put(client_, path_);
  std::vector<std::thread> threads;
  std::atomic<int> started{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      bool first = true;
      for (;;) {
        auto hit = client_->query(path_, {kMaskFull, /*lock=*/true, true});
        if (std::exchange(first, false)) ++started;
        if (!hit.ok()) return;
        hit.value().finalize();
        if (!client_->allocate(1, Component::kFull).ok()) return;
      }
    });
  }
  while (started < 3) std::this_thread::yield();
  client_->close();
  for (std::thread& thread : threads) thread.join();
  const SessionPtr other = rig_.attach();
  EXPECT_EQ(problems(other), "");
  EXPECT_EQ(allocate(other, 200).size(), 200u) << "neither pins nor slots are left";
}

TEST_F(SessionTest, AClosedServerMakesCallsNotReady) {
  put(client_, path_);
  Hit hit = query(client_, path_, kMaskFull, true);
  rig_.server().close();
  rig_.server_ptr().reset();
  const auto after = client_->query(path_, {});
  ASSERT_FALSE(after.ok());
  EXPECT_EQ(after.error().code, ErrorCode::NOT_READY);
  EXPECT_EQ(client_->state(), ErrorCode::NOT_READY);
  EXPECT_FALSE(hit.validate());
  hit.finalize();
  client_->close();
  EXPECT_NE(::access(("/dev/shm" + rig_.name() + ".live").c_str(), F_OK), 0)
      << "the last one takes the live file along";
}

TEST_F(SessionTest, EvictionsOfAnyClientAreSeenAsEvents) {
  const SessionPtr other = rig_.attach();
  put(client_, path_);
  ASSERT_TRUE(client_->seek_events_to_head().ok());
  ServerRig::take(other->evict(7, Component::kFull));
  bool overflow = true;
  const auto first = ServerRig::take(client_->drain_removed(3, overflow));
  EXPECT_FALSE(overflow);
  EXPECT_EQ(first.size(), 3u);
  const auto rest = ServerRig::take(client_->drain_removed(100, overflow));
  EXPECT_EQ(rest.size(), 4u);
  std::vector<BlockHash> all(first);
  all.insert(all.end(), rest.begin(), rest.end());
  std::sort(all.begin(), all.end());
  Path expected(path_.begin() + 33, path_.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(all, expected);
  EXPECT_TRUE(ServerRig::take(client_->drain_removed(100, overflow)).empty());
}

TEST_F(SessionTest, ResetAndLapsAreToldAsOverflow) {
  bool overflow = false;
  put(client_, path_);
  ASSERT_TRUE(client_->reset().ok());
  (void)ServerRig::take(client_->drain_removed(100, overflow));
  EXPECT_TRUE(overflow);
  (void)ServerRig::take(client_->drain_removed(100, overflow));
  EXPECT_FALSE(overflow);
  for (std::uint64_t i = 0; i < 20; ++i) put(client_, make_path(10 + i, 100));  // 2,000 events
  (void)ServerRig::take(client_->drain_removed(100, overflow));
  EXPECT_TRUE(overflow);
}

TEST_F(SessionTest, AStoppedLockHolderMakesWritersBusyAndReadersGoOn) {
  const Slots slots = put(client_, path_);
  const Slots mine = allocate(client_, 10);
  Child holder([&](Child& self) {
    const SessionPtr session = rig_.attach();
    (void)session->locked([&] {
      self.say_ready();
      self.wait_for_parent();
    });
    return 0;
  });
  ASSERT_TRUE(holder.wait_ready());
  holder.stop();
  EXPECT_TRUE(allocate(client_, 1).empty());
  const InsertOutcome outcome = insert(client_, make_path(5, 10), mine);
  EXPECT_EQ(outcome.error, ErrorCode::BUSY);
  EXPECT_TRUE(outcome.unused.empty());
  EXPECT_EQ(client_->reset().error().code, ErrorCode::TIMEOUT);
  EXPECT_TRUE(client_->recycle(Slots{mine[0], mine[1]}, Component::kFull).ok())
      << "it waits for the next locked call";
  EXPECT_FALSE(client_->recycle(Slots{mine[0]}, Component::kFull).ok()) << "but only once";
  Hit hit = query(client_, path_, kMaskFull, true);
  EXPECT_EQ(slots_of(hit), slots);
  EXPECT_FALSE(Session::attach(rig_.name(), "", false).ok());
  holder.signal(SIGCONT);
  holder.go_on();
  EXPECT_EQ(holder.wait(), 0);
  EXPECT_EQ(
      insert(client_, first_of(make_path(5, 10), 8), Slots(mine.begin() + 2, mine.end())).error,
      ErrorCode::OK);
  EXPECT_EQ(free_slots(client_), 200u - 40 - 8) << "the recycled slots went along";
  EXPECT_GE(client_->tree().clients().total(Counter::kBusy), 4u);
  EXPECT_EQ(problems(client_), "");
}

TEST_F(SessionTest, InAForkedChildTheSessionIsUnusableAndHarmless) {
  put(client_, path_);
  auto hit = std::make_unique<Hit>(query(client_, path_, kMaskFull, true));
  Child child([&](Child&) {
    if (client_->query(path_, {}).error().code != ErrorCode::CLOSED) return 1;
    hit->finalize();
    hit.reset();
    client_->close();
    client_.reset();
    const SessionPtr own = rig_.attach();  // its own works
    return query(own, path_).blocks == 40 ? 0 : 2;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(hit->validate());
  EXPECT_EQ(client_->pins_outstanding(), 1u);
  EXPECT_EQ(allocate(client_, 200).size(), 160u) << "the pin still holds";
  EXPECT_TRUE(rig_.server().client_alive(client_->client_id()));
}

}  // namespace
}  // namespace radixshmem
