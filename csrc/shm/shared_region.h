// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A named shared-memory region: a file of /dev/shm, or of a hugetlbfs directory, mapped whole.
//
// Thread safety: const calls from any thread; everything else by one thread at a time.
// Invariants
//   1 A region file whose size is not 0 is complete: its memory is reserved to the last byte, so no
//     access to it can end in SIGBUS. (The size is set last.)
//   2 base() is aligned to 2 MiB, or to the huge page where that is larger.
//   3 The file outlives every SharedRegion: only unlink() deletes it. A mapping outlives the file.
// Order of create: file (exclusive), group, mode, reserved memory, size, mapping. A failure undoes
// all of it; a process killed between two steps leaves a file of size 0, which open() refuses and
// unlink() deletes.
// It does not initialise bytes: a new region reads as zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

#include "base/error.h"
#include "shm/memory_limits.h"

namespace radixshmem {

struct RegionOptions {
  mode_t mode = 0600;                  // exactly this, whatever the umask
  std::int64_t gid = -1;               // -1: the group of the process
  std::string hugepage_path;           // a hugetlbfs mount point; empty: /dev/shm
  std::optional<MemoryLimits> limits;  // absent: measured (see memory_limits.h)
};

// A region name is "/" and a file name: at most 200 bytes, no further "/", no NUL, not "/." or
// "/..".
inline constexpr std::size_t kMaxRegionName = 200;

// Returns: where the region of this name lies in the file system.
Result<std::string> region_path(const std::string& name, const std::string& hugepage_path = "");

// Returns: the unit in which regions there are mapped: 4096, or the huge page size of the mount.
Result<std::uint64_t> region_page_bytes(const std::string& hugepage_path);

class SharedRegion final {
 public:
  // Whether `bytes` fit now, before anything is made: the check that create() begins with.
  // Returns: the size in whole pages, or the error that names what to raise and begins with `need`,
  // e.g. "region /x needs".
  static Result<std::uint64_t> check_room(const std::string& need, std::uint64_t bytes,
                                          const RegionOptions& options = {});
  // Makes a region of `bytes`, rounded up to whole pages. The name must be free.
  static Result<SharedRegion> create(const std::string& name, std::uint64_t bytes,
                                     const RegionOptions& options = {});
  // Maps an existing one. Returns: NOT_READY when there is none or it is still being made.
  static Result<SharedRegion> open(const std::string& name, bool read_only,
                                   const std::string& hugepage_path = "");
  // Deletes the file; mappings live on. Returns: false when there was none.
  static Result<bool> unlink(const std::string& name, const std::string& hugepage_path = "");

  SharedRegion(SharedRegion&& other) noexcept;
  SharedRegion& operator=(SharedRegion&& other) noexcept;
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  ~SharedRegion();  // unmaps, nothing else

  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool read_only() const noexcept { return read_only_; }
  [[nodiscard]] std::uint64_t page_bytes() const noexcept { return page_bytes_; }

  // Maps the pages of [begin, end) into this process without changing a byte, also while others
  // write there. Safe from several threads. Not for read-only regions.
  Result<> prefault(std::uint64_t begin, std::uint64_t end) const;

 private:
  SharedRegion() = default;
  static Result<SharedRegion> map(int fd, std::string name, bool read_only,
                                  std::uint64_t page_bytes);

  std::string name_;
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint64_t page_bytes_ = 0;
  bool read_only_ = false;
};

}  // namespace radixshmem
