// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The packed words of the directory, and where a key lies.
//
//   entry  word0  tag:30 | aux:2 | rank:16 | incarnation:16      0 = empty
//          word1  segment:30 | class:2 | parent:30 | class:2     segments of that rank
//   line   4 entries, 64 bytes, aligned; a key has two lines of one shard holder
//
// aux bit 0: a SWA window ends in the granule of the key, bit 1: a MAMBA checkpoint does.
// Written word0 = 0, word1, word0, so that a reader of both words in one go mostly sees an entry
// whole; one that it sees torn names segments whose hashes differ, and is a miss.
// A key is the prefix hash of a block at a position that is a multiple of g, mixed with the digest
// of the cluster's geometry: peers of another digest have other keys.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/ids.h"
#include "layout/index_plan.h"
#include "layout/words.h"

namespace radixshmem {

inline constexpr std::uint32_t kShards = 65536;
inline constexpr std::uint32_t kEntriesPerLine = 4;
inline constexpr std::uint32_t kMaxPublishedSegment = (1u << 30) - 1;

// A segment of a peer: where it lies and how much to read.
struct SegmentRef {
  SegmentId id = 0;  // 0 = none
  std::uint32_t size_class = 0;
};

struct DirectoryEntry {
  std::uint32_t tag = 0;  // 30 bits, never 0
  std::uint32_t aux = 0;  // 2 bits
  std::uint16_t rank = 0;
  std::uint16_t incarnation = 0;  // the low bits of the index incarnation
  SegmentRef segment;             // holds the block at the key's position
  SegmentRef parent;              // its parent

  [[nodiscard]] static constexpr DirectoryEntry unpack(std::uint64_t word0,
                                                       std::uint64_t word1) noexcept {
    DirectoryEntry e;
    e.tag = static_cast<std::uint32_t>(word0 >> 34);
    e.aux = static_cast<std::uint32_t>(word0 >> 32) & 3;
    e.rank = static_cast<std::uint16_t>(word0 >> 16);
    e.incarnation = static_cast<std::uint16_t>(word0);
    e.segment = {static_cast<SegmentId>(word1 >> 34), static_cast<std::uint32_t>(word1 >> 32) & 3};
    e.parent = {static_cast<SegmentId>(word1 >> 2) & kMaxPublishedSegment,
                static_cast<std::uint32_t>(word1) & 3};
    return e;
  }
  [[nodiscard]] constexpr std::uint64_t word0() const noexcept {
    return std::uint64_t{tag} << 34 | std::uint64_t{aux & 3} << 32 | std::uint64_t{rank} << 16 |
           incarnation;
  }
  [[nodiscard]] constexpr std::uint64_t word1() const noexcept {
    return std::uint64_t{segment.id} << 34 | std::uint64_t{segment.size_class & 3} << 32 |
           std::uint64_t{parent.id} << 2 | (parent.size_class & 3);
  }
};

struct alignas(kCacheLine) DirectoryLine {
  std::array<std::uint64_t, 2 * kEntriesPerLine> words;  // word0, word1 of each entry
};
static_assert(sizeof(DirectoryLine) == kCacheLine);

struct KeyPlace {
  std::uint32_t tag = 0;
  std::uint16_t shard = 0;
  std::array<std::uint64_t, 2> mix{};  // of line()

  // Returns: line 0 or 1 in a directory of `lines` lines (any number above 0).
  [[nodiscard]] constexpr std::uint32_t line(std::uint32_t which,
                                             std::uint32_t lines) const noexcept {
    return static_cast<std::uint32_t>(((mix[which] >> 32) * lines) >> 32);
  }
};

// Returns: what stands for a key in a directory of this digest.
[[nodiscard]] constexpr std::uint64_t key_id(BlockHash key, std::uint64_t digest) noexcept {
  return mix_hash(key ^ digest);
}

[[nodiscard]] constexpr KeyPlace place_of_id(std::uint64_t id) noexcept {
  const std::uint64_t b = mix_hash(id + 0x9e3779b97f4a7c15u);
  KeyPlace place;
  place.tag = static_cast<std::uint32_t>(id & kMaxPublishedSegment);
  if (place.tag == 0) place.tag = 1;
  place.shard = static_cast<std::uint16_t>(id >> 48);
  place.mix = {b, mix_hash(b)};
  return place;
}

[[nodiscard]] constexpr KeyPlace place_of(BlockHash key, std::uint64_t digest) noexcept {
  return place_of_id(key_id(key, digest));
}

}  // namespace radixshmem
