// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "shm/memory_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

#include "base/numbers.h"

namespace radixshmem {
namespace {

namespace fs = std::filesystem;

// A made-up cgroup tree on disk.
class CgroupTree : public ::testing::Test {
 protected:
  CgroupTree()
      : root_(fs::temp_directory_path() / ("radixshmem_cgroup_" + std::to_string(::getpid()))) {
    fs::create_directories(root_);
  }
  ~CgroupTree() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    const fs::path path = root_ / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  [[nodiscard]] std::string mount(const std::string& type, const std::string& options,
                                  const std::string& root = "/") const {
    return "31 23 0:28 / /sys rw - sysfs sysfs rw\n32 31 0:29 " + root + " " + root_.string() +
           " rw,relatime shared:9 - " + type + " " + type + " " + options + "\n";
  }

  fs::path root_;
};

TEST_F(CgroupTree, takes_the_tightest_limit_of_version_2_ancestors) {
  write("a/memory.max", "1000000\n");
  write("a/memory.current", "600000\n");
  write("a/b/memory.max", "max\n");
  write("a/b/memory.current", "500\n");
  write("a/b/c/memory.max", "900000\n");
  write("a/b/c/memory.current", "100000\n");
  const CgroupRoom room = cgroup_room("0::/a/b/c\n", mount("cgroup2", "rw"));
  EXPECT_EQ(room.free_bytes, 400000U);
  EXPECT_EQ(room.directory, (root_ / "a").string());
}

TEST_F(CgroupTree, counts_droppable_page_cache_as_free) {
  write("a/memory.max", "1000000\n");
  write("a/memory.current", "900000\n");
  write("a/memory.stat", "anon 5\ninactive_file 300000\nactive_file 100000\nshmem 7\n");
  EXPECT_EQ(cgroup_room("0::/a\n", mount("cgroup2", "rw")).free_bytes, 500000U);
}

TEST_F(CgroupTree, reads_version_1_of_the_memory_controller) {
  write("job/memory.limit_in_bytes", "5000000\n");
  write("job/memory.usage_in_bytes", "4000000\n");
  write("job/memory.stat", "cache 9\ninactive_file 1\ntotal_inactive_file 250000\n");
  write("memory.limit_in_bytes", "9223372036854771712\n");
  write("memory.usage_in_bytes", "4000000\n");
  const std::string groups = "5:cpu,cpuacct:/other\n4:memory:/job\n0::/\n";
  EXPECT_EQ(cgroup_room(groups, mount("cgroup", "rw,memory")).free_bytes, 1250000U);
  EXPECT_EQ(cgroup_room(groups, mount("cgroup", "rw,cpu,cpuacct")).free_bytes, kUnlimited);
}

TEST_F(CgroupTree, follows_a_mount_of_only_a_part_of_the_hierarchy) {
  write("memory.max", "700\n");
  write("memory.current", "200\n");
  write("in/memory.max", "600\n");
  write("in/memory.current", "200\n");
  EXPECT_EQ(cgroup_room("0::/docker/x\n", mount("cgroup2", "rw", "/docker/x")).free_bytes, 500U);
  EXPECT_EQ(cgroup_room("0::/docker/x/in\n", mount("cgroup2", "rw", "/docker/x")).free_bytes, 400U);
  EXPECT_EQ(cgroup_room("0::/elsewhere\n", mount("cgroup2", "rw", "/docker/x")).free_bytes, 500U);
}

TEST_F(CgroupTree, says_zero_when_the_usage_is_over_the_limit) {
  write("memory.max", "700\n");
  write("memory.current", "900\n");
  EXPECT_EQ(cgroup_room("0::/\n", mount("cgroup2", "rw")).free_bytes, 0U);
}

TEST_F(CgroupTree, has_no_limit_where_nothing_can_be_read) {
  EXPECT_EQ(cgroup_room("0::/gone/too\n", mount("cgroup2", "rw")).free_bytes, kUnlimited);
  EXPECT_EQ(cgroup_room("", "").free_bytes, kUnlimited);
  EXPECT_EQ(cgroup_room("garbage\n:\n0:\n", "32 - cgroup2\n- - - -\n\n").free_bytes, kUnlimited);
  write("memory.max", "many\n");
  write("memory.current", "-5\n");
  EXPECT_EQ(cgroup_room("0::/\n", mount("cgroup2", "rw")).free_bytes, kUnlimited);
}

TEST(MeasureLimits, knows_the_free_space_of_a_directory) {
  const Result<MemoryLimits> limits = measure_limits("/dev/shm", 0);
  ASSERT_TRUE(limits.ok());
  EXPECT_GT(limits.value().filesystem_free_bytes, 0U);
  EXPECT_FALSE(measure_limits("/nowhere/at/all", 0).ok());
}

TEST(SizeText, has_three_digits_in_the_unit_that_fits) {
  EXPECT_EQ(size_text(0), "0 bytes");
  EXPECT_EQ(size_text(1023), "1023 bytes");
  EXPECT_EQ(size_text(4096), "4096 bytes (4.00 KiB)");
  EXPECT_EQ(size_text(22544384), "22544384 bytes (21.5 MiB)");
  EXPECT_EQ(size_text(512 * kMiB), "536870912 bytes (512 MiB)");
  EXPECT_EQ(size_text(kMiB - 1), "1048575 bytes (1.00 MiB)");
  EXPECT_EQ(size_text(10 * kMiB - 1), "10485759 bytes (10.0 MiB)");
  EXPECT_EQ(size_text(std::uint64_t{3} << 39), "1649267441664 bytes (1.50 TiB)");
  EXPECT_EQ(size_text(kUnlimited), "18446744073709551615 bytes (16384 PiB)");
}

TEST(CheckLimits, accepts_what_fits_exactly) {
  const MemoryLimits limits{kMiB, kMiB, "/cg"};
  EXPECT_TRUE(check_limits(limits, "/r needs", kMiB, 0).ok());
}

TEST(CheckLimits, names_the_fix_of_a_small_shm) {
  const Result<> result = check_limits({kMiB, kUnlimited, ""}, "/r needs", kMiB + 1, 0);
  ASSERT_FALSE(result.ok());
  const std::string& message = result.error().message;
  for (const char* part : {"/r needs 1048577", "1048576", "remount,size=", "--shm-size"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " not in: " << message;
  }
}

TEST(CheckLimits, names_the_cgroup_and_its_limit) {
  const Result<> result =
      check_limits({kUnlimited, 4096, "/sys/fs/cgroup/job"}, "/r needs", 8192, 0);
  ASSERT_FALSE(result.ok());
  const std::string& message = result.error().message;
  for (const char* part :
       {"/r", "8192", "4096 bytes (4.00 KiB)", "/sys/fs/cgroup/job", "memory.max"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " not in: " << message;
  }
}

TEST(CheckLimits, names_the_huge_pages_needed_and_leaves_the_cgroup_out) {
  const Result<> result = check_limits({2 * kMiB, 1, "/cg"}, "/r needs", 6 * kMiB, 2 * kMiB);
  ASSERT_FALSE(result.ok());
  const std::string& message = result.error().message;
  for (const char* part : {"3 free pages of 2048 kB", "nr_hugepages"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " not in: " << message;
  }
  EXPECT_TRUE(check_limits({2 * kMiB, 1, "/cg"}, "/r needs", 2 * kMiB, 2 * kMiB).ok());
}

}  // namespace
}  // namespace radixshmem
