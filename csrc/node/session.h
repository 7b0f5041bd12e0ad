// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One registered client of an index region: everything a process does with the index.
//
// Registration: find a free entry, lock its byte of the live file, take the index lock as that id,
// look again, claim. Killed before the claim: the byte is free again and nothing else happened.
// Killed after it: the entry is LIVE with a free byte, which the reaper finds.
// A read-only session maps the region PROT_READ, has no id, no pins, no counters; queries work.
//
// Thread safety: all calls may run in parallel, close() too: it refuses new calls, waits for those
// in flight, clears the pins, recycles the slots and unmaps. In a forked child a session is
// unusable: calls fail with CLOSED, releases do nothing.
//
// Errors: every call fails with NOT_READY once the region was closed or superseded by its server,
// and with CLOSED after close().
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "directory/peer_table.h"
#include "shm/shared_region.h"
#include "sync/live_file.h"
#include "sync/owner_lock.h"
#include "tree/tree.h"

namespace radixshmem {

class Session;

// The answer to one query. Movable; it keeps its session (and so the mapping) alive.
// Thread safety: finalize() and validate() from any thread; the rest like a value.
class Hit final {
 public:
  Hit() = default;
  Hit(Hit&& other) noexcept;
  Hit& operator=(Hit&&) = delete;
  Hit(const Hit&) = delete;
  ~Hit() = default;

  ErrorCode status = ErrorCode::OK;
  std::uint32_t mask = 0;
  Position blocks = 0;     // common hit
  std::uint32_t rank = 0;  // of this node; 0 without a cluster
  std::unique_ptr<std::int32_t[]> full_slots;
  std::uint32_t full_count = 0;  // slots in full_slots that are part of the answer
  Window window;
  std::optional<CursorPoint> cursor;

  [[nodiscard]] bool pinned() const noexcept { return pinned_.load(std::memory_order_relaxed); }
  // Releases the pins. Idempotent; does nothing after a reset, a close or a fork.
  void finalize() noexcept;
  // Returns: whether everything this answer rests on is unchanged; false after a close.
  [[nodiscard]] bool validate() const noexcept;

 private:
  friend class Session;
  std::shared_ptr<Session> session_;
  Match match_;
  std::vector<std::uint32_t> pins_;
  std::atomic<bool> pinned_{false};
};

struct QueryOptions {
  std::uint32_t mask = kMaskFull;
  bool lock = false;
  bool update_recency = true;
  // Not a window: all slots of the one aux component in `mask` from this block on, -1 where there
  // is none (window.aux_slots). The hit is then the FULL path alone.
  std::optional<Position> aux_from = std::nullopt;
};

class Session final : public std::enable_shared_from_this<Session> {
 public:
  // Maps the region `name` and registers, or only maps it when `read_only`. `group`: processes of
  // one engine share it; empty is a group of its own.
  static Result<std::shared_ptr<Session>> attach(const std::string& name, const std::string& group,
                                                 bool read_only);
  // For a look that takes the writer lock: registers in the entry that no client gets when all
  // others are taken.
  static Result<std::shared_ptr<Session>> inspect(const std::string& name);
  // The server's own session, as client 0, on a region that it just made or adopts.
  static std::shared_ptr<Session> for_server(SharedRegion region, HeaderView header,
                                             std::shared_ptr<LiveFile> live);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] bool read_only() const noexcept { return region_.read_only(); }
  // The peer table of the region. Requires: a call of this session, or that it is not closed.
  [[nodiscard]] PeerTable peer_table() const noexcept { return peer_table_; }
  // Returns: the rank of this node, 0 without a cluster.
  [[nodiscard]] std::uint32_t rank() const noexcept;
  // Returns: the nodes of the cluster, those included that cannot be read; 1 without a cluster.
  [[nodiscard]] std::uint32_t world_size() const;
  [[nodiscard]] const std::string& name() const noexcept { return region_.name(); }
  [[nodiscard]] ClientId client_id() const noexcept { return self_; }
  [[nodiscard]] std::uint32_t generation() const noexcept { return generation_; }
  // Returns: OK, NOT_READY or CLOSED: what the next call would say.
  [[nodiscard]] ErrorCode state() const noexcept;
  [[nodiscard]] bool usable() const noexcept;
  [[nodiscard]] const IndexPlan& plan() const noexcept { return tree_->plan(); }
  [[nodiscard]] std::uint64_t incarnation() const noexcept { return incarnation_; }
  // The index begins another life. Requires: no other thread uses this session yet.
  void begin_incarnation(std::uint64_t incarnation) noexcept;

