// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/index_stream.h"

namespace radixshmem {

Refusal check_header(const RequestHeader& header) noexcept {
  if (header.magic != kRequestMagic) return Refusal::kMalformed;
  switch (header.kind) {
    case static_cast<std::uint16_t>(StreamKind::kRead): {
      const bool good = header.count != 0 && header.count <= kMaxReads &&
                        header.body_bytes == header.count * sizeof(ReadRequest);
      return good ? Refusal::kNone : Refusal::kMalformed;
    }
    case static_cast<std::uint16_t>(StreamKind::kVerbs): {
      const bool good = header.count == 0 && header.body_bytes <= kMaxVerbsBytes;
      return good ? Refusal::kNone : Refusal::kMalformed;
    }
    default:
      return Refusal::kMalformed;
  }
}

Refusal check_reads(std::span<const ReadRequest> reads, const PeerRanges& ranges) noexcept {
  std::uint64_t sum = 0;
  for (const ReadRequest& read : reads) {
    if (read.length == 0 || read.length > kMaxReadBytes) return Refusal::kMalformed;
    if (read.region > static_cast<std::uint32_t>(PeerRegion::kSlots)) return Refusal::kMalformed;
    const std::uint64_t size = ranges.of(static_cast<PeerRegion>(read.region)).size();
    if (read.offset > size || read.length > size - read.offset) return Refusal::kOutOfRange;
    sum += read.length;
  }
  return sum <= kMaxReadBatchBytes ? Refusal::kNone : Refusal::kMalformed;
}

}  // namespace radixshmem
