// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "base/check.h"

#include <gtest/gtest.h>

namespace radixshmem {
namespace {

TEST(CheckDeathTest, aborts_and_prints_condition_and_value) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const int value = 41;
  EXPECT_DEATH(RADIX_CHECK(value == 42, value), "check failed: value == 42 .value 41.");
}

TEST(Check, evaluates_its_condition_once_and_its_value_only_on_failure) {
  int conditions = 0;
  int values = 0;
  RADIX_CHECK(++conditions > 0, ++values);
  EXPECT_EQ(conditions, 1);
  EXPECT_EQ(values, 0);
}

TEST(Check, is_one_statement) {
  if (true)
    RADIX_CHECK(true, 0);
  else
    FAIL();
}

}  // namespace
}  // namespace radixshmem
