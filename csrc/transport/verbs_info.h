// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What both sides of a verbs connection tell each other over the index stream. Little endian.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "transport/index_stream.h"

namespace radixshmem {

// Memory that may be read. The side that reads tells none.
struct VerbsRange {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint32_t key;
  std::uint32_t unused;
};

struct QueuePairInfo {
  std::uint32_t version;
  std::uint32_t number;         // of the queue pair
  std::uint32_t packet_number;  // the first one sent, 24 bits
  std::uint16_t lid;
  std::uint8_t mtu;        // 1 to 5: 256 to 4096 bytes
  std::uint8_t max_reads;  // outstanding at once
  std::array<std::uint8_t, 16> gid;
  std::uint8_t global;      // whether it is addressed by its GID
  std::uint8_t link_layer;  // 1 InfiniBand, 2 Ethernet; equal on both sides
  std::uint8_t rail;        // which of the responder's devices, modulo their number
  std::array<std::uint8_t, 5> unused;
  std::array<VerbsRange, 2> ranges;  // by PeerRegion
};
static_assert(sizeof(QueuePairInfo) == 88 && std::is_trivially_copyable_v<QueuePairInfo>);
static_assert(sizeof(QueuePairInfo) <= kMaxVerbsBytes);

inline constexpr std::uint32_t kVerbsVersion = 1;

// Reads what a peer sent. Returns: false for what is no QueuePairInfo of this version.
[[nodiscard]] inline bool parse_verbs_info(std::span<const std::byte> bytes, QueuePairInfo& info) {
  if (bytes.size() != sizeof info) return false;
  std::memcpy(&info, bytes.data(), sizeof info);
  return info.version == kVerbsVersion && info.number < 1u << 24 && info.packet_number < 1u << 24 &&
         info.mtu >= 1 && info.mtu <= 5 && info.max_reads != 0;
}

}  // namespace radixshmem
