// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tree/tree.h"

#include "base/memory_orders.h"

namespace radixshmem {
namespace {

constexpr std::size_t kPinFilterEntries = 4096;  // a power of two

template <typename T>
T* at(std::byte* region, const IndexLayout& layout, AreaKind kind) noexcept {
  return reinterpret_cast<T*>(region + layout.area(kind).offset);
}

}  // namespace

Tree::Tree(std::byte* region, const HeaderView& view) noexcept
    : region_(region),
      plan_(view.plan),
      layout_(view.layout),
      control_(at<Control>(region, layout_, AreaKind::kControl)),
      log_(region, layout_.region_bytes, at<UndoLogShared>(region, layout_, AreaKind::kUndoLog)),
      ring_(&control_->ring, at<RingEntry>(region, layout_, AreaKind::kRing), plan_.ring_entries),
      clients_(&control_->clients, at<ClientEntry>(region, layout_, AreaKind::kClients),
               at<std::atomic<std::uint64_t>>(region, layout_, AreaKind::kPins),
               plan_.client_entries(), plan_.max_pins),
      arena_(&control_->arena, at<PageEntry>(region, layout_, AreaKind::kPages),
             at<std::byte>(region, layout_, AreaKind::kArena), layout_.pages, layout_.classes,
             &log_),
      pools_{SlotPool(&control_->pools[0],
                      at<std::atomic<std::uint32_t>>(region, layout_, AreaKind::kOwnersFull),
                      plan_.slots[0], &log_),
             SlotPool(&control_->pools[1],
                      at<std::atomic<std::uint32_t>>(region, layout_, AreaKind::kOwnersSwa),
                      plan_.slots[1], &log_),
             SlotPool(&control_->pools[2],
                      at<std::atomic<std::uint32_t>>(region, layout_, AreaKind::kOwnersMamba),
                      plan_.slots[2], &log_)},
      table_(&control_->table, at<TableLine>(region, layout_, AreaKind::kTable),
             layout_.table_lines_max, &arena_, &log_, &control_->work),
      eviction_(&control_->eviction, &arena_, &log_),
      sides_(&control_->sides, at<std::byte>(region, layout_, AreaKind::kSideBlocks),
             layout_.side_blocks, layout_.side_bytes, layout_.classes.segment_blocks, &log_),
      scratch_words_(at<std::uint64_t>(region, layout_, AreaKind::kScratchWords)),
      scratch_bits_(at<std::uint64_t>(region, layout_, AreaKind::kScratchBits)),
      pin_filter_(kPinFilterEntries) {
  std::uint64_t begin = 0;
  for (std::size_t k = 0; k < kComponents; ++k) {
    bits_begin_[k] = begin;
    begin += std::uint64_t{plan_.slots[k]} / 64 + 1;
  }
}

void Tree::init() noexcept {
  arena_.init();
  for (SlotPool& pool : pools_) pool.init();
  if (sides_.size() != 0) sides_.init();
  table_.set_lines_in_use(layout_.table_lines_initial);
  control_->clock.store(1, std::memory_order_release);
}

void Tree::abort() noexcept {
  if (ring_.head() != log_.ring_head()) ring_.demand_resync();
  log_.resolve(UndoLog::Outcome::kUndone);
  log_.reset(ring_.head());
}

void Tree::count_live(int segments, std::int64_t blocks) noexcept {
  if (segments != 0) {
    log_.store(control_->live_segments,
               control_->live_segments.load(kRelaxed) + static_cast<std::uint32_t>(segments));
  }
  log_.store(control_->live_blocks,
             control_->live_blocks.load(kRelaxed) + static_cast<std::uint32_t>(blocks));
}

}  // namespace radixshmem
