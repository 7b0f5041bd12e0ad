// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "hash/prefix_hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace radixshmem {
namespace {

template <typename T>
TokenArray array_of(const std::vector<T>& tokens, std::ptrdiff_t step = 1) {
  const auto stride = static_cast<std::ptrdiff_t>(sizeof(T)) * step;
  const std::size_t magnitude = static_cast<std::size_t>(step < 0 ? -step : step);
  const std::size_t count = (tokens.size() + magnitude - 1) / magnitude;
  const T* first = step < 0 && !tokens.empty() ? tokens.data() + tokens.size() - 1 : tokens.data();
  return {reinterpret_cast<const std::byte*>(first), count, stride, sizeof(T), std::is_signed_v<T>};
}

std::vector<BlockHash> hashes_of(const TokenArray& tokens, std::size_t tokens_per_block,
                                 BlockHash parent = root_hash("")) {
  std::vector<BlockHash> out(tokens.count / tokens_per_block);
  const Result<> result = chain_hashes(tokens, tokens_per_block, parent, out);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return out;
}

std::string error_of(const TokenArray& tokens, std::size_t tokens_per_block) {
  std::vector<BlockHash> out(tokens.count / tokens_per_block);
  const Result<> result = chain_hashes(tokens, tokens_per_block, 1, out);
  if (result.ok()) return "none";
  EXPECT_EQ(result.error().code, ErrorCode::INVALID_ARGUMENT);
  return result.error().message;
}

std::vector<std::uint32_t> spread_tokens(std::size_t count) {
  std::vector<std::uint32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<std::uint32_t>(i * 2654435761U + 12345);
  }
  return tokens;
}

// The definition, step by step, without any of the tricks of the implementation.
std::vector<BlockHash> reference(const std::vector<std::uint32_t>& tokens,
                                 std::size_t tokens_per_block, BlockHash parent) {
  std::vector<BlockHash> out;
  for (std::size_t at = 0; at + tokens_per_block <= tokens.size(); at += tokens_per_block) {
    std::vector<std::byte> message(8 + 4 * tokens_per_block);
    std::memcpy(message.data(), &parent, 8);
    std::memcpy(message.data() + 8, &tokens[at], 4 * tokens_per_block);
    parent = hash_bytes(message);
    out.push_back(parent);
  }
  return out;
}

// Made by an independent implementation: the PyPI package xxhash (tests/unit/test_hashing.py has
// the same numbers and the program).
TEST(PrefixHash, equals_the_golden_vectors) {
  using Hashes = std::vector<BlockHash>;
  EXPECT_EQ(root_hash(""), 0xd1d1563c008254dbU);
  EXPECT_EQ(root_hash("lora-7"), 0x6a4fe0cb70eccd6cU);
  EXPECT_EQ(root_hash(std::string_view("a\0b", 3)), 0x862354cff4d6202eU);
  EXPECT_EQ(hashes_of(array_of(spread_tokens(3)), 1),
            (Hashes{0x23a86b84714e7d43, 0x82ef3266591f80c7, 0x3795688535b9c6eb}));
  EXPECT_EQ(hashes_of(array_of(spread_tokens(8)), 4),
            (Hashes{0x70ba8a748a997c9e, 0xf8e7beea02f48b7f}));
  EXPECT_EQ(hashes_of(array_of(spread_tokens(48)), 16),
            (Hashes{0x192a305d4d38374c, 0xb5781127d2c6a015, 0xa47d619e95ab0007}));
  EXPECT_EQ(hashes_of(array_of(spread_tokens(32)), 16, root_hash("lora-7")),
            (Hashes{0x14a58aa300a7c2d7, 0xffb10f8fcbc826cf}));
  EXPECT_EQ(hashes_of(array_of(spread_tokens(128)), 64),
            (Hashes{0x13ed111a139efd67, 0x154cad3213570e85}));
  EXPECT_EQ(hashes_of(array_of(spread_tokens(512)), 256, root_hash(std::string_view("a\0b", 3))),
            (Hashes{0xae4f96915d43f7a5, 0xe9738b2cf30b3247}));
}

TEST(PrefixHash, hash_bytes_is_xxh3_64) {
  EXPECT_EQ(hash_bytes({}), 0x2d06800538d394c2U);
  const std::string text = "radixshmem";
  EXPECT_EQ(hash_bytes(std::as_bytes(std::span(text))), 0x2c7a2ec218da6422U);
}

TEST(PrefixHash, follows_the_definition_for_many_block_sizes) {
  const std::vector<std::uint32_t> tokens = spread_tokens(5000);
  for (const std::size_t block : {1, 2, 3, 7, 15, 16, 17, 31, 64, 100, 255, 256, 1024, 4999}) {
    EXPECT_EQ(hashes_of(array_of(tokens), block, 99), reference(tokens, block, 99)) << block;
  }
}

TEST(PrefixHash, in_pieces_gives_the_same_as_at_once) {
  const std::vector<std::uint32_t> tokens = spread_tokens(16 * 50);
  const std::vector<BlockHash> whole = hashes_of(array_of(tokens), 16);
  BlockHash parent = root_hash("");
  std::vector<BlockHash> pieces;
  for (std::size_t at = 0, blocks = 1; at < tokens.size(); ++blocks) {
    const std::size_t end = std::min(tokens.size(), at + 16 * blocks);
    const std::vector<std::uint32_t> piece(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                                           tokens.begin() + static_cast<std::ptrdiff_t>(end));
    for (const BlockHash hash : hashes_of(array_of(piece), 16, parent)) pieces.push_back(hash);
    parent = pieces.back();
    at = end;
  }
  EXPECT_EQ(pieces, whole);
}

