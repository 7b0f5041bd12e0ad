// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A reader with faults around another one: for tests of whoever reads peers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "transport/peer_reader.h"

namespace radixshmem {

// What a network and a peer may do. All of it may be changed between two batches.
struct Faults {
  std::chrono::microseconds delay{0};  // a batch is pending for at least this long
  bool reorder = false;                // its reads happen in any order
  bool tear = false;                   // each 64-byte line is of the begin or of the end of it
  std::function<void()> meanwhile;     // called between those two times
  bool drop = false;                   // a batch posted now never completes
  bool dead = false;                   // it fails, and the reader is broken
};

class FakeReader final : public PeerReader {
 public:
  FakeReader(std::unique_ptr<PeerReader> inner, Faults given, std::uint64_t seed)
      : faults(std::move(given)), inner_(std::move(inner)), random_(seed) {}

  [[nodiscard]] TransportKind kind() const noexcept override { return TransportKind::kFake; }
  [[nodiscard]] bool post(std::span<const ReadOp> ops) noexcept override;
  [[nodiscard]] Progress poll() noexcept override;
  void abandon() noexcept override;
  [[nodiscard]] bool broken() const noexcept override { return dead_ || inner_->broken(); }

  Faults faults;

 private:
  enum class Step { kIdle, kFirst, kSecond, kDropped };

  void mix_lines() noexcept;

  std::unique_ptr<PeerReader> inner_;
  std::mt19937_64 random_;
  std::vector<ReadOp> ops_;
  std::vector<std::vector<std::byte>> first_;  // of each of ops_, with tear
  Step step_ = Step::kIdle;
  Progress result_ = Progress::kDone;
  Deadline not_before_{};
  bool dead_ = false;
};

}  // namespace radixshmem
