// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Block hashes out of the page keys of an engine. Such a key is a digest of the whole prefix, in
// hex: it is chained as it is, so its first digits are as good a block hash as any.
// Thread safety: pure functions.
#pragma once

#include <cstddef>

#include "base/ids.h"

namespace radixshmem {

inline constexpr std::size_t kPageKeyDigits = 16;

// Reads the number that the first kPageKeyDigits characters are, most significant digit first, in
// upper or lower case.
// Returns: false when one of them is no hex digit; then `out` means nothing.
[[nodiscard]] bool read_page_key(const char* digits, BlockHash& out) noexcept;

}  // namespace radixshmem
