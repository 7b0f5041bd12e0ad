// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "shm/shared_region.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/numbers.h"

namespace radixshmem {
namespace {

constexpr int kNotPermitted = 77;

// Returns: what `body` returned in a forked process, or -1 when that died of a signal.
template <typename Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Returns: a mounted hugetlbfs with at least one free page of 2 MiB; "" when there is none.
std::string hugetlbfs_mount() {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string device, directory, type, rest; mounts >> device >> directory >> type;) {
    std::getline(mounts, rest);
    if (type != "hugetlbfs") continue;
    const Result<MemoryLimits> limits = measure_limits(directory, 2 * kMiB);
    const Result<std::uint64_t> page = region_page_bytes(directory);
    if (limits.ok() && page.ok() && page.value() == 2 * kMiB &&
        limits.value().filesystem_free_bytes >= page.value()) {
      return directory;
    }
  }
  return "";
}

class SharedRegionTest : public ::testing::Test {
 protected:
  SharedRegionTest() : name_("/radixshmem_region_test_" + std::to_string(::getpid())) {}
  ~SharedRegionTest() override { (void)SharedRegion::unlink(name_); }

  [[nodiscard]] std::string path() const { return "/dev/shm" + name_; }
  SharedRegion make(std::uint64_t bytes, const RegionOptions& options = {}) {
    Result<SharedRegion> region = SharedRegion::create(name_, bytes, options);
    EXPECT_TRUE(region.ok()) << region.error().message;
    return std::move(region).value();
  }

  std::string name_;
};

TEST_F(SharedRegionTest, is_shared_aligned_and_zero) {
  const SharedRegion region = make(3 * kMiB);
  EXPECT_EQ(region.bytes(), 3 * kMiB);
  EXPECT_EQ(region.name(), name_);
  EXPECT_FALSE(region.read_only());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.base()) % (2 * kMiB), 0U);
  for (std::uint64_t i = 0; i < region.bytes(); i += 997) {
    ASSERT_EQ(region.base()[i], std::byte{0});
  }
  const Result<SharedRegion> other = SharedRegion::open(name_, false);
  ASSERT_TRUE(other.ok()) << other.error().message;
  EXPECT_EQ(other.value().bytes(), region.bytes());
  other.value().base()[3 * kMiB - 1] = std::byte{42};
  EXPECT_EQ(region.base()[3 * kMiB - 1], std::byte{42});
}

TEST_F(SharedRegionTest, reserves_every_page) {
  const SharedRegion region = make(5 * kMiB + 1);
  struct stat status{};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(5 * kMiB + 4096));
  EXPECT_EQ(region.bytes(), 5 * kMiB + 4096);
  EXPECT_GE(status.st_blocks * 512, status.st_size);
}

TEST_F(SharedRegionTest, has_exactly_the_mode_asked_for) {
  const mode_t before = ::umask(0077);
  const SharedRegion region = make(1, {.mode = 0660,
                                       .gid = static_cast<std::int64_t>(::getgid()),
                                       .hugepage_path = {},
                                       .limits = {}});
  ::umask(before);
  struct stat status{};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0660U);
  EXPECT_EQ(status.st_gid, ::getgid());
}

TEST_F(SharedRegionTest, outlives_its_file_and_its_objects) {
  SharedRegion first = make(kMiB);
  first.base()[0] = std::byte{1};
  {
    const Result<SharedRegion> reader = SharedRegion::open(name_, true);
    ASSERT_TRUE(reader.ok());
  }
  EXPECT_EQ(::access(path().c_str(), F_OK), 0) << "a destructor deleted the file";
  EXPECT_TRUE(SharedRegion::unlink(name_).value());
  EXPECT_EQ(first.base()[0], std::byte{1});
  EXPECT_FALSE(SharedRegion::unlink(name_).value());
  const SharedRegion second = make(kMiB);
  EXPECT_EQ(second.base()[0], std::byte{0}) << "not a region of its own";
}

TEST_F(SharedRegionTest, moves) {
  SharedRegion first = make(kMiB);
  std::byte* const base = first.base();
  SharedRegion second = std::move(first);
  EXPECT_EQ(second.base(), base);
  Result<SharedRegion> third = SharedRegion::open(name_, false);
  ASSERT_TRUE(third.ok());
  second = std::move(third).value();
  EXPECT_NE(second.base(), nullptr);
  second.base()[0] = std::byte{9};
  EXPECT_EQ(second.bytes(), kMiB);
}

