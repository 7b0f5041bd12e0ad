// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// For the thread sanitizer alone: all sessions of a process share one mapping of a region.
//
// The sanitizer knows a word by its address. Sessions map the region once each, so to it a store
// through one mapping and a load through another have nothing to do with each other: it would see
// no race between sessions, and no order either. Programs linked with -Wl,--wrap=mmap,--wrap=munmap
// come here: a file that is mapped shared at a fixed address (as SharedRegion does) is mapped once,
// and never unmapped.
#include <sys/mman.h>
#include <sys/stat.h>

#include <map>
#include <mutex>
#include <utility>

extern "C" {

void* __real_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void* at, size_t bytes);

namespace {
std::mutex mappings_mutex;
std::map<std::pair<dev_t, ino_t>, void*> mappings;
}  // namespace

void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  struct stat file{};
  const bool region = fd >= 0 && (flags & MAP_SHARED) != 0 && (flags & MAP_FIXED) != 0;
  if (!region || ::fstat(fd, &file) != 0) {
    return __real_mmap(at, bytes, protection, flags, fd, offset);
  }
  const std::lock_guard guard(mappings_mutex);
  void*& known = mappings[{file.st_dev, file.st_ino}];
  if (known == nullptr) {
    known = __real_mmap(at, bytes, protection, flags, fd, offset);
  } else {
    __real_munmap(at, bytes);  // what the caller reserved there
  }
  return known;
}

int __wrap_munmap(void* at, size_t bytes) {
  const std::lock_guard guard(mappings_mutex);
  for (const auto& [file, base] : mappings) {
    if (base == at) return 0;
  }
  return __real_munmap(at, bytes);
}

}  // extern "C"