  Result<Hit> query(std::span<const BlockHash> hashes, const QueryOptions& options);
  // FULL only: BAD_REQUEST status for other masks.
  Result<Hit> extend(const CursorPoint& cursor, std::span<const BlockHash> hashes,
                     const QueryOptions& options);
  // FULL: slots cover hashes[start, start + slots.size()). SWA: start 0, slots right-aligned on the
  // last blocks of `hashes`, -1 keeps. MAMBA: one slot, start 0 or hashes.size() - 1.
  Result<InsertOutcome> insert(std::span<const BlockHash> hashes,
                               std::span<const std::int32_t> slots, Position start,
                               bool auto_recycle, Component component);
  // Returns: fewer than `wanted` when BUSY (none) or when too little can be evicted.
  Result<std::vector<std::int32_t>> allocate(std::int64_t wanted, Component component);
  // INVALID_ARGUMENT names the first slot that is not the group's; then nothing was recycled.
  // While the lock is busy the slots wait in this session and go with the next locked call.
  Result<> recycle(std::span<const std::int32_t> slots, Component component);
  Result<std::uint32_t> evict(std::uint32_t wanted, Component component);
  Result<> reset();

  [[nodiscard]] Result<std::uint32_t> slots_total(Component component) const;
  // Frees what a reset left behind first, when its pins are gone.
  Result<std::uint32_t> slots_free(Component component);
  [[nodiscard]] Result<std::uint32_t> total_blocks() const;
  [[nodiscard]] Result<std::uint32_t> total_segments() const;

  // Change events of FULL blocks that went away.
  Result<> seek_events_to_head();
  // Returns: hashes of removed FULL blocks, at most `most`; sets `overflow` when the caller must
  // resync (lapped, undone, rebuilt, or reset).
  Result<std::vector<BlockHash>> drain_removed(std::size_t most, bool& overflow);

  Result<std::vector<std::string>> check(bool repair);
  void close() noexcept;

  // For the server, tests and inspection.
  [[nodiscard]] Tree& tree() noexcept { return *tree_; }
  [[nodiscard]] const Tree& tree() const noexcept { return *tree_; }
  [[nodiscard]] OwnerLock& lock() noexcept { return *lock_; }
  [[nodiscard]] const LiveFile& live() const noexcept { return *live_; }
  [[nodiscard]] std::uint32_t pins_outstanding() const noexcept;
  // The error of a call that found this state.
  [[nodiscard]] Error refusal(ErrorCode code) const;
  // Runs f() under the index lock, after recovery if an owner died. Returns: false when busy.
  template <typename F>
  [[nodiscard]] bool locked(F&& f) {
    if (!acquire()) return false;
    f();
    lock_->release();
    return true;
  }
  // Gives back the slots that client `id` owns, counted in `slots`, and frees its entry. A member
  // of its group may die while it inserts one of these slots: whoever takes its lock undoes that,
  // and the slot is the client's again. Then the list of slots is outdated: nothing was done.
  enum class Released { kDone, kBusy, kOutdated };
  [[nodiscard]] Released release_client(ClientId id, bool to_quarantine, std::uint32_t& slots);
  // Guards one call against close(). False: refused.
  class Call;

 private:
  friend class Hit;
  friend struct ForkRegistry;

  Session(SharedRegion region, HeaderView header, std::shared_ptr<LiveFile> live);
  static Result<std::shared_ptr<Session>> map(const std::string& name, bool read_only);
  static Result<std::shared_ptr<Session>> join(const std::string& name, const std::string& group,
                                               std::uint32_t spared);
  // Takes a free entry, but none of the last `spared`.
  [[nodiscard]] Result<> register_client(const std::string& group, std::uint32_t spared);
  // Makes what this process needs to lock and pin under an id.
  void act_as(ClientId id);
  [[nodiscard]] bool acquire();
  void flush_deferred() noexcept;
  // Parts of close(). Returns: false when the lock is busy.
  [[nodiscard]] bool give_back() noexcept;
  // The entry stays LIVE with a free byte; it says that nobody writes its slots any more.
  void leave_to_reaper() noexcept;
  [[nodiscard]] Error busy_error(const char* what) const;
  [[nodiscard]] Result<> require_writable(const char* what) const;
  [[nodiscard]] Result<> require_component(Component component) const;
  // What query() and extend() (`from`) do once the request is known to be right.
  [[nodiscard]] Hit find(std::span<const BlockHash> hashes, const CursorPoint* from,
                         const QueryOptions& options);
  [[nodiscard]] bool publish_pins(Hit& hit);
  void clear_pins(Hit& hit) noexcept;
  void finish_query(Hit& hit, std::size_t asked, const QueryOptions& options) noexcept;
  void count(Counter counter, std::uint64_t amount) noexcept;

  SharedRegion region_;
  std::shared_ptr<LiveFile> live_;
  std::unique_ptr<Tree> tree_;
  PeerTable peer_table_;
  std::unique_ptr<OwnerLock> lock_;
  std::unique_ptr<PinAllocator> pins_;
  ClientId self_ = 0;
  std::uint32_t generation_ = 0;
  std::uint32_t group_ = 0;
  std::uint64_t incarnation_ = 0;
  std::atomic<bool> closed_{false};
  std::atomic<bool> forked_{false};
  mutable std::atomic<std::uint32_t> in_flight_{0};
  // Slots whose recycling waits for the lock.
  std::mutex deferred_mutex_;
  std::array<std::vector<std::int32_t>, kComponents> deferred_;
  std::atomic<bool> any_deferred_{false};
  std::mutex events_mutex_;
  ChangeRing::Cursor events_;
};

}  // namespace radixshmem
