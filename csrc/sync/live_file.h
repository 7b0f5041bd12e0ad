// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Who is alive: byte `id` of /dev/shm/<name>.live is locked by client `id` (byte 0 by the server).
//
// Open-file-description locks: the kernel drops them when the last descriptor of the description
// goes, by whatever death; they work across PID namespaces, need no server, and survive an
// accidental open + close of the file elsewhere in the process (classic POSIX locks do not).
// One description per LiveFile, close-on-exec; a forked child closes its copy at once, else it
// would keep the byte of a dead parent locked (which delays detection, and is safe).
//
// The file never gets a new inode while any byte is held: it is unlinked only by
// unlink_if_unused(), and open() retries until what it opened is what the name still means. That
// can change until a byte is held: whoever has locked its byte asks still_named() and, if not,
// begins again.
// Thread safety: all calls may run in parallel, but destruction.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/ids.h"

namespace radixshmem {

class LiveFile final {
 public:
  // `name` is the server name, "/kv". Creates the file, for its user alone, when `create`; else
  // NOT_READY when there is none.
  static Result<LiveFile> open(const std::string& name, bool create);
  LiveFile(LiveFile&& other) noexcept;
  ~LiveFile();

  // Locks byte `id`. Returns: false when another description holds it.
  [[nodiscard]] bool try_lock(ClientId id) noexcept;
  void unlock(ClientId id) noexcept;
  // Gives the file, which may be a dead server's, its mode and group (-1: as it is).
  Result<> set_access(mode_t mode, gid_t gid) const;
  // Returns: whether the name still means this file. Final once a byte is held.
  [[nodiscard]] bool still_named() const noexcept;

  // Returns: whether another open file description holds byte `id`. One's own byte is "free".
  [[nodiscard]] bool held_elsewhere(ClientId id) const noexcept;
  // Returns: whether any byte in [first, end) is held elsewhere.
  [[nodiscard]] bool any_held_elsewhere(ClientId first, ClientId end) const noexcept;

  // Deletes the file if no other description holds a byte. Returns: whether it was deleted.
  bool unlink_if_unused() noexcept;

 private:
  LiveFile(std::string path, int fd);

  std::string path_;
  int fd_ = -1;
  std::uint32_t born_ = 0;  // after how many forks of this process
};

}  // namespace radixshmem
