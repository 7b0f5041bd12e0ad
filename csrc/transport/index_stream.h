// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The bytes of an index stream: reads of a peer's memory over a connected, authenticated stream.
//
//   request  RequestHeader | READ: count x ReadRequest | VERBS: a QueuePairInfo (verbs_info.h)
//   reply    ReplyHeader   | READ: the bytes of all reads, in order | VERBS: a QueuePairInfo
//
// All integers are little endian. A reply whose status is not kNone has no body, and the responder
// closes the stream after it. Requests are answered in order; a reader has one under way.
// Both sides treat what they receive as hostile: each field is checked before it is used.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "transport/peer_reader.h"

namespace radixshmem {

inline constexpr std::uint32_t kRequestMagic = 0x31525852;  // "RXR1"
inline constexpr std::uint32_t kReplyMagic = 0x31415852;    // "RXA1"

enum class StreamKind : std::uint16_t { kRead = 1, kVerbs = 2 };

enum class Refusal : std::uint16_t {
  kNone = 0,
  kMalformed = 1,   // not a request of this version, or one beyond the limits
  kOutOfRange = 2,  // a read outside of its region
  kNotServed = 3,   // VERBS, where there is no device
};

struct RequestHeader {
  std::uint32_t magic;
  std::uint16_t kind;
  std::uint16_t count;  // reads; 0 for VERBS
  std::uint32_t id;     // comes back in the reply
  std::uint32_t body_bytes;
};

struct ReadRequest {
  std::uint64_t offset;
  std::uint32_t length;
  std::uint32_t region;  // PeerRegion
};

struct ReplyHeader {
  std::uint32_t magic;
  std::uint16_t kind;
  std::uint16_t status;  // Refusal
  std::uint32_t id;
  std::uint32_t unused;
  std::uint64_t body_bytes;
};
static_assert(sizeof(RequestHeader) == 16 && sizeof(ReadRequest) == 16 &&
              sizeof(ReplyHeader) == 24);
static_assert(std::is_trivially_copyable_v<RequestHeader> &&
              std::is_trivially_copyable_v<ReadRequest> &&
              std::is_trivially_copyable_v<ReplyHeader>);
static_assert(std::endian::native == std::endian::little);

inline constexpr std::size_t kMaxVerbsBytes = 256;

// The memory that a peer may read: kIndex, then kSlots, either of which may be empty.
struct PeerRanges {
  std::span<const std::byte> index;
  std::span<const std::byte> slots;

  [[nodiscard]] std::span<const std::byte> of(PeerRegion region) const noexcept {
    return region == PeerRegion::kIndex ? index : slots;
  }
};

[[nodiscard]] Refusal check_header(const RequestHeader& header) noexcept;
// Checks all reads of one request, each alone and their sum.
[[nodiscard]] Refusal check_reads(std::span<const ReadRequest> reads,
                                  const PeerRanges& ranges) noexcept;

}  // namespace radixshmem
