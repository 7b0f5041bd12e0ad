// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// An index in private memory that a fuzz input damages: a byte (odd: few edits), then edits of six
// bytes {area, offset:24, kind, value}. The header stays good.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/layout/test_region.h"
#include "tree/tree.h"

namespace radixshmem {

[[nodiscard]] inline std::vector<BlockHash> path_of(std::uint64_t seed, std::size_t n) {
  std::vector<BlockHash> path;
  for (std::size_t i = 0; i < n; ++i) path.push_back(mix_hash(seed * 1000 + i + 1));
  return path;
}

class DamagedIndex final {
 public:
  static constexpr std::uint64_t kPaths = 6;
  static constexpr ClientId kClient = 1;
  static constexpr std::uint32_t kGroup = 1;
  [[nodiscard]] static std::vector<BlockHash> path(std::uint64_t i) {
    return path_of(i, 20 + 5 * i);
  }

  DamagedIndex() : view_{small_plan(300, 40, 10), {}} {
    view_.layout = layout_of(view_.plan);
    memory_ = std::make_unique<GuardedMemory>(view_.layout.region_bytes);
    write_header(memory_->base(), view_.plan, view_.layout, 1);
    Tree tree(memory_->base(), view_);
    tree.init();
    tree.clients().claim(kClient, kGroup, 1);
    for (std::uint64_t i = 0; i < kPaths; ++i) add(tree, i);
    publish_header(memory_->base());
    pristine_.assign(memory_->base(), memory_->base() + memory_->bytes());
  }

  [[nodiscard]] const HeaderView& view() const noexcept { return view_; }
  [[nodiscard]] GuardedMemory& memory() const noexcept { return *memory_; }

  // The sound index again, with the edits of this input.
  void damage(const std::uint8_t* data, std::size_t size) {
    memory_->set_writable(true);
    std::memcpy(memory_->base(), pristine_.data(), pristine_.size());
    const std::size_t most = size > 0 && data[0] % 2 == 1 ? 1 + data[0] / 2 % 8 : size;
    for (std::size_t n = 0; n < most && 1 + 6 * (n + 1) <= size; ++n) edit(data + 1 + 6 * n);
  }

 private:
  static void add(Tree& tree, std::uint64_t seed) {
    const std::vector<BlockHash> blocks = path(seed);
    const auto take = [&](Component c, std::size_t n) {
      std::vector<SlotId> slots(n);
      RADIX_CHECK(tree.allocate(c, slots, kClient) == n, n);
      return std::vector<std::int32_t>(slots.begin(), slots.end());
    };
    (void)tree.insert(blocks, take(Component::kFull, blocks.size()), 0, kGroup);
    (void)tree.insert_aux(Component::kSwa, blocks, take(Component::kSwa, 4), kGroup);
    (void)tree.insert_aux(Component::kMamba, blocks, take(Component::kMamba, 1), kGroup);
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

  HeaderView view_;
  std::unique_ptr<GuardedMemory> memory_;
  std::vector<std::byte> pristine_;
};

}  // namespace radixshmem
