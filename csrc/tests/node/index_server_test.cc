// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One server per name, reaping by groups, quarantine, adoption and reclaim.
#include "node/index_server.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "node/inspect.h"
#include "tests/node/server_rig.h"

namespace radixshmem {
namespace {

class IndexServerTest : public ::testing::Test {
 protected:
  IndexServerTest() : rig_(small_plan(200, 40, 10)), path_(make_path(1, 30)) {}

  // A client in another process that holds 10 slots and a pin, then is killed. Returns: its id.
  ClientId dead_client(const std::string& group, std::int64_t slots = 10) {
    ClientId id = 0;
    Child child([&](Child& self) {
      const SessionPtr session = rig_.attach(group);
      (void)allocate(session, slots);
      const Hit hit = query(session, path_, kMaskFull, true);
      self.say_ready();
      self.wait_for_parent();
      return 0;
    });
    EXPECT_TRUE(child.wait_ready());
    for (const ClientInfo& client : ServerRig::take(list_clients(rig_.own()))) {
      if (client.id != 0 && client.alive) id = std::max(id, client.id);
    }
    child.kill_and_wait();
    EXPECT_FALSE(rig_.server().client_alive(id));
    return id;
  }
  [[nodiscard]] std::uint32_t free() { return ServerRig::take(rig_.own().slots_free({})); }
  [[nodiscard]] std::string wrong() {
    std::string text;
    for (const std::string& line : ServerRig::take(rig_.own().check(false))) text += line + "\n";
    return text;
  }
  IndexServer::Reaped reap(ClientId id, bool exited) {
    return ServerRig::take(rig_.server().reap(id, exited));
  }

