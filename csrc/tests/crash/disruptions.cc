// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tests/crash/disruptions.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "tests/crash/inspector.h"

namespace radixshmem::crash {

void reset(Board& board, Session& session, Dice& dice) {
  if (!session.reset().ok()) return;
  board.count(Tally::resets);
  if (dice.one_in(2)) shrink(board, session);
}

void shrink(Board& board, Session& session) {
  if (session.locked([&] { TreeInspector::shrink_table(session.tree()); })) {
    board.count(Tally::shrinks);
  }
}

void repair(Board& board, Session& session) {
  auto found = session.check(/*repair=*/true);
  if (!found) {
    if (found.error().code != ErrorCode::TIMEOUT) {
      board.violate("repair: %s", found.error().message.c_str());
    }
    return;
  }
  board.count(Tally::repairs);
  if (!found.value().empty()) board.violate("after repair: %s", found.value().front().c_str());
}

void damage(Board& board, Session& session, Dice& dice) {
  std::vector<std::string> found;
  if (!session.locked([&] {
        Tree& tree = session.tree();
        const std::vector<SegmentId> ids = TreeInspector::live_segments(tree, 0);
        if (ids.empty()) return;
        tree.control().intent.store(kIntentRebuild, std::memory_order_release);
        const SegmentId id = ids[dice.below(static_cast<std::uint32_t>(ids.size()))];
        SegmentHeader* header = tree.arena().header(id);
        switch (dice.below(3)) {
          case 0:  // no segment
            header->parent.store(0x80000000u | static_cast<SegmentId>(dice.next()),
                                 std::memory_order_release);
            break;
          case 1:  // a parent that does not fit
            header->start.store(0, std::memory_order_release);
            break;
          case 2:  // derived
            header->child_count.store(3, std::memory_order_release);
            break;
        }
        tree.repair();
        found = tree.check();
      })) {
    return;
  }
  board.count(Tally::damages);
  if (!found.empty()) board.violate("after damage and repair: %s", found.front().c_str());
}

void fork_idle_child(Board& board, Session& session) {
  const pid_t child = ::fork();
  if (child == 0) {
    fault::hook = nullptr;
    ::usleep(20'000);
    ::_exit(session.usable() ? 1 : 0);
  }
  board.count(Tally::forks);  // the supervisor is its reaper
}

}  // namespace radixshmem::crash
