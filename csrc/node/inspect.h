// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What operators ask: figures, segments, pins, clients. Snapshots; only dump() takes the lock.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "node/session.h"

namespace radixshmem {

// Name and value; the names are the keys of docs/api.md, "Figures of status".
using Figure = std::pair<const char*, std::uint64_t>;
[[nodiscard]] Result<std::vector<Figure>> figures(const Session& session);

struct SegmentInfo {
  SegmentId id = 0;
  std::uint32_t size_class = 0;
  SegmentState state{};
  Position start = 0;
  std::uint32_t count = 0;
  SegmentId parent = 0;
  std::uint32_t children = 0;
  std::uint32_t touch = 0;
  BlockHash first_hash = 0;
  std::vector<std::int32_t> slots;
};
// At most `most` segments in address order.
[[nodiscard]] Result<std::vector<SegmentInfo>> dump(Session& session, std::size_t most);

struct PinInfo {
  ClientId client = 0;
  SegmentId segment = 0;
  std::uint32_t depth = 0;
  std::uint32_t mask = 0;
  Position start = 0;  // of the segment
};
[[nodiscard]] Result<std::vector<PinInfo>> list_pins(const Session& session);

struct ClientInfo {
  ClientId id = 0;
  ClientState state{};
  std::uint32_t generation = 0;
  std::uint32_t group = 0;
  std::uint32_t pid = 0;
  bool alive = false;
  bool exited = false;  // nobody writes its slots any more
  std::uint32_t pins = 0;
  std::uint32_t slots = 0;
  std::vector<Figure> counters;
};
// All entries that are not free.
[[nodiscard]] Result<std::vector<ClientInfo>> list_clients(const Session& session);

}  // namespace radixshmem
