// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "base/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

namespace radixshmem {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return Error{ErrorCode::INVALID_ARGUMENT, "odd: " + std::to_string(value)};
  return value / 2;
}

TEST(Result, carries_a_value_or_an_error) {
  const Result<int> good = half(8);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good.value(), 4);
  const Result<int> bad = half(7);
  ASSERT_FALSE(static_cast<bool>(bad));
  EXPECT_EQ(bad.error().code, ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(bad.error().message, "odd: 7");
}

TEST(Result, success_alone_needs_no_value) {
  const Result<> done = Unit{};
  EXPECT_TRUE(done.ok());
}

TEST(Result, moves_out_a_value_that_cannot_be_copied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  const std::unique_ptr<int> moved = std::move(result).value();
  EXPECT_EQ(*moved, 5);
}

TEST(ErrorCodes, have_distinct_values_and_their_own_names) {
  std::set<int> values;
  std::size_t count = 0;
#define RADIX_SEE(name, value, exception, meaning)  \
  values.insert(static_cast<int>(ErrorCode::name)); \
  EXPECT_STREQ(error_name(ErrorCode::name), #name); \
  EXPECT_STRNE(meaning, "");                        \
  ++count;
  RADIX_ERROR_CODES(RADIX_SEE)
#undef RADIX_SEE
  EXPECT_EQ(values.size(), count);
}

TEST(ErrorCodes, keep_the_public_values) {
  EXPECT_EQ(static_cast<int>(ErrorCode::OK), 0);
  EXPECT_EQ(static_cast<int>(ErrorCode::BAD_REQUEST), 1);
  EXPECT_EQ(static_cast<int>(ErrorCode::MEMPOOL_FULL), 2);
  EXPECT_EQ(static_cast<int>(ErrorCode::BUSY), 3);
  EXPECT_EQ(static_cast<int>(ErrorCode::PINS_FULL), 4);
  EXPECT_EQ(static_cast<int>(ErrorCode::CURSOR_STALE), 5);
  EXPECT_EQ(static_cast<int>(ErrorCode::FULL_PATH_MISSING), 7);
}

TEST(SystemError, ends_in_the_text_of_errno) {
  const Error error = system_error("cannot open /x", ENOENT);
  EXPECT_EQ(error.code, ErrorCode::SYSTEM);
  EXPECT_EQ(error.message, "cannot open /x: No such file or directory");
}

}  // namespace
}  // namespace radixshmem
