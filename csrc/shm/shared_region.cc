// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "shm/shared_region.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/numbers.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace radixshmem {
namespace {

constexpr const char* kShmDirectory = "/dev/shm";
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kAlignment = std::uint64_t{2} << 20;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 46;  // far beyond any address space in use
// A pending signal makes the kernel undo the call at hand: smaller steps get on between signals.
constexpr std::uint64_t kLongestStep = std::uint64_t{64} << 20;
constexpr std::uint64_t kShortestStep = std::uint64_t{1} << 20;

// Deletes the file of a create that did not come to its end.
class FileGuard final {
 public:
  explicit FileGuard(std::string path) : path_(std::move(path)) {}
  ~FileGuard() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  FileGuard(const FileGuard&) = delete;
  FileGuard& operator=(const FileGuard&) = delete;
  void keep() noexcept { path_.clear(); }

 private:
  std::string path_;
};

// Sets the size last (invariant 1). Returns: an errno, 0 when done.
int reserve(int fd, std::uint64_t bytes) {
  std::uint64_t step = kLongestStep;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t length = std::min(step, bytes - done);
    if (::fallocate(fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(done),
                    static_cast<off_t>(length)) == 0) {
      done += length;
      continue;
    }
    if (errno == EINTR) {
      step = std::max(step / 2, kShortestStep);
      continue;
    }
    if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
    int error = 0;  // no KEEP_SIZE here: the one call below sets the size when all is reserved
    do {
      error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
    } while (error == EINTR);
    return error;
  }
  return ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

Error reserve_error(const std::string& path, std::uint64_t bytes, bool huge, int error) {
  std::string text = "cannot reserve " + size_text(bytes) + " for " + path;
  if (error == ENOSPC || error == ENOMEM) {
    text += huge
                ? " (too few free huge pages: raise vm.nr_hugepages)"
                : " (another process took the space meanwhile, or memory is short: enlarge it with "
                  "`mount -o remount,size=... /dev/shm` or a container's `--shm-size`)";
  }
  return system_error(std::move(text), error);
}

// Maps with the wanted alignment: takes a larger range of addresses, keeps the aligned part.
void* map_aligned(int fd, std::uint64_t bytes, std::uint64_t alignment, int protection) {
  const std::uint64_t wide = bytes + alignment;
  void* const range =
      ::mmap(nullptr, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return MAP_FAILED;
  auto* const begin = static_cast<std::byte*>(range);
  const std::uint64_t skip =
      (alignment - reinterpret_cast<std::uintptr_t>(begin) % alignment) % alignment;
  void* const base = ::mmap(begin + skip, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    ::munmap(range, wide);
    errno = error;
    return MAP_FAILED;
  }
  if (skip != 0) ::munmap(begin, skip);
  ::munmap(begin + skip + bytes, alignment - skip);
  return base;
}

}  // namespace

Result<std::uint64_t> region_page_bytes(const std::string& hugepage_path) {
  if (hugepage_path.empty()) return kPage;
  struct statfs filesystem{};
  if (::statfs(hugepage_path.c_str(), &filesystem) != 0) {
    return system_error("cannot use hugepage_path " + hugepage_path, errno);
  }
  if (filesystem.f_type != HUGETLBFS_MAGIC) {
    return Error{
        ErrorCode::INVALID_ARGUMENT,
        "hugepage_path " + hugepage_path +
            " is not a hugetlbfs mount: make one (`mount -t hugetlbfs -o pagesize=2M none " +
            hugepage_path + "`) or leave hugepage_path empty"};
  }
  return static_cast<std::uint64_t>(filesystem.f_bsize);
}

Result<std::string> region_path(const std::string& name, const std::string& hugepage_path) {
  const char* wrong = nullptr;
  if (name.empty() || name[0] != '/') {
    wrong = "must start with \"/\"";
  } else if (name.size() == 1 || name == "/." || name == "/..") {
    wrong = "must have a file name after the \"/\"";
  } else if (name.find('/', 1) != std::string::npos) {
    wrong = "must not contain a second \"/\"";
  } else if (name.find('\0') != std::string::npos) {
    wrong = "must not contain a NUL byte";
  } else if (name.size() > kMaxRegionName) {
    wrong = "must be at most 200 bytes long";
  }
  if (wrong != nullptr) {
    return Error{ErrorCode::INVALID_ARGUMENT, "region name \"" + name + "\" " + wrong};
  }
  return (hugepage_path.empty() ? std::string(kShmDirectory) : hugepage_path) + name;
}

Result<std::uint64_t> SharedRegion::check_room(const std::string& need, std::uint64_t bytes,
                                               const RegionOptions& options) {
  const Result<std::uint64_t> page = region_page_bytes(options.hugepage_path);
  if (!page) return page.error();
  if (bytes == 0 || bytes > kMaxBytes) {
    return Error{ErrorCode::INVALID_ARGUMENT,
                 need + " " + size_text(bytes) + ", but only 1 to 2^46 bytes are possible"};
  }
  const bool huge = !options.hugepage_path.empty();
  const std::uint64_t size = round_up(bytes, page.value());
  const std::uint64_t huge_page_bytes = huge ? page.value() : 0;
  Result<MemoryLimits> limits =
      options.limits
          ? Result<MemoryLimits>(*options.limits)
          : measure_limits(huge ? options.hugepage_path : kShmDirectory, huge_page_bytes);
  if (!limits) return std::move(limits).error();
  if (Result<> fits = check_limits(limits.value(), need, size, huge_page_bytes); !fits) {
    return std::move(fits).error();
  }
  return size;
}

Result<SharedRegion> SharedRegion::create(const std::string& name, std::uint64_t bytes,
                                          const RegionOptions& options) {
  Result<std::string> path = region_path(name, options.hugepage_path);
  if (!path) return std::move(path).error();
  const Result<std::uint64_t> page = region_page_bytes(options.hugepage_path);
  if (!page) return page.error();
  const Result<std::uint64_t> room = check_room("region " + name + " needs", bytes, options);
  if (!room) return room.error();
  const bool huge = !options.hugepage_path.empty();
  const std::uint64_t size = room.value();

  const Fd fd(
      ::open(path.value().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0) {
    const char* hint = errno == EEXIST ? " (a region of this name exists; destroy it first)" : "";
    return system_error("cannot create " + path.value() + hint, errno);
  }
  FileGuard guard(path.value());
  if (options.gid >= 0 &&
      ::fchown(fd.get(), static_cast<uid_t>(-1), static_cast<gid_t>(options.gid)) != 0) {
    return system_error("cannot give " + path.value() + " to group " + std::to_string(options.gid) +
                            " (the user must be a member of it)",
                        errno);
  }
  if (::fchmod(fd.get(), options.mode) != 0) {
    return system_error("cannot set the mode of " + path.value(), errno);
  }
  if (const int error = reserve(fd.get(), size); error != 0) {
    return reserve_error(path.value(), size, huge, error);
  }
  Result<SharedRegion> region = map(fd.get(), name, /*read_only=*/false, page.value());
  if (region) guard.keep();
  return region;
}

Result<SharedRegion> SharedRegion::open(const std::string& name, bool read_only,
                                        const std::string& hugepage_path) {
  Result<std::string> path = region_path(name, hugepage_path);
  if (!path) return std::move(path).error();
  const Result<std::uint64_t> page = region_page_bytes(hugepage_path);
  if (!page) return page.error();
  const int access = read_only ? O_RDONLY : O_RDWR;
  // O_NONBLOCK: no waiting for the writer of a FIFO.
  const Fd fd(::open(path.value().c_str(), access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (fd.get() < 0) {
    const int error = errno;
    if (error == ENOENT) {
      return Error{ErrorCode::NOT_READY,
                   "there is no region " + path.value() +
                       ": its radix-server is not running, or waits for a client's geometry"};
    }
    const char* hint =
        error == EACCES ? " (run as its user, or start the server with a group)" : "";
    return system_error("cannot open " + path.value() + hint, error);
  }
  return map(fd.get(), name, read_only, page.value());
}

Result<bool> SharedRegion::unlink(const std::string& name, const std::string& hugepage_path) {
  Result<std::string> path = region_path(name, hugepage_path);
  if (!path) return std::move(path).error();
  if (::unlink(path.value().c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  return system_error("cannot delete " + path.value(), errno);
}

Result<SharedRegion> SharedRegion::map(int fd, std::string name, bool read_only,
                                       std::uint64_t page_bytes) {
  struct stat status{};
  if (::fstat(fd, &status) != 0)
    return system_error("cannot read the size of region " + name, errno);
  if (!S_ISREG(status.st_mode)) {
    return Error{ErrorCode::CORRUPT, "region " + name + " is not a regular file"};
  }
  if (status.st_size == 0) {
    return Error{ErrorCode::NOT_READY, "region " + name +
                                           " is empty: it is still being made, or its maker died; "
                                           "try again, or destroy it"};
  }
  SharedRegion region;
  region.name_ = std::move(name);
  region.bytes_ = static_cast<std::uint64_t>(status.st_size);
  region.page_bytes_ = page_bytes;
  region.read_only_ = read_only;
  // The last page of a file that is not ours may be a part of one; it is mapped whole.
  void* const base =
      map_aligned(fd, round_up(region.bytes_, page_bytes), std::max(kAlignment, page_bytes),
                  read_only ? PROT_READ : PROT_READ | PROT_WRITE);
  if (base == MAP_FAILED) {
    return system_error("cannot map the " + std::to_string(region.bytes_) + " bytes of region " +
                            region.name_ + " (see `ulimit -v`)",
                        errno);
  }
  region.base_ = static_cast<std::byte*>(base);
  return region;
}

SharedRegion::SharedRegion(SharedRegion&& other) noexcept
    : name_(std::move(other.name_)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      page_bytes_(other.page_bytes_),
      read_only_(other.read_only_) {}

SharedRegion& SharedRegion::operator=(SharedRegion&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(page_bytes_, other.page_bytes_);
  std::swap(read_only_, other.read_only_);
  return *this;
}

SharedRegion::~SharedRegion() {
  if (base_ != nullptr) ::munmap(base_, round_up(bytes_, page_bytes_));
}

Result<> SharedRegion::prefault(std::uint64_t begin, std::uint64_t end) const {
  if (begin > end || end > bytes_) {
    return Error{ErrorCode::OUT_OF_RANGE, "cannot prefault [" + std::to_string(begin) + ", " +
                                              std::to_string(end) + ") of region " + name_ +
                                              ", which has " + std::to_string(bytes_) + " bytes"};
  }
  if (read_only_) {
    return Error{ErrorCode::INVALID_ARGUMENT,
                 "cannot prefault region " + name_ + ": it is mapped read-only"};
  }
  if (begin == end) return Unit{};
  begin = begin / page_bytes_ * page_bytes_;
  int error = 0;
  do {
    error = ::madvise(base_ + begin, round_up(end, page_bytes_) - begin, MADV_POPULATE_WRITE) == 0
                ? 0
                : errno;
  } while (error == EINTR || error == EAGAIN);
  if (error == 0) return Unit{};
  if (error != EINVAL && error != ENOSYS) {
    return system_error("cannot prefault region " + name_, error);
  }
  // Kernels before 5.14. Adding nothing atomically leaves a concurrent writer's byte alone.
  for (std::uint64_t offset = begin; offset < end; offset += page_bytes_) {
    std::atomic_ref(reinterpret_cast<std::uint8_t&>(base_[offset]))
        .fetch_or(0, std::memory_order_relaxed);
  }
  return Unit{};
}

}  // namespace radixshmem
