// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Chained ("prefix") hashes: hash i stands for all tokens of blocks 0..i.
//
//   h_root = XXH3_64("radixshmem/1\0" || u64le(bytes of namespace) || namespace)
//   h_i    = XXH3_64(u64le(h_(i-1)) || u32le of each token of block i)
//
// The result depends on the tokens' values alone: not on the width, signedness or stride of the
// input, nor on the machine.
// Thread safety: pure functions. The input must not change during a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/ids.h"

namespace radixshmem {

// A 1-D array of integers as its owner holds it, in the byte order of the machine.
struct TokenArray {
  const std::byte* data = nullptr;
  std::size_t count = 0;
  std::ptrdiff_t stride_bytes = 0;  // may be negative or zero
  std::size_t item_bytes = 0;       // 1, 2, 4 or 8
  bool is_signed = false;
};

// XXH3-64 of the bytes.
[[nodiscard]] std::uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept;

// The hash before block 0 of a chain in this namespace.
[[nodiscard]] BlockHash root_hash(std::string_view name_space);

// Writes the hashes of the full blocks, i.e. of the first out.size() * tokens_per_block tokens, as
// the continuation of `parent`. All of the tokens are checked, those of a partial last block too.
// Requires: tokens_per_block > 0, out.size() == tokens.count / tokens_per_block.
// Returns: INVALID_ARGUMENT with position and value of the first token outside [0, 2^32).
[[nodiscard]] Result<> chain_hashes(const TokenArray& tokens, std::size_t tokens_per_block,
                                    BlockHash parent, std::span<BlockHash> out);

}  // namespace radixshmem