TEST_F(SharedRegionTest, prefault_changes_no_byte_of_a_busy_region) {
  const SharedRegion region = make(8 * kMiB);
  auto* const words = reinterpret_cast<std::uint64_t*>(region.base());
  constexpr std::uint64_t kWords = 8 * kMiB / 8;
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < kWords; ++i) {
      std::atomic_ref(words[i]).store(i + 1, std::memory_order_relaxed);
    }
  });
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(region.prefault(0, region.bytes()).ok());
    ASSERT_TRUE(region.prefault(4097, 4098).ok());
  }
  writer.join();
  for (std::uint64_t i = 0; i < kWords; ++i) ASSERT_EQ(words[i], i + 1);
  EXPECT_TRUE(region.prefault(5, 5).ok());
}

TEST_F(SharedRegionTest, prefault_refuses_ranges_outside_and_read_only_regions) {
  const SharedRegion region = make(kMiB);
  EXPECT_EQ(region.prefault(0, kMiB + 1).error().code, ErrorCode::OUT_OF_RANGE);
  EXPECT_EQ(region.prefault(2, 1).error().code, ErrorCode::OUT_OF_RANGE);
  const Result<SharedRegion> reader = SharedRegion::open(name_, true);
  EXPECT_EQ(reader.value().prefault(0, 1).error().code, ErrorCode::INVALID_ARGUMENT);
}

TEST_F(SharedRegionTest, read_only_mapping_reads_what_others_write) {
  const SharedRegion region = make(kMiB);
  const Result<SharedRegion> reader = SharedRegion::open(name_, true);
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE(reader.value().read_only());
  region.base()[77] = std::byte{5};
  EXPECT_EQ(reader.value().base()[77], std::byte{5});
}

TEST_F(SharedRegionTest, another_process_sees_the_bytes) {
  const SharedRegion region = make(kMiB);
  ASSERT_EQ(in_child([&] {
              const Result<SharedRegion> mine = SharedRegion::open(name_, false);
              if (!mine) return 1;
              std::memcpy(mine.value().base() + 100, "hello", 5);
              return 0;
            }),
            0);
  EXPECT_EQ(std::memcmp(region.base() + 100, "hello", 5), 0);
}

TEST_F(SharedRegionTest, refuses_bad_names) {
  const std::string too_long = "/" + std::string(kMaxRegionName, 'x');
  const std::array<std::string, 10> names{"",      "x",  "/",   "//",     "/a/b",
                                          "/../x", "/.", "/..", too_long, std::string("/a\0b", 4)};
  for (const std::string& name : names) {
    for (const Error& error :
         {SharedRegion::create(name, 1).error(), SharedRegion::open(name, true).error(),
          SharedRegion::unlink(name).error()}) {
      EXPECT_EQ(error.code, ErrorCode::INVALID_ARGUMENT) << name;
      EXPECT_NE(error.message.find("must"), std::string::npos) << error.message;
    }
  }
  const std::string longest = "/" + std::string(kMaxRegionName - 1, 'x');
  EXPECT_EQ(region_path(longest).value(), "/dev/shm" + longest);
}

TEST_F(SharedRegionTest, refuses_a_taken_name_and_leaves_its_owner_alone) {
  const SharedRegion region = make(kMiB);
  region.base()[0] = std::byte{3};
  const Result<SharedRegion> second = SharedRegion::create(name_, kMiB);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("destroy it first"), std::string::npos);
  EXPECT_EQ(::access(path().c_str(), F_OK), 0);
  EXPECT_EQ(region.base()[0], std::byte{3});
}

TEST_F(SharedRegionTest, refuses_impossible_sizes) {
  EXPECT_EQ(SharedRegion::create(name_, 0).error().code, ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(SharedRegion::create(name_, ~std::uint64_t{0}).error().code,
            ErrorCode::INVALID_ARGUMENT);
  EXPECT_NE(::access(path().c_str(), F_OK), 0);
}

TEST_F(SharedRegionTest, refuses_what_does_not_fit_before_it_makes_a_file) {
  RegionOptions options;
  options.limits = MemoryLimits{kMiB, kUnlimited, ""};
  Result<SharedRegion> region = SharedRegion::create(name_, kMiB + 1, options);
  ASSERT_FALSE(region.ok());
  EXPECT_NE(region.error().message.find("remount,size="), std::string::npos);
  options.limits = MemoryLimits{kUnlimited, kMiB, "/cg"};
  region = SharedRegion::create(name_, kMiB + 1, options);
  ASSERT_FALSE(region.ok());
  EXPECT_NE(region.error().message.find("cgroup /cg"), std::string::npos);
  EXPECT_NE(::access(path().c_str(), F_OK), 0);
  EXPECT_EQ(make(kMiB, options).bytes(), kMiB);
}

TEST_F(SharedRegionTest, undoes_a_reservation_that_the_kernel_refuses) {
  EXPECT_EQ(in_child([&] {
              ::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{kMiB, kMiB};
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              const Result<SharedRegion> region = SharedRegion::create(name_, 2 * kMiB);
              return !region.ok() && region.error().code == ErrorCode::SYSTEM ? 0 : 2;
            }),
            0);
  EXPECT_NE(::access(path().c_str(), F_OK), 0) << "the file was left behind";
}

TEST_F(SharedRegionTest, a_full_shm_is_an_error_and_not_a_later_sigbus) {
  const int status = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0) return kNotPermitted;
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return kNotPermitted;
    if (::mount("none", "/dev/shm", "tmpfs", 0, "size=4m") != 0) return kNotPermitted;
    RegionOptions options;
    options.limits = MemoryLimits{};  // as if another process took the space after the check
    const Result<SharedRegion> region = SharedRegion::create(name_, 8 * kMiB, options);
    if (region.ok()) return 1;
    if (region.error().message.find("--shm-size") == std::string::npos) return 2;
    if (::access(path().c_str(), F_OK) == 0) return 3;
    if (SharedRegion::create(name_, 8 * kMiB).ok()) return 4;
    return SharedRegion::create(name_, 3 * kMiB).ok() ? 0 : 5;
  });
  if (status == kNotPermitted) GTEST_SKIP() << "needs the right to mount";
  EXPECT_EQ(status, 0);
}

