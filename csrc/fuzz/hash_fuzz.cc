// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// chain_hashes on arrays of any shape: it must agree with a plain loop, or refuse exactly when a
// token is out of range. Input: item width, signedness, stride, block size, then the bytes.
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "base/check.h"
#include "hash/prefix_hash.h"

namespace radixshmem {
namespace {

constexpr BlockHash kParent = 42;

// Returns: the token's value, nothing if it lies outside [0, 2^32).
std::optional<std::uint32_t> token_at(const TokenArray& tokens, std::size_t i) {
  std::uint64_t value = 0;
  std::memcpy(&value, tokens.data + static_cast<std::ptrdiff_t>(i) * tokens.stride_bytes,
              tokens.item_bytes);
  const unsigned bits = static_cast<unsigned>(tokens.item_bytes * 8);
  const bool negative = tokens.is_signed && ((value >> (bits - 1)) & 1) != 0;
  if (negative || (value >> 32) != 0) return std::nullopt;
  return static_cast<std::uint32_t>(value);
}

std::optional<std::vector<BlockHash>> reference(const TokenArray& tokens, std::size_t block) {
  std::vector<std::uint32_t> values;
  for (std::size_t i = 0; i < tokens.count; ++i) {
    const auto value = token_at(tokens, i);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  std::vector<BlockHash> hashes;
  BlockHash parent = kParent;
  for (std::size_t at = 0; at + block <= values.size(); at += block) {
    std::vector<std::byte> message(8 + 4 * block);
    std::memcpy(message.data(), &parent, 8);
    std::memcpy(message.data() + 8, &values[at], 4 * block);
    parent = hash_bytes(message);
    hashes.push_back(parent);
  }
  return hashes;
}

}  // namespace
}  // namespace radixshmem

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace radixshmem;
  constexpr std::size_t kHeader = 3;
  if (size < kHeader) return 0;
  const std::size_t item = std::size_t{1} << (data[0] & 3);
  const std::size_t stride = item + (data[0] & 8 ? data[1] % 9 : 0);
  const std::size_t block = 1 + data[2] % 40;
  std::vector<std::byte> bytes(size - kHeader);
  if (!bytes.empty()) std::memcpy(bytes.data(), data + kHeader, bytes.size());
  if (data[0] & 16) {  // clear high bytes, so that wide tokens are often in range
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (i % stride >= 4) bytes[i] = std::byte{0};
    }
  }
  TokenArray tokens{bytes.data(), bytes.size() < item ? 0 : (bytes.size() - item) / stride + 1,
                    static_cast<std::ptrdiff_t>(stride), item, (data[0] & 4) != 0};
  if ((data[0] & 32) != 0 && tokens.count > 0) {  // backwards
    tokens.data += static_cast<std::ptrdiff_t>((tokens.count - 1) * stride);
    tokens.stride_bytes = -tokens.stride_bytes;
  }
  std::vector<BlockHash> out(tokens.count / block);
  const Result<> result = chain_hashes(tokens, block, kParent, out);
  const auto expected = reference(tokens, block);
  RADIX_CHECK(result.ok() == expected.has_value(), tokens.count);
  if (expected) RADIX_CHECK(out == *expected, tokens.count);
  return 0;
}
