// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "sync/undo_log.h"

#include "base/memory_orders.h"
#include "layout/words.h"

namespace radixshmem {
namespace {

template <typename T>
std::atomic<T>& word_at(std::byte* at) noexcept {
  return *reinterpret_cast<std::atomic<T>*>(at);
}

}  // namespace

void UndoLog::set_commit(const std::atomic<std::uint64_t>& word, std::uint64_t value) noexcept {
  if (mutant(Mutant::kNoCommitWord)) return;
  shared_->commit_word.store(value, std::memory_order_release);
  shared_->commit_offset.store(
      static_cast<std::uint64_t>(reinterpret_cast<const std::byte*>(&word) - region_),
      std::memory_order_release);
}

void UndoLog::commit(std::uint64_t ring_head) noexcept {
  shared_->entries.store(0, std::memory_order_release);
  count_ = 0;
  reset(ring_head);
}

void UndoLog::reset(std::uint64_t ring_head) noexcept {
  shared_->commit_offset.store(0, std::memory_order_release);
  shared_->ring_head.store(ring_head, std::memory_order_release);
}

bool UndoLog::usable(std::uint32_t entries) const noexcept {
  if (entries > kUndoEntries) return false;
  const std::uint64_t commit = shared_->commit_offset.load(std::memory_order_relaxed);
  if (commit > region_bytes_ - 8 || commit % 8 != 0) return false;
  for (std::uint32_t i = 0; i < entries; ++i) {
    const std::uint64_t where = shared_->entry[i].where.load(std::memory_order_relaxed);
    const std::uint64_t tag = where & 0xff;
    const bool known =
        tag == 1 || tag == 2 || tag == 4 || tag == 8 || tag == kTagHead || tag == kTagAux;
    const std::uint64_t width = tag > 8 ? 8 : tag;
    if (!known || (where >> 8) > region_bytes_ - 8 || (where >> 8) % width != 0) return false;
  }
  return true;
}

UndoLog::Outcome UndoLog::outcome() const noexcept {
  const std::uint32_t n = entries();
  if (!usable(n)) return Outcome::kUnusable;
  if (n == 0) return Outcome::kEmpty;
  const std::uint64_t offset = shared_->commit_offset.load(std::memory_order_acquire);
  if (offset != 0 && word_at<std::uint64_t>(region_ + offset).load(std::memory_order_acquire) ==
                         shared_->commit_word.load(std::memory_order_acquire)) {
    return Outcome::kCommitted;
  }
  return Outcome::kUndone;
}

void UndoLog::restore(const UndoEntry& entry) noexcept {
  const std::uint64_t where = entry.where.load(std::memory_order_relaxed);
  const std::uint64_t old_value = entry.old_value.load(std::memory_order_relaxed);
  std::byte* at = region_ + (where >> 8);
  switch (where & 0xff) {
    case 1:
      word_at<std::uint8_t>(at).store(static_cast<std::uint8_t>(old_value), kRelease);
      break;
    case 2:
      word_at<std::uint16_t>(at).store(static_cast<std::uint16_t>(old_value), kRelease);
      break;
    case 4:
      word_at<std::uint32_t>(at).store(static_cast<std::uint32_t>(old_value), kRelease);
      break;
    case kTagHead: {
      auto& head = word_at<std::uint64_t>(at);
      const SegmentHead old = SegmentHead::unpack(old_value);
      const std::uint64_t now = head.load(std::memory_order_relaxed);
      head.store(mutant(Mutant::kUndoRestoresVersion)
                     ? old_value
                     : next_head(now, old.state, old.count, old.owned),
                 std::memory_order_seq_cst);
      break;
    }
    case kTagAux: {
      auto& word = word_at<std::uint64_t>(at);
      const std::uint64_t now = word.load(std::memory_order_relaxed);
      word.store(mutant(Mutant::kUndoRestoresVersion)
                     ? old_value
                     : AuxWord::absent_after(now) | static_cast<std::uint32_t>(old_value),
                 std::memory_order_seq_cst);
      break;
    }
    default:
      word_at<std::uint64_t>(at).store(old_value, kRelease);
      break;
  }
}

void UndoLog::resolve(Outcome outcome) noexcept {
  count_ = 0;
  if (outcome == Outcome::kUndone) {
    for (std::uint32_t n = entries(); n > 0;) {
      restore(shared_->entry[n - 1]);
      shared_->entries.store(--n, std::memory_order_release);
      fault_point(FaultPoint::undo_middle);
    }
    return;
  }
  // Before entries = 0 nothing may forget that an unusable log stands for a rebuild: the caller
  // has set its intent already.
  shared_->entries.store(0, std::memory_order_release);
}

}  // namespace radixshmem