template <typename T>
class PrefixHashOf : public testing::Test {};
using IntegerTypes = testing::Types<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t,
                                    std::int32_t, std::uint32_t, std::int64_t, std::uint64_t>;
TYPED_TEST_SUITE(PrefixHashOf, IntegerTypes);

TYPED_TEST(PrefixHashOf, depends_on_values_alone) {
  std::vector<TypeParam> tokens;
  std::vector<std::uint32_t> canonical;
  for (std::uint32_t i = 0; i < 333; ++i) {
    canonical.push_back(i * 37 % 128);
    tokens.push_back(static_cast<TypeParam>(canonical.back()));
  }
  EXPECT_EQ(hashes_of(array_of(tokens), 16), reference(canonical, 16, root_hash("")));
}

TYPED_TEST(PrefixHashOf, takes_any_stride) {
  std::vector<TypeParam> tokens;
  for (std::uint32_t i = 0; i < 300; ++i) tokens.push_back(static_cast<TypeParam>(i * 31 % 128));
  for (const std::ptrdiff_t step : {2, 3, -1, -2}) {
    const TokenArray strided = array_of(tokens, step);
    std::vector<std::uint32_t> canonical;
    for (std::size_t i = 0; i < strided.count; ++i) {
      const std::ptrdiff_t at = step * static_cast<std::ptrdiff_t>(i) +
                                (step < 0 ? static_cast<std::ptrdiff_t>(tokens.size()) - 1 : 0);
      canonical.push_back(static_cast<std::uint32_t>(tokens[static_cast<std::size_t>(at)]));
    }
    EXPECT_EQ(hashes_of(strided, 16), reference(canonical, 16, root_hash(""))) << step;
  }
}

TYPED_TEST(PrefixHashOf, reads_items_that_are_not_aligned) {
  std::vector<std::byte> bytes(1 + 64 * sizeof(TypeParam));
  std::vector<std::uint32_t> canonical;
  for (std::size_t i = 0; i < 64; ++i) {
    const auto token = static_cast<TypeParam>(i);
    std::memcpy(bytes.data() + 1 + i * sizeof(TypeParam), &token, sizeof token);
    canonical.push_back(static_cast<std::uint32_t>(i));
  }
  const TokenArray tokens{bytes.data() + 1, 64, sizeof(TypeParam), sizeof(TypeParam),
                          std::is_signed_v<TypeParam>};
  EXPECT_EQ(hashes_of(tokens, 16), reference(canonical, 16, root_hash("")));
}

TYPED_TEST(PrefixHashOf, refuses_a_negative_token_wherever_it_is) {
  if constexpr (std::is_signed_v<TypeParam>) {
    for (const std::size_t at : {0, 15, 16, 31, 47, 48, 49}) {
      std::vector<TypeParam> tokens(50, 7);
      tokens[at] = -3;
      const std::string start = "token_ids[" + std::to_string(at) + "] = -3 is outside";
      EXPECT_EQ(error_of(array_of(tokens), 16).substr(0, start.size()), start);
    }
  }
}

TEST(PrefixHash, takes_the_whole_range_and_nothing_above) {
  const std::int64_t top = std::numeric_limits<std::uint32_t>::max();
  EXPECT_EQ(hashes_of(array_of(std::vector<std::int64_t>{top, 0}), 2, 5),
            hashes_of(array_of(std::vector<std::uint32_t>{0xffffffff, 0}), 2, 5));
  EXPECT_NE(error_of(array_of(std::vector<std::int64_t>{1, top + 1}), 2)
                .find("token_ids[1] = 4294967296 is outside [0, 2**32)"),
            std::string::npos);
  EXPECT_NE(error_of(array_of(std::vector<std::uint64_t>{1, 2, ~std::uint64_t{0}}), 2)
                .find("token_ids[2] = 18446744073709551615"),
            std::string::npos);
}

TEST(PrefixHash, names_the_first_of_several_bad_tokens) {
  std::vector<std::int64_t> tokens(64, 1);
  tokens[20] = -5;
  tokens[40] = -6;
  EXPECT_NE(error_of(array_of(tokens), 16).find("token_ids[20] = -5"), std::string::npos);
}

TEST(PrefixHash, ignores_a_partial_last_block_but_checks_it) {
  const std::vector<std::uint32_t> tokens = spread_tokens(47);
  EXPECT_EQ(hashes_of(array_of(tokens), 16), hashes_of(array_of(spread_tokens(32)), 16));
  EXPECT_TRUE(hashes_of(array_of(spread_tokens(15)), 16).empty());
  EXPECT_TRUE(hashes_of(TokenArray{nullptr, 0, 4, 4, false}, 16).empty());
  EXPECT_NE(error_of(array_of(std::vector<std::int32_t>{1, -1}), 16), "none");
}

TEST(PrefixHash, refuses_items_of_unknown_width) {
  const std::vector<std::byte> bytes(48);
  EXPECT_NE(error_of(TokenArray{bytes.data(), 4, 12, 12, false}, 2).find("12 bytes"),
            std::string::npos);
}

}  // namespace
}  // namespace radixshmem
