// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tests/crash/board.h"

#include <gtest/gtest.h>

namespace radixshmem::crash {
namespace {

TEST(Board, a_violation_counts_though_its_reporter_was_killed) {
  Board* board = make_board();
  EXPECT_EQ(board->verdict(), "");
  board->violated.store(1);  // claimed, and never told
  EXPECT_NE(board->verdict(), "");
  free_board(board);
}

TEST(Board, the_first_violation_is_the_verdict) {
  Board* board = make_board();
  board->violate("slot %d is torn", 7);
  board->violate("another");
  EXPECT_EQ(board->verdict(), "slot 7 is torn");
  free_board(board);
}

}  // namespace
}  // namespace radixshmem::crash
