// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/peer_info.h"

#include "base/memory_orders.h"

namespace radixshmem {

PeerInfo peer_info_of(const Tree& tree) noexcept {
  const IndexLayout& layout = tree.layout();
  PeerInfo info;
  info.incarnation = tree.header().incarnation.load(kAcquire);
  info.peer_readable_bytes = layout.peer_readable_bytes;
  info.directory_offset = layout.area(AreaKind::kDirectory).offset;
  info.arena_offset = layout.area(AreaKind::kArena).offset;
  info.side_offset = layout.area(AreaKind::kSideBlocks).offset;
  info.table_offset = layout.area(AreaKind::kTable).offset;
  info.directory_lines = layout.directory_lines;
  info.arena_units = tree.arena().units();
  info.side_blocks = layout.side_blocks;
  info.side_bytes = layout.side_bytes;
  info.table_lines = tree.table().lines_in_use();
  info.table_lines_max = layout.table_lines_max;
  return info;
}

}  // namespace radixshmem
