// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "shm/memory_limits.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

#include <sys/statvfs.h>

namespace radixshmem {
namespace {

struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive_file;
  const char* active_file;
};

constexpr CgroupFiles kVersion1{"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                "total_inactive_file", "total_active_file"};
constexpr CgroupFiles kVersion2{"/memory.max", "/memory.current", "inactive_file", "active_file"};

// Version 1 says "no limit" by a number near 2^63.
constexpr std::uint64_t kNoLimitFrom = std::uint64_t{1} << 62;

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns: kUnlimited for "max", "" and anything else that is not a number.
std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && value < kNoLimitFrom ? value : kUnlimited;
}

std::uint64_t droppable_cache(const std::string& directory, const CgroupFiles& files) {
  std::istringstream stat(read_text(directory + "/memory.stat"));
  std::uint64_t sum = 0;
  for (std::string key, value; stat >> key >> value;) {
    if (key != files.inactive_file && key != files.active_file) continue;
    const std::uint64_t bytes = number(value);
    if (bytes != kUnlimited) sum += bytes;
  }
  return sum;
}

std::uint64_t free_in(const std::string& directory, const CgroupFiles& files) {
  const std::uint64_t limit = number(read_text(directory + files.limit));
  const std::uint64_t usage = number(read_text(directory + files.usage));
  if (limit == kUnlimited || usage == kUnlimited) return kUnlimited;
  const std::uint64_t held = usage - std::min(usage, droppable_cache(directory, files));
  return limit - std::min(limit, held);
}

bool has_word(std::string_view list, std::string_view word) {
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (list.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

// Returns: the path of this process in the hierarchy of version 1 or 2; "" when it is in none.
std::string own_path(const std::string& proc_cgroup, bool version2) {
  std::istringstream lines(proc_cgroup);
  for (std::string line; std::getline(lines, line);) {  // "id:controllers:path"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version2 ? line.substr(0, first) == "0" && controllers.empty()
                 : has_word(controllers, "memory")) {
      return line.substr(second + 1);
    }
  }
  return "";
}

// `path` below `root`: "" when they are equal or when the process is outside what is mounted.
std::string below(const std::string& path, const std::string& root) {
  if (root == "/") return path == "/" ? "" : path;
  if (path.size() > root.size() && path.starts_with(root) && path[root.size()] == '/') {
    return path.substr(root.size());
  }
  return "";
}

void tighten(CgroupRoom& room, const std::string& mount_point, std::string path,
             const CgroupFiles& files) {
  for (;;) {
    const std::string directory = mount_point + path;
    const std::uint64_t free_bytes = free_in(directory, files);
    if (free_bytes < room.free_bytes) room = {free_bytes, directory};
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

// Free pages of the pool, and those that the kernel may still add to it.
std::uint64_t free_huge_bytes(std::uint64_t page_bytes) {
  const std::string pool =
      "/sys/kernel/mm/hugepages/hugepages-" + std::to_string(page_bytes / 1024) + "kB/";
  const auto count = [&pool](const char* file) { return number(read_text(pool + file)); };
  const std::uint64_t free_pages = count("free_hugepages");
  const std::uint64_t reserved = count("resv_hugepages");
  const std::uint64_t overcommit = count("nr_overcommit_hugepages");
  const std::uint64_t surplus = count("surplus_hugepages");
  for (const std::uint64_t value : {free_pages, reserved, overcommit, surplus}) {
    if (value == kUnlimited) return kUnlimited;
  }
  const std::uint64_t pages =
      free_pages - std::min(free_pages, reserved) + overcommit - std::min(overcommit, surplus);
  return pages > kNoLimitFrom / page_bytes ? kUnlimited : pages * page_bytes;
}

}  // namespace

std::string size_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB"};
  std::string text = std::to_string(bytes) + " bytes";
  if (bytes < 1024) return text;
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1023.5 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::ostringstream rounded;
  rounded << std::fixed << std::setprecision(value < 9.995 ? 2 : value < 99.95 ? 1 : 0) << value;
  return text + " (" + rounded.str() + " " + kUnits[unit] + ")";
}

CgroupRoom cgroup_room(const std::string& proc_cgroup, const std::string& mountinfo) {
  CgroupRoom room;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    // "id parent device root mount-point options [tags] - type source super-options"
    std::istringstream words(line);
    const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (dash - fields.begin() < 5 || fields.end() - dash < 4) continue;
    const bool version2 = dash[1] == "cgroup2";
    if (!version2 && (dash[1] != "cgroup" || !has_word(dash[3], "memory"))) continue;
    const std::string path = own_path(proc_cgroup, version2);
    if (path.empty() || path[0] != '/') continue;
    tighten(room, fields[4], below(path, fields[3]), version2 ? kVersion2 : kVersion1);
  }
  return room;
}

Result<MemoryLimits> measure_limits(const std::string& directory, std::uint64_t huge_page_bytes) {
  struct statvfs filesystem{};
  if (::statvfs(directory.c_str(), &filesystem) != 0) {
    return system_error("cannot read the free space of " + directory, errno);
  }
  MemoryLimits limits;
  // A tmpfs mounted without a size has 0 blocks and no limit of its own.
  if (filesystem.f_blocks != 0) {
    limits.filesystem_free_bytes = std::uint64_t{filesystem.f_bavail} * filesystem.f_frsize;
  }
  if (huge_page_bytes != 0) {
    limits.filesystem_free_bytes =
        std::min(limits.filesystem_free_bytes, free_huge_bytes(huge_page_bytes));
  }
  CgroupRoom room = cgroup_room(read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo"));
  limits.cgroup_free_bytes = room.free_bytes;
  limits.cgroup = std::move(room.directory);
  return limits;
}

Result<> check_limits(const MemoryLimits& limits, const std::string& need, std::uint64_t bytes,
                      std::uint64_t huge_page_bytes) {
  const std::string what = need + " " + size_text(bytes) + ", but ";
  if (bytes > limits.filesystem_free_bytes) {
    const std::string free_text = size_text(limits.filesystem_free_bytes) + " free";
    if (huge_page_bytes != 0) {
      return Error{ErrorCode::SYSTEM,
                   what + "the huge page pool has only " + free_text + ": reserve " +
                       std::to_string(bytes / huge_page_bytes) + " free pages of " +
                       std::to_string(huge_page_bytes / 1024) +
                       " kB (`sysctl vm.nr_hugepages=...`" +
                       " or hugepagesz=/hugepages= at boot; see HugePages_Free in /proc/meminfo)," +
                       " or ask for less"};
    }
    return Error{ErrorCode::SYSTEM,
                 what + "/dev/shm has only " + free_text +
                     ": enlarge it (`mount -o remount,size=... /dev/shm`; in a container " +
                     "`--shm-size=...` or a memory-backed volume), delete left-over files there, " +
                     "or ask for less"};
  }
  // Huge pages are accounted by the hugetlb controller, not by the memory controller.
  if (huge_page_bytes == 0 && bytes > limits.cgroup_free_bytes) {
    return Error{ErrorCode::SYSTEM, what + "the memory limit of cgroup " + limits.cgroup +
                                        " leaves only " + size_text(limits.cgroup_free_bytes) +
                                        ": raise it (memory.max, or memory.limit_in_bytes; " +
                                        "`--memory=...` of a container), or ask for less"};
  }
  return Unit{};
}

}  // namespace radixshmem
