// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Readers on a damaged index: whatever the bytes behind a good header are, a match, a window, a
// cursor, the change ring, the pin scan and the walker of invariants neither crash nor leave the
// region nor loop; and they write nothing (the memory is read-only meanwhile).
#include <unistd.h>

#include <array>
#include <cstdint>
#include <vector>

#include "fuzz/damaged_index.h"

namespace radixshmem {
namespace {

constexpr unsigned kSecondsPerInput = 60;  // far more than any input takes
constexpr std::uint64_t kPaths = DamagedIndex::kPaths;

void read(Tree& tree, std::uint8_t dice) {
  std::vector<std::int32_t> slots(200);
  for (std::uint64_t i = 0; i <= kPaths; ++i) {
    const std::vector<BlockHash> path = path_of(i, i == kPaths ? 200 : 20 + 5 * i);
    Match match;
    Window window;
    (void)tree.match(path, nullptr, slots.data(), match);
    RADIX_CHECK(match.end <= path.size(), match.end);
    (void)tree.validate(match, window);
    CursorPoint cursor{dice * 7919u, dice, dice, dice};
    if (!match.steps.empty()) {
      const MatchStep& last = match.steps.back();
      cursor = {last.segment, last.count, last.version, match.end};
    }
    for (const std::uint32_t mask : {kMaskSwa, kMaskMamba, kMaskSwa | kMaskMamba}) {
      Match shortened = match;
      if (shortened.end != 0) tree.window(mask, shortened, window);
      RADIX_CHECK(shortened.end <= match.end, shortened.end);
      (void)tree.validate(shortened, window);
    }
    const std::vector<BlockHash> more = path_of(i + 50, 30);
    Match extended;
    (void)tree.match(more, &cursor, slots.data(), extended);
    (void)tree.validate(extended, Window{});
  }
  ChangeRing::Cursor consumer;
  std::array<Change, 64> changes;
  bool resync = false;
  for (int turn = 0; turn < 4; ++turn) (void)tree.ring().drain(consumer, changes, resync);
  std::uint64_t pins = 0;
  tree.clients().scan_pins([&](ClientId, PinWord) { ++pins; });
  (void)tree.clients().total(Counter::kQueries);
  (void)tree.slots_of(Component::kFull, kOwnerTree);
  (void)tree.check();
}

}  // namespace
}  // namespace radixshmem

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static radixshmem::DamagedIndex index;
  index.damage(data, size);
  index.memory().set_writable(false);
  ::alarm(radixshmem::kSecondsPerInput);
  radixshmem::Tree tree(index.memory().base(), index.view());
  radixshmem::read(tree, size > 0 ? data[0] : 0);
  ::alarm(0);
  return 0;
}
