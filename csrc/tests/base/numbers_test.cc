// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "base/numbers.h"

#include <gtest/gtest.h>

namespace radixshmem {
namespace {

TEST(NumbersTest, RoundsUpToMultiples) {
  EXPECT_EQ(round_up(0, 4096), 0u);
  EXPECT_EQ(round_up(1, 4096), 4096u);
  EXPECT_EQ(round_up(4096, 4096), 4096u);
  EXPECT_EQ(round_up(7, 3), 9u);
}

TEST(NumbersTest, DigestIsFnv1aOfTheLittleEndianBytes) {
  // FNV-1a of "foobar\0\0", reckoned byte by byte.
  std::uint64_t expected = kDigestStart;
  for (const char byte : {'f', 'o', 'o', 'b', 'a', 'r', '\0', '\0'}) {
    expected = (expected ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  EXPECT_EQ(extend_digest(kDigestStart, {0x7261626f6f66}), expected);
}

TEST(NumbersTest, DigestDependsOnOrderAndPiecesDoNotMatter) {
  EXPECT_NE(extend_digest(kDigestStart, {1, 2}), extend_digest(kDigestStart, {2, 1}));
  EXPECT_EQ(extend_digest(extend_digest(kDigestStart, {1}), {2}),
            extend_digest(kDigestStart, {1, 2}));
}

}  // namespace
}  // namespace radixshmem
