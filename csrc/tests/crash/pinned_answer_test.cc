// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What validate() says of a pinned answer while an eviction looks at its blocks, and after a reset.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "tests/crash/lab.h"

namespace radixshmem::crash {
namespace {

// A pin is published inside an eviction of `victims`, which hides them, sees the pin and shows them
// again with other versions.
void expect_it_stands(Component victims, std::uint64_t logged, FaultPoint hidden) {
  Lab lab(Mutant::kNone);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  lab.put_aux(lab.writer(), path, Component::kMamba);
  std::optional<Hit> pinned;
  bool looked = false;
  on_fault_point = [&](FaultPoint point) {
    if (!pinned && point == FaultPoint::logged &&
        TreeInspector::last_logged(lab.tree()) == logged) {
      pinned.emplace(lab.query(lab.reader(), path, kMaskFull | kMaskMamba, true));
    } else if (pinned && point == hidden) {
      looked = true;
      EXPECT_TRUE(pinned->validate()) << "while it is hidden";
    }
  };
  (void)lab.evict_all(lab.writer(), victims);
  on_fault_point = nullptr;
  ASSERT_TRUE(looked && pinned->pinned());
  EXPECT_TRUE(pinned->validate()) << "after it was shown again";
  ASSERT_TRUE(lab.writer().reset().ok());
  EXPECT_FALSE(pinned->validate()) << "after a reset";
  EXPECT_EQ(lab.wrong_bytes(*pinned, path), "");
}

TEST(PinnedAnswer, stands_when_an_eviction_looked_at_it) {
  expect_it_stands(Component::kFull, UndoLog::kTagHead, FaultPoint::evict_truncated);
}

TEST(PinnedAnswer, stands_when_an_eviction_looked_at_its_aux_slots) {
  expect_it_stands(Component::kMamba, UndoLog::kTagAux, FaultPoint::aux_evict_truncated);
}

}  // namespace
}  // namespace radixshmem::crash
