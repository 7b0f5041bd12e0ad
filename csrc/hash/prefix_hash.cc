// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "hash/prefix_hash.h"

#include <bit>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#define XXH_INLINE_ALL
#include "xxhash/xxhash.h"

namespace radixshmem {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are built in place");

constexpr std::size_t kParentWords = sizeof(BlockHash) / sizeof(std::uint32_t);

template <typename T>
T load(const std::byte* source) noexcept {
  T value;
  std::memcpy(&value, source, sizeof(T));
  return value;
}

// Returns: whether a token with these bits lies outside [0, 2^32). True also for the bitwise OR of
// several tokens exactly if it is true for one of them.
template <typename T>
bool out_of_range(std::make_unsigned_t<T> bits) noexcept {
  if constexpr (sizeof(T) == sizeof(std::uint64_t)) {
    return (bits >> 32) != 0;
  } else {
    return std::is_signed_v<T> && static_cast<T>(bits) < 0;
  }
}

// Copies `count` tokens to `out` as u32 and returns the bitwise OR of them. The stride is known at
// compile time where it is the item's own size, so that the loop becomes vector code; __restrict
// saves it a test per block that source and copy do not overlap.
template <typename T, bool kContiguous>
std::make_unsigned_t<T> narrow(const std::byte* __restrict source, std::ptrdiff_t stride,
                               std::size_t count, std::uint32_t* __restrict out) noexcept {
  using Bits = std::make_unsigned_t<T>;
  Bits all = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto step = kContiguous ? static_cast<std::ptrdiff_t>(sizeof(T)) : stride;
    const auto bits = load<Bits>(source + static_cast<std::ptrdiff_t>(i) * step);
    all = static_cast<Bits>(all | bits);
    out[i] = static_cast<std::uint32_t>(bits);
  }
  return all;
}

template <typename T>
Error first_bad_token(const TokenArray& tokens) {
  std::size_t i = 0;
  T value{};
  for (; i < tokens.count; ++i) {
    value = load<T>(tokens.data + static_cast<std::ptrdiff_t>(i) * tokens.stride_bytes);
    if (out_of_range<T>(static_cast<std::make_unsigned_t<T>>(value))) break;
  }
  return Error{ErrorCode::INVALID_ARGUMENT,
               "token_ids[" + std::to_string(i) + "] = " + std::to_string(value) +
                   " is outside [0, 2**32); pass token ids as the tokenizer gives them"};
}

template <typename T, bool kContiguous>
Result<> chain(const TokenArray& tokens, std::size_t tokens_per_block, BlockHash parent,
               std::span<BlockHash> out) {
  const std::ptrdiff_t stride = tokens.stride_bytes;
  const std::size_t tail = tokens.count - out.size() * tokens_per_block;
  // The tokens begin on a cache line, the parent ends the line before: vector stores that cross a
  // line could not be forwarded to the loads of the hash, which costs half as much again.
  constexpr std::size_t kLineWords = 64 / sizeof(std::uint32_t);
  const std::size_t words_size = out.empty() ? tail : tokens_per_block;
  std::vector<std::uint32_t> room(2 * kLineWords + words_size);
  const auto past_line =
      reinterpret_cast<std::uintptr_t>(room.data()) / sizeof room[0] % kLineWords;
  std::uint32_t* const words = room.data() + 2 * kLineWords - past_line;
  std::uint32_t* const message = words - kParentWords;
  const std::size_t message_bytes = (kParentWords + words_size) * sizeof *message;
  const std::byte* source = tokens.data;
  std::make_unsigned_t<T> all = 0;
  for (BlockHash& hash : out) {
    std::memcpy(message, &parent, sizeof parent);
    all |= narrow<T, kContiguous>(source, stride, tokens_per_block, words);
    parent = XXH3_64bits(message, message_bytes);
    hash = parent;
    source += static_cast<std::ptrdiff_t>(tokens_per_block) * stride;
  }
  all |= narrow<T, kContiguous>(source, stride, tail, words);
  if (out_of_range<T>(all)) return first_bad_token<T>(tokens);
  return Unit{};
}

template <typename T>
Result<> chain_of(const TokenArray& tokens, std::size_t tokens_per_block, BlockHash parent,
                  std::span<BlockHash> out) {
  if (tokens.stride_bytes == static_cast<std::ptrdiff_t>(sizeof(T))) {
    return chain<T, true>(tokens, tokens_per_block, parent, out);
  }
  return chain<T, false>(tokens, tokens_per_block, parent, out);
}

}  // namespace

std::uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

BlockHash root_hash(std::string_view name_space) {
  constexpr std::string_view kPrefix("radixshmem/1\0", 13);
  const std::uint64_t length = name_space.size();
  std::string message(kPrefix);
  message.append(reinterpret_cast<const char*>(&length), sizeof length);
  message.append(name_space);
  return XXH3_64bits(message.data(), message.size());
}

Result<> chain_hashes(const TokenArray& tokens, std::size_t tokens_per_block, BlockHash parent,
                      std::span<BlockHash> out) {
  const auto run = [&](auto unsigned_item, auto signed_item) {
    using U = decltype(unsigned_item);
    using S = decltype(signed_item);
    return tokens.is_signed ? chain_of<S>(tokens, tokens_per_block, parent, out)
                            : chain_of<U>(tokens, tokens_per_block, parent, out);
  };
  switch (tokens.item_bytes) {
    case 1:
      return run(std::uint8_t{}, std::int8_t{});
    case 2:
      return run(std::uint16_t{}, std::int16_t{});
    case 4:
      return run(std::uint32_t{}, std::int32_t{});
    case 8:
      return run(std::uint64_t{}, std::int64_t{});
    default:
      return Error{ErrorCode::INVALID_ARGUMENT, "token_ids has items of " +
                                                    std::to_string(tokens.item_bytes) +
                                                    " bytes; 1, 2, 4 and 8 are accepted"};
  }
}

}  // namespace radixshmem
