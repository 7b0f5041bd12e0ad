// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The owner of a server name: makes, adopts and deletes the index region, reaps dead clients.
//
// Life: claim() takes byte 0 of the live file (one server per name, for as long as the process
// lives); found() says what a predecessor left; then reclaim() + create(), or adopt().
// A left-over region is adopted if and only if a client still holds its byte: it keeps its slots'
// meaning, is rebuilt, checked, and gets a new incarnation. Otherwise it is deleted.
//
// Reaping: only reap() gives a dead client's slots back. The caller decides when: the byte must be
// free, and slots go to the free lists only if the process was seen to have exited completely (its
// pidfd is readable), because its DMA may run until then; otherwise to quarantine.
// Slots of a dead client wait until no process of its group lives.
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "node/session.h"

namespace radixshmem {

enum class Predecessor {
  kNone,       // no region
  kAdoptable,  // clients still live on it
  kDead,       // nobody does
  kForeign,    // not a region of this layout version
};

class IndexServer final {
 public:
  // SYSTEM when a living server holds the name. gid -1 leaves the group of the files alone.
  static Result<std::unique_ptr<IndexServer>> claim(const std::string& name, mode_t mode,
                                                    std::int64_t gid);
  ~IndexServer();
  IndexServer(const IndexServer&) = delete;
  IndexServer& operator=(const IndexServer&) = delete;

  [[nodiscard]] Predecessor found() const;
  // Marks a left-over region superseded, so that whoever still maps it notices, and deletes it.
  Result<> reclaim();
  // Makes, reserves and publishes the region. Requires: no region of this name.
  Result<std::shared_ptr<Session>> create(const IndexPlan& plan, bool prefault);
  // Takes over the region of a dead server. CORRUPT names the first violated invariant if the
  // rebuilt index does not check: reclaim() it then.
  Result<std::shared_ptr<Session>> adopt();

  [[nodiscard]] bool client_alive(ClientId id) const noexcept;

  struct Reaped {
    std::uint32_t pins = 0;
    std::uint32_t slots = 0;
  };
  // Clears the pins of a dead client; releases its slots, and those of dead members of its group,
  // when no process of the group lives. Call it again for clients in state DEAD once that may be.
  // TIMEOUT: the lock is busy, try later. INVALID_ARGUMENT: it lives.
  Result<Reaped> reap(ClientId id, bool exited);
  // Frees the slots that were in quarantine at the last call too. TIMEOUT: try later.
  Result<std::uint32_t> release_quarantine();
  // Marks the region closed, deletes it; the live file too unless a client still holds a byte.
  void close() noexcept;

 private:
  IndexServer(std::string name, mode_t mode, std::int64_t gid, std::shared_ptr<LiveFile> live);
  Result<std::shared_ptr<Session>> start_session(SharedRegion region);
  [[nodiscard]] Error no_index(const char* what) const;

  std::string name_;
  mode_t mode_;
  std::int64_t gid_;
  std::shared_ptr<LiveFile> live_;
  std::shared_ptr<Session> session_;
  std::array<std::vector<std::int32_t>, kComponents> quarantined_;
  std::uint64_t quarantined_seen_ = ~std::uint64_t{0};  // a new server looks once in any case
};

}  // namespace radixshmem