  ServerRig rig_;
  Path path_;
};

TEST_F(IndexServerTest, ANameHasOneLivingServer) {
  const auto second = IndexServer::claim(rig_.name(), 0600, -1);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find(rig_.name()), std::string::npos);
}

TEST_F(IndexServerTest, AnExitedClientsSlotsAndPinsComeBackAtOnce) {
  put(rig_.attach(), path_);
  const ClientId id = dead_client("");
  EXPECT_EQ(free(), 160u);
  const IndexServer::Reaped reaped = reap(id, /*exited=*/true);
  EXPECT_EQ(reaped.pins, 1u);
  EXPECT_EQ(reaped.slots, 10u);
  EXPECT_EQ(free(), 170u);
  EXPECT_EQ(wrong(), "");
  const IndexServer::Reaped again = reap(id, true);
  EXPECT_EQ(again.pins + again.slots, 0u);
}

TEST_F(IndexServerTest, SlotsOfAClientNotSeenToExitGoThroughQuarantine) {
  const ClientId id = dead_client("");
  EXPECT_EQ(reap(id, /*exited=*/false).slots, 10u);
  EXPECT_EQ(free(), 190u);
  EXPECT_EQ(wrong(), "");
  EXPECT_EQ(ServerRig::take(rig_.server().release_quarantine()), 0u) << "not a whole period yet";
  EXPECT_EQ(free(), 190u);
  EXPECT_EQ(ServerRig::take(rig_.server().release_quarantine()), 10u);
  EXPECT_EQ(free(), 200u);
  EXPECT_EQ(ServerRig::take(rig_.server().release_quarantine()), 0u);
  EXPECT_EQ(wrong(), "");
}

TEST_F(IndexServerTest, ALivingClientIsNeverReaped) {
  const SessionPtr client = rig_.attach();
  (void)allocate(client, 5);
  const auto refused = rig_.server().reap(client->client_id(), true);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(free(), 195u);
}

TEST_F(IndexServerTest, AnEntryTakenAnewWhileTheReaperWaitsForTheLockIsLeftAlone) {
  put(rig_.attach(), path_);
  const ClientId id = dead_client("");
  const SessionPtr holder = rig_.attach();
  ClientTable& clients = rig_.own().tree().clients();
  auto live = LiveFile::open(rig_.name(), /*create=*/false);
  ASSERT_TRUE(live.ok());
  std::thread reaper;
  ASSERT_TRUE(holder->locked([&] {
    reaper = std::thread([&] { EXPECT_EQ(reap(id, true).slots, 0u); });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const auto& word = rig_.own().tree().control().lock.word;
    while ((word.load() & 1) == 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    clients.free_entry(id);  // its slots stay, and are those of the next one
    ASSERT_TRUE(live.value().try_lock(id));
    clients.claim(id, id, 1);
    clients.entry(id).pin_high_water = 1;
    clients.pin(id, 0) = PinWord{1, 1, kMaskFull}.pack();
  }));
  reaper.join();
  EXPECT_EQ(clients.state(id), ClientState::kLive);
  EXPECT_NE(clients.pin(id, 0).load(), 0u);
  EXPECT_EQ(rig_.own().tree().slots_of(Component::kFull, client_owner(id)).size(), 10u);
}

TEST(IndexServerCloseTest, AClientThatClosesWhileTheLockIsBusyLeavesAllToTheReaper) {
  IndexPlan plan = small_plan(200);
  plan.lock_timeout_ms = 50;
  ServerRig rig(plan);
  const Path path = make_path(1, 30);
  const SessionPtr holder = rig.attach();
  const SessionPtr closing = rig.attach();
  put(closing, path);
  (void)allocate(closing, 10);
  const Hit hit = query(closing, path, kMaskFull, true);
  const ClientId id = closing->client_id();
  ASSERT_TRUE(holder->locked([&] { closing->close(); }));
  EXPECT_EQ(ServerRig::take(list_pins(rig.own())).size(), 0u);
  EXPECT_FALSE(rig.server().client_alive(id));
  // Its process lives, so nobody has seen it exit; still none of its slots needs a quarantine.
  EXPECT_EQ(ServerRig::take(rig.server().reap(id, /*exited=*/false)).slots, 10u);
  EXPECT_EQ(free_slots(holder), 170u);
  EXPECT_EQ(holder->tree().clients().state(id), ClientState::kFree);
  EXPECT_EQ(problems(holder), "");
}

TEST_F(IndexServerTest, ReapingNobodyIsANoOp) {
  for (const ClientId id : {0u, 5u, 8u, 0xffffffffu}) {
    EXPECT_EQ(reap(id, true).slots, 0u) << id;
  }
}

TEST_F(IndexServerTest, SlotsWaitWhileAMemberOfTheGroupLives) {
  SessionPtr member = rig_.attach("engine");
  const ClientId first = dead_client("engine");
  const ClientId second = dead_client("engine");
  EXPECT_NE(first, second);
  EXPECT_EQ(reap(first, true).slots, 0u);
  EXPECT_EQ(reap(second, false).slots, 0u);
  EXPECT_EQ(free(), 180u);
  const SessionPtr stranger = rig_.attach();
  EXPECT_NE(stranger->client_id(), first) << "an id is not free while slots carry it";
  EXPECT_NE(stranger->client_id(), second);
  member->close();
  EXPECT_EQ(reap(first, true).slots, 20u) << "then those of all dead members";
  EXPECT_EQ(free(), 190u) << "each by what was seen of it: the second's are in quarantine";
  EXPECT_EQ(wrong(), "");
}

TEST_F(IndexServerTest, AMemberMayUseWhatADeadOneAllocated) {
  const SessionPtr member = rig_.attach("engine");
  const ClientId dead = dead_client("engine");
  EXPECT_EQ(reap(dead, true).slots, 0u);
  const Slots theirs = rig_.own().tree().slots_of({}, client_owner(dead));
  ASSERT_EQ(theirs.size(), 10u);
  EXPECT_EQ(insert(member, first_of(path_, 10), theirs).error, ErrorCode::OK);
  EXPECT_EQ(wrong(), "");
}

TEST_F(IndexServerTest, AServerThatDiedWithoutClientsLeavesADeadRegion) {
  rig_.die();
  rig_.claim();
  EXPECT_EQ(rig_.server().found(), Predecessor::kDead);
  ASSERT_TRUE(rig_.server().reclaim().ok());
  EXPECT_EQ(rig_.server().found(), Predecessor::kNone);
  rig_.set_own(ServerRig::take(rig_.server().create(rig_.plan(), false)));
  EXPECT_EQ(free(), 200u);
}

TEST_F(IndexServerTest, AServerThatDiedUnderLivingClientsIsAdopted) {
  const SessionPtr client = rig_.attach();
  const Slots slots = put(client, path_);
  const Slots held = allocate(client, 7);
  Hit hit = query(client, path_, kMaskFull, true);
  const std::uint64_t incarnation = client->tree().header().incarnation;
  std::vector<SlotId> staged(4);
  (void)rig_.own().locked([&] {
    Tree& tree = rig_.own().tree();
    tree.pool({}).take(staged, kOwnerServer);
    tree.log().commit(tree.ring().head());
  });
  rig_.die();
  EXPECT_EQ(slots_of(query(client, path_)), slots) << "clients go on without a server";
  rig_.claim();
  ASSERT_EQ(rig_.server().found(), Predecessor::kAdoptable);
  rig_.set_own(ServerRig::take(rig_.server().adopt()));
  EXPECT_NE(client->tree().header().incarnation.load(), incarnation);
  EXPECT_EQ(rig_.own().incarnation(), client->tree().header().incarnation.load());
  EXPECT_TRUE(client->usable());
  EXPECT_EQ(slots_of(query(client, path_)), slots);
  EXPECT_TRUE(client->recycle(held, Component::kFull).ok());
  for (const SlotId slot : staged) {
    EXPECT_EQ(client->tree().pool({}).owner(slot), kOwnerQuarantine);
  }
  (void)ServerRig::take(rig_.server().release_quarantine());
  EXPECT_EQ(ServerRig::take(rig_.server().release_quarantine()), 4u);
  EXPECT_EQ(wrong(), "");
  EXPECT_EQ(allocate(client, 200).size(), 170u) << "the pin was kept";
  hit.finalize();
}

TEST_F(IndexServerTest, AReclaimedRegionIsSupersededForWhoStillMapsIt) {
  const SessionPtr client = rig_.attach();
  rig_.die();
  rig_.claim();
  ASSERT_TRUE(rig_.server().reclaim().ok());
  rig_.set_own(ServerRig::take(rig_.server().create(rig_.plan(), false)));
  EXPECT_EQ(client->state(), ErrorCode::NOT_READY);
  EXPECT_EQ(client->query(path_, {}).error().code, ErrorCode::NOT_READY);
  EXPECT_EQ(query(rig_.attach(), path_).blocks, 0u);
}

TEST_F(IndexServerTest, AFileThatIsNoIndexIsForeign) {
  rig_.die();
  ASSERT_EQ(::truncate(("/dev/shm" + rig_.name()).c_str(), 10), 0);
  rig_.claim();
  EXPECT_EQ(rig_.server().found(), Predecessor::kForeign);
  EXPECT_EQ(Session::attach(rig_.name(), "", false).error().code, ErrorCode::CORRUPT);
  ASSERT_TRUE(rig_.server().reclaim().ok());
  EXPECT_TRUE(rig_.server().create(rig_.plan(), true).ok());
}

TEST_F(IndexServerTest, AServerThatDiesInsideTheLockIsTakenOver) {
  const SessionPtr client = rig_.attach();
  put(client, path_);
  rig_.own().tree().log().store(rig_.own().tree().control().live_blocks, 77);
  ASSERT_NE(rig_.own().lock().acquire(), OwnerLock::Acquired::kBusy);
  rig_.die();
  EXPECT_EQ(allocate(client, 5).size(), 5u);
  EXPECT_EQ(problems(client), "");
  EXPECT_EQ(client->tree().clients().total(Counter::kLockTakeovers), 1u);
}

}  // namespace
}  // namespace radixshmem
