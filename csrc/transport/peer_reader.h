// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One way to read the memory of one life of one peer, without the help of whoever works on it.
//
// A reader carries one batch of reads at a time: post(), then poll() until it is not pending. What
// arrives is what lay there at some time, in no order. An aligned 8-byte word of the index arrives
// whole (over verbs as NICs in use do it; no standard says so). A caller believes nothing that it
// has not compared.
// After kFailed a reader is broken for good: make another one.
// Thread safety: one thread at a time. A forked child leaves it alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace radixshmem {

using Rank = std::uint16_t;
inline constexpr Rank kNoRank = 0xffff;

enum class PeerRegion : std::uint8_t {
  kIndex = 0,  // the peer-readable range of the index region, from its first byte on
  kSlots = 1,  // the data range of the SlotStore
};

enum class TransportKind : std::uint8_t { kShm = 0, kVerbs = 1, kTcp = 2, kFake = 3 };

// Returns: "shm", "verbs", "tcp", "fake".
[[nodiscard]] const char* transport_name(TransportKind kind) noexcept;

struct ReadOp {
  PeerRegion region = PeerRegion::kIndex;
  std::uint64_t offset = 0;
  std::uint32_t length = 0;
  std::byte* to = nullptr;
};

inline constexpr std::size_t kMaxReads = 4096;  // of one batch
inline constexpr std::uint32_t kMaxReadBytes = 64u << 20;
inline constexpr std::uint64_t kMaxReadBatchBytes = std::uint64_t{1} << 30;

// Returns: the bytes of a batch that obeys the limits above; 0 for any other, which may be empty or
// hold a read of no bytes.
[[nodiscard]] std::uint64_t batch_bytes(std::span<const ReadOp> ops) noexcept;

using Deadline = std::chrono::steady_clock::time_point;

class PeerReader {
 public:
  enum class Progress { kPending, kDone, kFailed };

  PeerReader() = default;
  PeerReader(const PeerReader&) = delete;
  PeerReader& operator=(const PeerReader&) = delete;
  virtual ~PeerReader() = default;

  [[nodiscard]] virtual TransportKind kind() const noexcept = 0;
  // Starts all reads. Requires: none is in flight; destinations do not overlap and stay until
  // poll() says done or failed, or abandon() returned. A read outside of its region makes the batch
  // fail. Returns: false when the reader is broken or batch_bytes(ops) is 0; nothing is in flight
  // then.
  [[nodiscard]] virtual bool post(std::span<const ReadOp> ops) noexcept = 0;
  // Never blocks. Returns: how the batch posted last fares.
  [[nodiscard]] virtual Progress poll() noexcept = 0;
  // Returns: a descriptor that becomes readable or writable (wait_events) when poll() may get
  // further; -1: call poll() again and again.
  [[nodiscard]] virtual int wait_fd() const noexcept { return -1; }
  [[nodiscard]] virtual short wait_events() const noexcept { return 0; }
  // Gives up the batch in flight; when it returns no destination is written any more. The reader
  // may be broken afterwards.
  virtual void abandon() noexcept = 0;
  [[nodiscard]] virtual bool broken() const noexcept = 0;
};

// Waits until none of `readers` is pending, or the deadline. Returns: whether none is.
bool wait_all(std::span<PeerReader* const> readers, Deadline deadline) noexcept;

}  // namespace radixshmem
