// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Repair of a damaged index: whatever the bytes behind a good header are, recovery and a repair end
// without a crash, and what they leave can be worked on: inserts, evictions and resets neither
// leave the region nor break an invariant.
// Two kinds of damage stay, since nothing in memory tells what was there: a changed hash (I2 twice,
// I4 not found) and what is owned by a client that is not registered (I8).
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "fuzz/damaged_index.h"

namespace radixshmem {
namespace {

constexpr unsigned kSecondsPerInput = 60;  // far more than any input takes
constexpr std::uint64_t kMorePaths = DamagedIndex::kPaths + 4;

bool may_stay(const std::string& line) {
  const bool not_found = line.starts_with("I4 segment") && line.find("not found") != line.npos;
  return line.starts_with("I2 hash") || line.starts_with("I8 ") || not_found;
}

void expect_sound(const Tree& tree, const char* when) {
  for (const std::string& line : tree.check()) {
    if (may_stay(line)) continue;
    std::fprintf(stderr, "after the %s: %s\n", when, line.c_str());
    std::abort();
  }
}

void insert(Tree& tree, Component c, const std::vector<BlockHash>& path) {
  const std::size_t wanted = c == Component::kFull ? path.size() : c == Component::kSwa ? 4 : 1;
  std::vector<SlotId> taken(wanted);
  taken.resize(tree.allocate(c, taken, DamagedIndex::kClient));
  if (taken.empty()) return;
  const std::vector<std::int32_t> slots(taken.begin(), taken.end());
  InsertOutcome outcome =
      c == Component::kFull
          ? tree.insert(std::span(path).first(slots.size()), slots, 0, DamagedIndex::kGroup)
          : tree.insert_aux(c, path, slots, DamagedIndex::kGroup);
  tree.recycle(c, outcome.error == ErrorCode::BAD_REQUEST ? slots : outcome.unused);
}

void work(Tree& tree, std::uint8_t dice) {
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t i = 0; i < kMorePaths; ++i) {
      for (const Component c : kAllComponents) insert(tree, c, DamagedIndex::path(i));
    }
    expect_sound(tree, "inserts");
    (void)tree.evict(dice * 2u);
    (void)tree.evict_aux(Component::kSwa, dice % 32u);
    expect_sound(tree, "evictions");
    if ((dice & 8) != 0) tree.reset();
  }
  tree.clients().clear_pins(DamagedIndex::kClient);
  tree.reset();
  expect_sound(tree, "reset");
}

}  // namespace
}  // namespace radixshmem

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static radixshmem::DamagedIndex index;
  const std::uint8_t dice = size > 0 ? data[0] : 0;
  index.damage(data, size);
  ::alarm(radixshmem::kSecondsPerInput);
  radixshmem::Tree tree(index.memory().base(), index.view());
  if ((dice & 64) != 0) tree.recover();
  tree.log().begin();
  tree.repair();
  radixshmem::expect_sound(tree, "repair");
  radixshmem::work(tree, dice);
  ::alarm(0);
  return 0;
}
