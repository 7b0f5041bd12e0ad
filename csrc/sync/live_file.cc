// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "sync/live_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "sync/fault_point.h"

namespace radixshmem {
namespace {

constexpr int kOpenTries = 100;

// Every descriptor of this process, for the atfork child handler.
std::mutex open_files_mutex;
std::vector<int> open_files;
// Forks since the start: tells whether a descriptor is this process's or was closed in a child.
std::atomic<std::uint32_t> forks{0};

void before_fork() {
  open_files_mutex.lock();
}
void after_fork_parent() {
  open_files_mutex.unlock();
}
void after_fork_child() {
  if (!mutant(Mutant::kNoForkClose)) {
    for (const int fd : open_files) ::close(fd);
    open_files.clear();
    forks.fetch_add(1, std::memory_order_relaxed);
  }
  open_files_mutex.unlock();
}

// Returns: whether `path` means the file that `fd` has open.
bool names(const std::string& path, int fd) noexcept {
  struct stat opened{};
  struct stat named{};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

struct flock byte_lock(short type, ClientId first, ClientId count) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(first);
  lock.l_len = static_cast<off_t>(count);
  return lock;
}

}  // namespace

Result<LiveFile> LiveFile::open(const std::string& name, bool create) {
  static const int registered = ::pthread_atfork(before_fork, after_fork_parent, after_fork_child);
  (void)registered;
  const std::string path = "/dev/shm" + name + ".live";
  for (int attempt = 0; attempt < kOpenTries; ++attempt) {
    int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT && create) {
      fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      if (fd < 0 && errno == EEXIST) continue;
    }
    if (fd < 0) {
      if (errno == ENOENT) {
        return Error{ErrorCode::NOT_READY,
                     "there is no " + path + ": start radix-server --name " + name + " first"};
      }
      const int error = errno;
      const char* hint = error == EACCES
                             ? " (it belongs to another user: run as that user, start its "
                               "radix-server with --group, or choose another name)"
                             : "";
      return system_error("cannot open " + path + hint, error);
    }
    if (names(path, fd)) return LiveFile(path, fd);
    ::close(fd);
  }
  return Error{ErrorCode::SYSTEM, path + " keeps being replaced: try again"};
}

LiveFile::LiveFile(std::string path, int fd)
    : path_(std::move(path)), fd_(fd), born_(forks.load(std::memory_order_relaxed)) {
  const std::lock_guard guard(open_files_mutex);
  open_files.push_back(fd_);
}

LiveFile::LiveFile(LiveFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), born_(other.born_) {}

LiveFile::~LiveFile() {
  if (fd_ < 0) return;
  const std::lock_guard guard(open_files_mutex);
  // In a forked child it is closed already, and the number may be another LiveFile's by now.
  if (born_ != forks.load(std::memory_order_relaxed)) return;
  const auto at = std::find(open_files.begin(), open_files.end(), fd_);
  if (at == open_files.end()) return;
  open_files.erase(at);
  ::close(fd_);
}

bool LiveFile::try_lock(ClientId id) noexcept {
  struct flock lock = byte_lock(F_WRLCK, id, 1);
  return ::fcntl(fd_, F_OFD_SETLK, &lock) == 0;
}

void LiveFile::unlock(ClientId id) noexcept {
  struct flock lock = byte_lock(F_UNLCK, id, 1);
  (void)::fcntl(fd_, F_OFD_SETLK, &lock);
}

Result<> LiveFile::set_access(mode_t mode, gid_t gid) const {
  struct stat found{};
  if (::fstat(fd_, &found) != 0) return system_error("cannot read the mode of " + path_, errno);
  const bool other_group = gid != static_cast<gid_t>(-1) && gid != found.st_gid;
  if (other_group && ::fchown(fd_, static_cast<uid_t>(-1), gid) != 0) {
    return system_error("cannot give " + path_ + " to group " + std::to_string(gid), errno);
  }
  if ((found.st_mode & 07777) != mode && ::fchmod(fd_, mode) != 0) {
    return system_error("cannot set the mode of " + path_, errno);
  }
  return Unit{};
}

bool LiveFile::still_named() const noexcept {
  return names(path_, fd_);
}

bool LiveFile::held_elsewhere(ClientId id) const noexcept {
  return any_held_elsewhere(id, id + 1);
}

bool LiveFile::any_held_elsewhere(ClientId first, ClientId end) const noexcept {
  struct flock lock = byte_lock(F_WRLCK, first, end - first);
  // An error (a closed descriptor) must read as "alive": nobody is robbed on doubt.
  if (::fcntl(fd_, F_OFD_GETLK, &lock) != 0) return true;
  return lock.l_type != F_UNLCK;
}

bool LiveFile::unlink_if_unused() noexcept {
  struct flock all = byte_lock(F_WRLCK, 0, 0);  // to the end of the file range: every byte
  if (::fcntl(fd_, F_OFD_SETLK, &all) != 0) return false;
  // Held whole: who opens the file now and locks a byte finds by still_named() that it is gone.
  return ::unlink(path_.c_str()) == 0;
}

}  // namespace radixshmem
