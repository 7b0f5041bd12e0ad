// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Copies memory of an index that its owner may write at the same time.
// Order: each aligned 8-byte word is loaded whole, with acquire order, from low addresses to high.
#pragma once

#include <cstddef>

namespace radixshmem {

void racing_copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

}  // namespace radixshmem
