// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The bytes of a publication batch: what a holder tells the keeper of shards.
//
//   header 48 | publish record 24 x publishes | retract record 8 x retracts      little endian
//
//   header   0 magic "RXD1" u32 | 4 version u16 | 6 flags u8 | 7 generation u8
//            8 publishes u32 | 12 retracts u32 | 16 rank u16 | 18 zero u16 | 20 zero u32
//            24 incarnation u64 | 32 digest u64 | 40 sequence u64
//   publish  0 key u64 | 8 directory word 1, u64 | 16 flags u32 | 20 zero u32
//   retract  0 key u64
//
// Keys are block hashes as they are in the tree; the receiver mixes them with the digest, which
// must be its own. A key is named once in a batch. Order of effect: kDropFirst, the keys,
// kSweepAfter. Any batch may be lost, repeated or come late: what it says is checked by whoever
// reads the directory, and the generations bring back or clear away what went wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/ids.h"

namespace radixshmem {

inline constexpr std::uint32_t kBatchMagic = 0x31445852;  // "RXD1"
inline constexpr std::uint16_t kBatchVersion = 1;
inline constexpr std::size_t kBatchHeaderBytes = 48;
inline constexpr std::size_t kPublishBytes = 24;
inline constexpr std::size_t kRetractBytes = 8;
inline constexpr std::uint32_t kMaxBatchKeys = 16384;  // of both kinds together
inline constexpr std::size_t kMaxBatchBytes = kBatchHeaderBytes + kMaxBatchKeys * kPublishBytes;

enum BatchFlags : std::uint8_t {
  kDropFirst = 1,   // forget all entries of this rank: its tree was reset, or it leaves
  kSweepAfter = 2,  // then forget those of this rank that are not of this generation
};

// flags of a publish record: aux bits to set, and to clear first, of an entry that is there already
// in this generation. An entry that is new starts with none.
inline constexpr std::uint32_t kAuxMask = 3;
inline constexpr std::uint32_t kAuxClearShift = 2;

struct BatchHeader {
  std::uint8_t flags = 0;
  std::uint8_t generation = 0;  // rises when the sender publishes everything anew
  std::uint16_t rank = 0;       // of the sender
  std::uint32_t publishes = 0;
  std::uint32_t retracts = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t digest = 0;
  std::uint64_t sequence = 0;  // rises with every batch of the sender
};

struct PublishRecord {
  BlockHash key = 0;
  std::uint64_t word1 = 0;
  std::uint32_t flags = 0;
};

// A batch that was received. Valid as long as its bytes.
class BatchView final {
 public:
  // Checks everything but the meaning of keys. Returns: INVALID_ARGUMENT that says what is wrong.
  [[nodiscard]] static Result<BatchView> parse(std::span<const std::byte> bytes);

  [[nodiscard]] const BatchHeader& header() const noexcept { return header_; }
  // Requires: i < header().publishes, or retracts.
  [[nodiscard]] PublishRecord publish(std::uint32_t i) const noexcept;
  [[nodiscard]] BlockHash retract(std::uint32_t i) const noexcept;

 private:
  BatchHeader header_;
  const std::byte* publishes_ = nullptr;
  const std::byte* retracts_ = nullptr;
};

// Returns: the bytes of a batch; the counts of `header` are those of the spans.
[[nodiscard]] std::vector<std::byte> pack_batch(BatchHeader header,
                                                std::span<const PublishRecord> publishes,
                                                std::span<const BlockHash> retracts);

}  // namespace radixshmem
