// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "sync/live_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "tests/sync/child.h"

namespace radixshmem {
namespace {

class LiveFileTest : public ::testing::Test {
 protected:
  LiveFileTest() : name_(unique_name("live")), path_("/dev/shm" + name_ + ".live") {}
  ~LiveFileTest() override { ::unlink(path_.c_str()); }

  [[nodiscard]] LiveFile open(bool create = true) const {
    auto file = LiveFile::open(name_, create);
    RADIX_CHECK(file.ok(), 0);
    return std::move(file).value();
  }
  [[nodiscard]] bool exists() const { return ::access(path_.c_str(), F_OK) == 0; }
  [[nodiscard]] ino_t inode() const {
    struct stat found{};
    return ::stat(path_.c_str(), &found) == 0 ? found.st_ino : 0;
  }

  std::string name_;
  std::string path_;
};

TEST_F(LiveFileTest, AHeldByteIsSeenByOthersOfTheSameProcess) {
  LiveFile mine = open();
  LiveFile other = open();
  ASSERT_TRUE(mine.try_lock(3));
  EXPECT_TRUE(other.held_elsewhere(3));
  EXPECT_FALSE(other.held_elsewhere(2));
  EXPECT_FALSE(other.held_elsewhere(4));
  EXPECT_FALSE(other.try_lock(3));
  EXPECT_TRUE(other.try_lock(4));
  EXPECT_FALSE(mine.held_elsewhere(3)) << "one's own byte answers free";
  mine.unlock(3);
  EXPECT_TRUE(other.try_lock(3));
}

TEST_F(LiveFileTest, ARangeIsHeldWhenOneByteOfItIs) {
  LiveFile mine = open();
  LiveFile other = open();
  ASSERT_TRUE(mine.try_lock(9));
  EXPECT_TRUE(other.any_held_elsewhere(1, 10));
  EXPECT_FALSE(other.any_held_elsewhere(1, 9));
  EXPECT_FALSE(other.any_held_elsewhere(10, 300));
}

TEST_F(LiveFileTest, DestructionLetsGo) {
  LiveFile other = open();
  {
    LiveFile mine = open();
    ASSERT_TRUE(mine.try_lock(1));
    LiveFile moved(std::move(mine));
    EXPECT_TRUE(other.held_elsewhere(1)) << "a move keeps the byte";
  }
  EXPECT_FALSE(other.held_elsewhere(1));
}

TEST_F(LiveFileTest, ThereIsNoneWithoutAServer) {
  const auto file = LiveFile::open(name_, /*create=*/false);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::NOT_READY);
  EXPECT_NE(file.error().message.find(name_), std::string::npos);
}

TEST_F(LiveFileTest, TheModeIsExactWhateverTheUmask) {
  const mode_t before = ::umask(0077);
  const LiveFile file = open();
  const auto set = file.set_access(0660, static_cast<gid_t>(-1));
  ::umask(before);
  ASSERT_TRUE(set.ok());
  struct stat found{};
  ASSERT_EQ(::stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0660u);
}

TEST_F(LiveFileTest, AnAccidentalOpenAndCloseLosesNothing) {
  LiveFile mine = open();
  ASSERT_TRUE(mine.try_lock(1));
  ::close(::open(path_.c_str(), O_RDWR));
  Child other([&](Child&) { return open(false).held_elsewhere(1) ? 0 : 1; });
  EXPECT_EQ(other.wait(), 0);
}

TEST_F(LiveFileTest, AKilledProcessLetsGo) {
  LiveFile watcher = open();
  Child owner([&](Child& self) {
    LiveFile mine = open(false);
    if (!mine.try_lock(1)) return 1;
    self.say_ready();
    self.wait_for_parent();
    return 0;
  });
  ASSERT_TRUE(owner.wait_ready());
  EXPECT_TRUE(watcher.held_elsewhere(1));
  owner.kill_and_wait();
  EXPECT_FALSE(watcher.held_elsewhere(1));
}

TEST_F(LiveFileTest, AForkedChildDoesNotKeepItsParentsByte) {
  LiveFile watcher = open();
  auto mine = std::make_unique<LiveFile>(open());
  ASSERT_TRUE(mine->try_lock(1));
  Child child([](Child& self) {
    self.say_ready();
    self.wait_for_parent();
    return 0;
  });
  ASSERT_TRUE(child.wait_ready());
  mine.reset();  // as if the parent had died
  EXPECT_FALSE(watcher.held_elsewhere(1));
}

TEST_F(LiveFileTest, TheParentsObjectsInAChildDoNotCloseTheChildsOwn) {
  LiveFile watcher = open();
  auto inherited = std::make_unique<LiveFile>(open());
  Child child([&](Child&) {
    LiveFile own = open(false);  // very likely under the descriptor number of `inherited`
    LiveFile another = open(false);
    if (!own.try_lock(5) || !another.try_lock(6)) return 1;
    inherited.reset();
    LiveFile look = open(false);
    return look.held_elsewhere(5) && look.held_elsewhere(6) ? 0 : 2;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(LiveFileTest, TheFileIsUnlinkedOnlyWhenNobodyElseHoldsAByte) {
  LiveFile server = open();
  ASSERT_TRUE(server.try_lock(0));
  {
    LiveFile client = open();
    ASSERT_TRUE(client.try_lock(7));
    EXPECT_FALSE(server.unlink_if_unused());
    EXPECT_TRUE(exists());
  }
  EXPECT_TRUE(server.unlink_if_unused());
  EXPECT_FALSE(exists());
}

TEST_F(LiveFileTest, ALockOnAnUnlinkedFileIsToldByStillNamed) {
  LiveFile early = open();
  EXPECT_TRUE(early.still_named());
  {
    LiveFile closing = open();
    ASSERT_TRUE(closing.try_lock(0));
    ASSERT_TRUE(closing.unlink_if_unused());
  }
  EXPECT_FALSE(early.still_named());
  const LiveFile fresh = open();
  EXPECT_NE(inode(), 0u);
  EXPECT_FALSE(early.still_named()) << "the name now means another file";
  EXPECT_TRUE(fresh.still_named());
}

}  // namespace
}  // namespace radixshmem
