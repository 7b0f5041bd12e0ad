// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/peer_reader.h"

#include <algorithm>
#include <array>
#include <ctime>

#include <poll.h>
#include <sched.h>

namespace radixshmem {
namespace {

constexpr std::size_t kMaxWaits = 256;
// An answer that comes at once is not slept for: waking up takes as long.
constexpr std::chrono::microseconds kAwake{50};

struct Waits {
  std::array<pollfd, kMaxWaits> fds;
  nfds_t count = 0;
  bool pending = false;
  bool only_fds = true;  // every pending reader has its descriptor in `fds`
};

// Polls all readers. Returns: what to wait for.
void poll_readers(std::span<PeerReader* const> readers, Waits& waits) noexcept {
  waits.count = 0;
  waits.pending = false;
  waits.only_fds = true;
  for (PeerReader* const reader : readers) {
    if (reader->poll() != PeerReader::Progress::kPending) continue;
    waits.pending = true;
    const int fd = reader->wait_fd();
    if (fd < 0 || waits.count == kMaxWaits) {
      waits.only_fds = false;
    } else {
      waits.fds[waits.count++] = {fd, reader->wait_events(), 0};
    }
  }
}

timespec timespec_of(std::chrono::nanoseconds left) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  return {static_cast<std::time_t>(seconds.count()), static_cast<long>((left - seconds).count())};
}

}  // namespace

const char* transport_name(TransportKind kind) noexcept {
  switch (kind) {
    case TransportKind::kShm:
      return "shm";
    case TransportKind::kVerbs:
      return "verbs";
    case TransportKind::kTcp:
      return "tcp";
    case TransportKind::kFake:
      return "fake";
  }
  return "unknown";
}

std::uint64_t batch_bytes(std::span<const ReadOp> ops) noexcept {
  if (ops.size() > kMaxReads) return 0;
  std::uint64_t sum = 0;
  for (const ReadOp& op : ops) {
    if (op.length == 0 || op.length > kMaxReadBytes) return 0;
    sum += op.length;
  }
  return sum <= kMaxReadBatchBytes ? sum : 0;
}

bool wait_all(std::span<PeerReader* const> readers, Deadline deadline) noexcept {
  Waits waits;
  const auto awake_until = std::chrono::steady_clock::now() + kAwake;
  for (;;) {
    poll_readers(readers, waits);
    if (!waits.pending) return true;
    const auto now = std::chrono::steady_clock::now();
    const auto left = deadline - now;
    if (left <= left.zero()) return false;
    if (waits.only_fds && now >= awake_until) {
      const timespec limit = timespec_of(left);
      ::ppoll(waits.fds.data(), waits.count, &limit, nullptr);
    } else {
      ::sched_yield();
    }
  }
}

}  // namespace radixshmem
