// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The packed words of the index: how several fields share one atomic u64.
//
//   segment head   ver:40 | state:4 | count:10 | hi:10
//       entries [0, count) are visible; [0, hi) still own their slots. hi != count only inside an
//       eviction. The version rises with every change that makes an earlier copy of the slots
//       wrong (a truncation, an undo, a change of owner), never with an append.
//   aux word       ver:32 | leaving:1 | slot + 1:31     low half 0 = no slot at this position
//       A leaving slot is invisible but still owned: only inside an eviction, until the pins are
//       read. The version rises when the slot goes or comes back.
//   table entry    tag:32 | segment:32          0 = empty
//   pin            segment:32 | depth:16 | mask:8 | 0:8     0 = empty
//
// A 40-bit version lasts 12 days at one truncation of the same segment per microsecond.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace radixshmem {

enum class SegmentState : std::uint8_t { kFree = 0, kLive = 1, kZombie = 2 };

struct SegmentHead {
  std::uint64_t version = 0;
  SegmentState state = SegmentState::kFree;
  std::uint32_t count = 0;
  std::uint32_t owned = 0;  // "hi"

  static constexpr std::uint64_t kVersionMask = (std::uint64_t{1} << 40) - 1;

  [[nodiscard]] static constexpr SegmentHead unpack(std::uint64_t word) noexcept {
    return {word >> 24, static_cast<SegmentState>((word >> 20) & 15),
            static_cast<std::uint32_t>((word >> 10) & 1023),
            static_cast<std::uint32_t>(word & 1023)};
  }
  [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
    return (version & kVersionMask) << 24 | static_cast<std::uint64_t>(state) << 20 |
           static_cast<std::uint64_t>(count) << 10 | owned;
  }
  [[nodiscard]] constexpr bool live() const noexcept { return state == SegmentState::kLive; }
};

// Returns: the head for the next version with these fields.
[[nodiscard]] constexpr std::uint64_t next_head(std::uint64_t word, SegmentState state,
                                                std::uint32_t count, std::uint32_t owned) noexcept {
  return SegmentHead{SegmentHead::unpack(word).version + 1, state, count, owned}.pack();
}

[[nodiscard]] constexpr std::uint64_t head_version(std::uint64_t word) noexcept {
  return word >> 24;
}

struct AuxWord {
  static constexpr std::uint64_t kLeaving = std::uint64_t{1} << 31;
  static constexpr std::uint64_t kSlotMask = kLeaving - 1;

  // Returns: the word that names no slot and outdates every copy of `word`.
  [[nodiscard]] static constexpr std::uint64_t absent_after(std::uint64_t word) noexcept {
    return ((word >> 32) + 1) << 32;
  }
  // Returns: `slot` under the version of `word`.
  [[nodiscard]] static constexpr std::uint64_t with_slot(std::uint64_t word, SlotId slot) noexcept {
    return (word >> 32) << 32 | (std::uint64_t{slot} + 1);
  }
  // Requires: owns(word). Returns: the word that hides its slot from readers.
  [[nodiscard]] static constexpr std::uint64_t leaving(std::uint64_t word) noexcept {
    return word | kLeaving;
  }
  // Returns: the word that shows the slot of a leaving one again and outdates every copy of it.
  [[nodiscard]] static constexpr std::uint64_t back_after(std::uint64_t word) noexcept {
    return absent_after(word) | (word & kSlotMask);
  }
  // Returns: whether the word owns a slot, visible or leaving.
  [[nodiscard]] static constexpr bool owns(std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(word) != 0;
  }
  // Returns: whether the word shows a slot to readers.
  [[nodiscard]] static constexpr bool present(std::uint64_t word) noexcept {
    return owns(word) && (word & kLeaving) == 0;
  }
  // Requires: owns(word).
  [[nodiscard]] static constexpr SlotId slot(std::uint64_t word) noexcept {
    return static_cast<SlotId>(word & kSlotMask) - 1;
  }
};

struct PinWord {
  SegmentId segment = 0;
  std::uint32_t depth = 0;  // entries [0, depth) are protected
  std::uint32_t mask = 0;   // component masks protected in them

  [[nodiscard]] static constexpr PinWord unpack(std::uint64_t word) noexcept {
    return {static_cast<SegmentId>(word >> 32), static_cast<std::uint32_t>((word >> 16) & 0xffff),
            static_cast<std::uint32_t>((word >> 8) & 0xff)};
  }
  [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
    return std::uint64_t{segment} << 32 | std::uint64_t{depth & 0xffff} << 16 |
           std::uint64_t{mask & 0xff} << 8;
  }
};

// Owner word of a slot. Below kOwnedBase the slot is free and the value is the next free slot + 1
// (0 = end of the list).
inline constexpr std::uint32_t kOwnedBase = 0x40000000;
inline constexpr std::uint32_t kMaxPoolSlots = kOwnedBase - 1;  // of one pool
inline constexpr std::uint32_t kOwnerServer = 0xfffffffd;       // staging of pulls and leases
inline constexpr std::uint32_t kOwnerQuarantine = 0xfffffffe;   // a dead process may still write it
inline constexpr std::uint32_t kOwnerTree = 0xffffffff;
static_assert(kMaxPoolSlots <= AuxWord::kSlotMask);

[[nodiscard]] constexpr std::uint32_t client_owner(ClientId client) noexcept {
  return kOwnedBase | (client + 1);
}
[[nodiscard]] constexpr bool owner_is_free(std::uint32_t owner) noexcept {
  return owner < kOwnedBase;
}
[[nodiscard]] constexpr bool owner_is_client(std::uint32_t owner) noexcept {
  return owner >= kOwnedBase && owner < kOwnerServer;
}
// Requires: owner_is_client(owner).
[[nodiscard]] constexpr ClientId owner_client(std::uint32_t owner) noexcept {
  return (owner & ~kOwnedBase) - 1;
}

// Spreads a block hash over table lines and tags (the finalizer of splitmix64, Steele et al. 2014).
[[nodiscard]] constexpr std::uint64_t mix_hash(std::uint64_t x) noexcept {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace radixshmem
