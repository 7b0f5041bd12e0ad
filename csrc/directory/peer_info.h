// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What a node's peers must know of its region to read it.
#pragma once

#include "directory/peer_table.h"
#include "tree/tree.h"

namespace radixshmem {

// Returns: where the areas of the tree's region lie, how much of them is in use, and in which life
// it is. Rank and state are left out.
[[nodiscard]] PeerInfo peer_info_of(const Tree& tree) noexcept;

}  // namespace radixshmem
