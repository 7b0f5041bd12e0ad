// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A reader with faults around another one: for tests of whoever reads peers.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/ids.h"
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

inline bool FakeReader::post(std::span<const ReadOp> ops) noexcept {
  if (broken() || batch_bytes(ops) == 0) return false;
  ops_.assign(ops.begin(), ops.end());
  if (faults.reorder) std::shuffle(ops_.begin(), ops_.end(), random_);
  not_before_ = std::chrono::steady_clock::now() + faults.delay;
  step_ = faults.drop ? Step::kDropped : Step::kFirst;
  return faults.dead || faults.drop || inner_->post(ops_);
}

inline PeerReader::Progress FakeReader::poll() noexcept {
  if (faults.dead) {
    dead_ = true;
    step_ = Step::kIdle;
    result_ = Progress::kFailed;
  }
  if (step_ == Step::kIdle) return result_;
  if (step_ == Step::kDropped || std::chrono::steady_clock::now() < not_before_) {
    return Progress::kPending;
  }
  result_ = inner_->poll();
  if (result_ == Progress::kPending) return result_;
  if (result_ == Progress::kDone && step_ == Step::kFirst && faults.tear) {
    first_.clear();
    for (const ReadOp& op : ops_) first_.emplace_back(op.to, op.to + op.length);
    if (faults.meanwhile) faults.meanwhile();
    step_ = Step::kSecond;
    if (inner_->post(ops_)) return Progress::kPending;
    result_ = Progress::kFailed;
  }
  if (result_ == Progress::kDone && step_ == Step::kSecond) mix_lines();
  step_ = Step::kIdle;
  return result_;
}

// Puts the first bytes back into some of the aligned lines.
inline void FakeReader::mix_lines() noexcept {
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const ReadOp& op = ops_[i];
    for (std::uint64_t at = 0; at < op.length;) {
      const std::uint64_t line_end = (op.offset + at) / kCacheLine * kCacheLine + kCacheLine;
      const std::uint64_t end = std::min<std::uint64_t>(line_end - op.offset, op.length);
      if (random_() % 2 == 0) std::memcpy(op.to + at, first_[i].data() + at, end - at);
      at = end;
    }
  }
}

inline void FakeReader::abandon() noexcept {
  if (step_ == Step::kIdle) return;
  if (step_ != Step::kDropped) inner_->abandon();
  step_ = Step::kIdle;
  result_ = Progress::kFailed;
}

}  // namespace radixshmem
