// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "hash/page_key.h"

#include <gtest/gtest.h>

#include <string>

namespace radixshmem {
namespace {

TEST(PageKeyTest, TheFirstDigitIsTheMostSignificant) {
  BlockHash hash = 0;
  ASSERT_TRUE(read_page_key("0123456789abcdef", hash));
  EXPECT_EQ(hash, 0x0123456789abcdefu);
  ASSERT_TRUE(read_page_key("FEDCBA9876543210 and what follows", hash));
  EXPECT_EQ(hash, 0xfedcba9876543210u);
  ASSERT_TRUE(read_page_key("aAbBcCdDeEfF0000", hash));
  EXPECT_EQ(hash, 0xaabbccddeeff0000u);
}

TEST(PageKeyTest, EveryByteThatIsNoDigitIsSeenAtEveryPlace) {
  const std::string digits = "0123456789abcdefABCDEF";
  for (std::size_t place = 0; place < kPageKeyDigits; ++place) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string key(kPageKeyDigits, '0');
      key[place] = static_cast<char>(byte);
      BlockHash hash = 0;
      const bool is_digit = byte != 0 && digits.find(key[place]) != std::string::npos;
      ASSERT_EQ(read_page_key(key.data(), hash), is_digit) << place << ", byte " << byte;
      if (!is_digit) continue;
      ASSERT_EQ(hash, std::stoull(key, nullptr, 16)) << key;
    }
  }
}

}  // namespace
}  // namespace radixshmem
