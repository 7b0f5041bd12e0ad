// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Readers on a damaged index: whatever the bytes behind a good header are, a match, a window, a
// cursor, the change ring, the pin scan and the walker of invariants neither crash nor leave the
// region nor loop; and they write nothing (the memory is read-only meanwhile).
// Input: a byte (odd: few edits), then edits of six bytes {area, offset:24, kind, value}.
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/layout/test_region.h"
#include "tree/tree.h"

namespace radixshmem {
namespace {

constexpr unsigned kSecondsPerInput = 60;  // far more than any input takes

std::vector<BlockHash> path_of(std::uint64_t seed, std::size_t n) {
  std::vector<BlockHash> path;
  for (std::size_t i = 0; i < n; ++i) path.push_back(mix_hash(seed * 1000 + i + 1));
  return path;
}

class Target final {
 public:
  Target() : view_{small_plan(300, 40, 10), {}} {
    view_.layout = layout_of(view_.plan);
    memory_ = std::make_unique<GuardedMemory>(view_.layout.region_bytes);
    write_header(memory_->base(), view_.plan, view_.layout, 1);
    Tree tree(memory_->base(), view_);
    tree.init();
    tree.clients().claim(1, 1, 1);
    for (std::uint64_t i = 0; i < kPaths; ++i) add(tree, i);
    publish_header(memory_->base());
    pristine_.assign(memory_->base(), memory_->base() + memory_->bytes());
  }

  void run(const std::uint8_t* data, std::size_t size) {
    memory_->set_writable(true);
    std::memcpy(memory_->base(), pristine_.data(), pristine_.size());
    const std::size_t most = size > 0 && data[0] % 2 == 1 ? 1 + data[0] / 2 % 8 : size;
    for (std::size_t n = 0; n < most && 1 + 6 * (n + 1) <= size; ++n) edit(data + 1 + 6 * n);
    memory_->set_writable(false);
    ::alarm(kSecondsPerInput);
    read(size > 0 ? data[0] : 0);
    ::alarm(0);
  }

 private:
  static constexpr std::uint64_t kPaths = 6;

  static void add(Tree& tree, std::uint64_t seed) {
    const std::vector<BlockHash> path = path_of(seed, 20 + 5 * seed);
    const auto take = [&](Component c, std::size_t n) {
      std::vector<SlotId> slots(n);
      RADIX_CHECK(tree.allocate(c, slots, 1) == n, n);
      return std::vector<std::int32_t>(slots.begin(), slots.end());
    };
    (void)tree.insert(path, take(Component::kFull, path.size()), 0, 1);
    (void)tree.insert_aux(Component::kSwa, path, take(Component::kSwa, 4), 1);
    (void)tree.insert_aux(Component::kMamba, path, take(Component::kMamba, 1), 1);
  }

  void edit(const std::uint8_t* e) {
    constexpr std::array kAreas{AreaKind::kArena,   AreaKind::kArena,      AreaKind::kSideBlocks,
                                AreaKind::kTable,   AreaKind::kControl,    AreaKind::kUndoLog,
                                AreaKind::kClients, AreaKind::kPins,       AreaKind::kRing,
                                AreaKind::kPages,   AreaKind::kOwnersFull, AreaKind::kOwnersSwa};
    const Area& area = view_.layout.area(kAreas[e[0] % kAreas.size()]);
    std::uint64_t offset = e[1] | std::uint64_t{e[2]} << 8 | std::uint64_t{e[3]} << 16;
    // The beginnings of areas are where the bytes in use lie; arena page 0 is not used.
    const std::uint64_t skip = area.kind == AreaKind::kArena ? 65536 : 0;
    const std::uint64_t bytes = (e[4] & 64) != 0 ? 256 : (e[4] & 32) != 0 ? 4096 : area.bytes;
    offset = (skip + offset % std::min(bytes, area.bytes - skip)) & ~std::uint64_t{7};
    std::byte* at = memory_->base() + area.offset + offset;
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    const unsigned shift = (e[4] >> 3 & 3) * 16;
    switch (e[4] & 7) {
      case 0:
        word = 0;
        break;
      case 1:
        word = ~std::uint64_t{0};
        break;
      case 2:
        word ^= std::uint64_t{e[5]} << shift;
        break;
      case 3:
        word += e[5];
        break;
      case 4:
        word = (word & ~(std::uint64_t{0xffff} << shift)) | std::uint64_t{e[5]} << shift;
        break;
      case 5:
        word |= std::uint64_t{0xffffffff} << (shift & 32);
        break;
      case 6:
        word = mix_hash(word + e[5]);
        break;
      default:  // a whole stretch of one byte
        std::memset(at, e[5], std::min<std::uint64_t>(4096, area.bytes - offset));
        return;
    }
    std::memcpy(at, &word, 8);
  }

  void read(std::uint8_t dice) {
    Tree tree(memory_->base(), view_);
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

  HeaderView view_;
  std::unique_ptr<GuardedMemory> memory_;
  std::vector<std::byte> pristine_;
};

}  // namespace
}  // namespace radixshmem

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static radixshmem::Target target;
  target.run(data, size);
  return 0;
}
