// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// How much memory a new region may take: free space of the file system and room in the memory
// cgroups (version 1 and 2) of this process and all their ancestors. A tmpfs reservation beyond a
// cgroup limit is not refused by the kernel but ends in the OOM killer, hence the check before.
// The figures are true at one instant; reserving the memory is still what decides.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/error.h"

namespace radixshmem {

inline constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

struct MemoryLimits {
  std::uint64_t filesystem_free_bytes = kUnlimited;
  std::uint64_t cgroup_free_bytes = kUnlimited;
  std::string cgroup;  // the directory whose limit is the tightest; empty: none
};

struct CgroupRoom {
  std::uint64_t free_bytes = kUnlimited;
  std::string directory;
};

// Returns: "22544384 bytes (21.5 MiB)": exact, and for a person.
[[nodiscard]] std::string size_text(std::uint64_t bytes);

// `proc_cgroup` and `mountinfo` are the texts of /proc/self/cgroup and /proc/self/mountinfo.
// Page cache that the kernel can drop counts as free. What cannot be read counts as no limit.
[[nodiscard]] CgroupRoom cgroup_room(const std::string& proc_cgroup, const std::string& mountinfo);

// Measures the limits that hold for a new file in `directory`. `huge_page_bytes` is 0 for /dev/shm.
Result<MemoryLimits> measure_limits(const std::string& directory, std::uint64_t huge_page_bytes);

// Returns: an error that names the tight limit and the command that raises it, when `bytes` do not
// fit. It begins with `need`, e.g. "region /x needs". `huge_page_bytes` is 0 for /dev/shm.
Result<> check_limits(const MemoryLimits& limits, const std::string& need, std::uint64_t bytes,
                      std::uint64_t huge_page_bytes);

}  // namespace radixshmem
