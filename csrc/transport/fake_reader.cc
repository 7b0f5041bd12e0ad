// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/fake_reader.h"

#include <algorithm>
#include <cstring>

#include "base/ids.h"

namespace radixshmem {

bool FakeReader::post(std::span<const ReadOp> ops) noexcept {
  if (broken() || batch_bytes(ops) == 0) return false;
  ops_.assign(ops.begin(), ops.end());
  if (faults.reorder) std::shuffle(ops_.begin(), ops_.end(), random_);
  not_before_ = std::chrono::steady_clock::now() + faults.delay;
  step_ = faults.drop ? Step::kDropped : Step::kFirst;
  return faults.dead || faults.drop || inner_->post(ops_);
}

PeerReader::Progress FakeReader::poll() noexcept {
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
void FakeReader::mix_lines() noexcept {
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

void FakeReader::abandon() noexcept {
  if (step_ == Step::kIdle) return;
  if (step_ != Step::kDropped) inner_->abandon();
  step_ = Step::kIdle;
  result_ = Progress::kFailed;
}

}  // namespace radixshmem
