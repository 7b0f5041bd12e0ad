// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The undo log of the one writer: what makes a mutation all or nothing across a SIGKILL.
//
//   entries | commit offset | commit word | ring head | entry[16384] {offset:56 | tag:8, old value}
//
// Who may call: the holder of the index lock.
// Order: store() appends {where, old value}, raises `entries` (release), then changes the word; a
// Run does the same for many words at a time.
// SIGKILL keeps program order and every store here is a release store, so the log is never behind
// the memory it describes.
// Commit: a mutation that ends in one visible store (an insert) names that store first with
// set_commit(): word, then offset. Every other mutation commits by entries = 0.
// After a crash: if the commit word is in place the mutation is kept, else resolve() restores the
// old values from the last to the first, lowering `entries` after each: it may itself be killed
// and run again. Versioned words (segment heads, aux words) get a version one above the current
// one, never the old one: a reader may hold the version of the undone state.
// A log with an unknown tag, too many entries or an offset outside the region is not usable: then
// nothing is restored and the caller rebuilds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "layout/index_plan.h"
#include "sync/fault_point.h"

namespace radixshmem {

struct UndoEntry {
  std::atomic<std::uint64_t> where;
  std::atomic<std::uint64_t> old_value;
};

struct UndoLogShared {
  std::atomic<std::uint32_t> entries;
  std::uint32_t unused;
  std::atomic<std::uint64_t> commit_offset;  // 0 = none
  std::atomic<std::uint64_t> commit_word;
  std::atomic<std::uint64_t> ring_head;  // of the change ring when the last transaction ended
  std::uint64_t padding[4];
  UndoEntry entry[kUndoEntries];
};
static_assert(std::is_standard_layout_v<UndoLogShared>);
static_assert(sizeof(UndoLogShared) == kUndoLogBytes);

class UndoLog final {
 public:
  // Tags of versioned words; that of a plain word is its size.
  static constexpr std::uint64_t kTagHead = 9;
  static constexpr std::uint64_t kTagAux = 10;

  UndoLog(std::byte* region, std::uint64_t region_bytes, UndoLogShared* shared) noexcept
      : region_(region), region_bytes_(region_bytes), shared_(shared) {}

  // Logs the old value of `word`, then stores `value`.
  template <typename T>
  void store(std::atomic<T>& word, std::type_identity_t<T> value) noexcept {
    append(&word, sizeof(T), word.load(std::memory_order_relaxed));
    word.store(value, std::memory_order_release);
  }
  void store_head(std::atomic<std::uint64_t>& head, std::uint64_t value) noexcept {
    append(&head, kTagHead, head.load(std::memory_order_relaxed));
    head.store(value, std::memory_order_seq_cst);
  }
  void store_aux(std::atomic<std::uint64_t>& word, std::uint64_t value) noexcept {
    append(&word, kTagAux, word.load(std::memory_order_relaxed));
    word.store(value, std::memory_order_seq_cst);
  }

  // Logs many words before any of them changes: `entries` rises once, in finish().
  class Run final {
   public:
    // Requires: no other append to the log before finish(); `words` calls of add() at most.
    Run(UndoLog* log, std::size_t words) noexcept
        : log_(log), region_(log->region_), next_(log->shared_->entry + log->count_) {
      RADIX_CHECK(words <= log->room(), words);
    }
    template <typename T>
    void add(const std::atomic<T>& word) noexcept {
      add(word, word.load(std::memory_order_relaxed));
    }
    // For a caller that has just loaded it.
    template <typename T>
    void add(const std::atomic<T>& word, T old_value) noexcept {
      write(*next_++, region_, &word, sizeof(T), old_value);
    }
    void finish() noexcept {
      log_->publish(static_cast<std::uint32_t>(next_ - log_->shared_->entry));
    }

   private:
    UndoLog* log_;
    const std::byte* region_;
    UndoEntry* next_;
  };

  // Called by whoever has just taken the lock, before its first transaction.
  void begin() noexcept { count_ = entries(); }
  // Names the one store that will commit this transaction.
  void set_commit(const std::atomic<std::uint64_t>& word, std::uint64_t value) noexcept;
  // Ends the transaction: everything since the last commit is kept.
  void commit(std::uint64_t ring_head) noexcept;

  [[nodiscard]] std::uint32_t entries() const noexcept {
    return shared_->entries.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint32_t room() const noexcept {
    return static_cast<std::uint32_t>(kUndoEntries) - count_;
  }
  [[nodiscard]] std::uint64_t ring_head() const noexcept {
    return shared_->ring_head.load(std::memory_order_relaxed);
  }

  enum class Outcome { kEmpty, kCommitted, kUndone, kUnusable };
  // Returns: what resolve() is going to do.
  [[nodiscard]] Outcome outcome() const noexcept;
  // Finishes a transaction that its writer left open; also how a living writer aborts its own.
  void resolve(Outcome outcome) noexcept;
  // Ends recovery: forgets the commit word and notes the ring head.
  void reset(std::uint64_t ring_head) noexcept;

 private:
  void append(const void* word, std::uint64_t tag, std::uint64_t old_value) noexcept {
    RADIX_CHECK(count_ < kUndoEntries, count_);
    write(shared_->entry[count_], region_, word, tag, old_value);
    publish(count_ + 1);
  }
  static void write(UndoEntry& entry, const std::byte* region, const void* word, std::uint64_t tag,
                    std::uint64_t old_value) noexcept {
    const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(word) - region);
    entry.where.store(offset << 8 | tag, std::memory_order_release);
    entry.old_value.store(old_value, std::memory_order_release);
  }
  void publish(std::uint32_t count) noexcept {
    count_ = count;
    shared_->entries.store(count, std::memory_order_release);
    fault_point(FaultPoint::logged);
  }
  void restore(const UndoEntry& entry) noexcept;
  [[nodiscard]] bool usable(std::uint32_t entries) const noexcept;

  std::byte* region_;
  std::uint64_t region_bytes_;
  UndoLogShared* shared_;
  std::uint32_t count_ = 0;  // the holder's copy of `entries`: no load between two stores
};

}  // namespace radixshmem