TEST_F(SharedRegionTest, is_made_although_signals_keep_coming) {
  struct sigaction action{};
  struct sigaction before{};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  const itimerval often{{0, 1000}, {0, 1000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  const SharedRegion region = make(128 * kMiB);
  const itimerval never{};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &never, nullptr), 0);
  ASSERT_EQ(::sigaction(SIGALRM, &before, nullptr), 0);
  struct stat status{};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_GE(status.st_blocks * 512, static_cast<off_t>(128 * kMiB));
}

TEST_F(SharedRegionTest, opening_nothing_is_not_ready) {
  const Result<SharedRegion> region = SharedRegion::open(name_, true);
  ASSERT_FALSE(region.ok());
  EXPECT_EQ(region.error().code, ErrorCode::NOT_READY);
  EXPECT_NE(region.error().message.find(name_), std::string::npos);
}

TEST_F(SharedRegionTest, opening_a_half_made_region_is_not_ready) {
  ::close(::open(path().c_str(), O_CREAT | O_RDWR, 0600));
  EXPECT_EQ(SharedRegion::open(name_, false).error().code, ErrorCode::NOT_READY);
}

TEST_F(SharedRegionTest, refuses_links_and_directories) {
  ASSERT_EQ(::symlink("/etc/passwd", path().c_str()), 0);
  EXPECT_FALSE(SharedRegion::open(name_, true).ok());
  EXPECT_FALSE(SharedRegion::create(name_, 1).ok());
  ASSERT_TRUE(SharedRegion::unlink(name_).value());
  ASSERT_EQ(::mkdir(path().c_str(), 0700), 0);
  EXPECT_FALSE(SharedRegion::open(name_, true).ok());
  EXPECT_FALSE(SharedRegion::unlink(name_).ok());
  ASSERT_EQ(::rmdir(path().c_str()), 0);
}

TEST_F(SharedRegionTest, hugepage_path_must_be_hugetlbfs) {
  RegionOptions options;
  options.hugepage_path = "/dev/shm";
  const Result<SharedRegion> wrong = SharedRegion::create(name_, kMiB, options);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().code, ErrorCode::INVALID_ARGUMENT);
  EXPECT_NE(wrong.error().message.find("mount -t hugetlbfs"), std::string::npos);
  EXPECT_FALSE(SharedRegion::open(name_, true, "/nowhere/at/all").ok());
}

TEST_F(SharedRegionTest, lives_in_huge_pages) {
  RegionOptions options;
  options.hugepage_path = hugetlbfs_mount();
  if (options.hugepage_path.empty()) GTEST_SKIP() << "no hugetlbfs mount with a free 2 MiB page";
  {
    const Result<SharedRegion> region = SharedRegion::create(name_, 5, options);
    ASSERT_TRUE(region.ok()) << region.error().message;
    EXPECT_EQ(region.value().bytes(), 2 * kMiB);
    EXPECT_TRUE(region.value().prefault(0, 2 * kMiB).ok());
    region.value().base()[2 * kMiB - 1] = std::byte{1};
    const Result<SharedRegion> other = SharedRegion::open(name_, true, options.hugepage_path);
    ASSERT_TRUE(other.ok());
    EXPECT_EQ(other.value().base()[2 * kMiB - 1], std::byte{1});
  }
  options.limits = MemoryLimits{};
  const Result<SharedRegion> too_many =
      SharedRegion::create(name_ + "_b", std::uint64_t{1} << 40, options);
  EXPECT_FALSE(too_many.ok());
  EXPECT_FALSE(SharedRegion::unlink(name_ + "_b", options.hugepage_path).value());
  EXPECT_TRUE(SharedRegion::unlink(name_, options.hugepage_path).value());
}

}  // namespace
}  // namespace radixshmem
