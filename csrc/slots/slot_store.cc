// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "slots/slot_store.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace radixshmem {
namespace {

constexpr auto kFirstPause = std::chrono::microseconds(200);
constexpr auto kLongestPause = std::chrono::microseconds(10000);

struct Opened {
  SharedRegion region;
  StoreLayout layout;
};

Result<Opened> open_once(const std::string& name, const std::string& hugepage_path,
                         bool read_only) {
  Result<SharedRegion> region = SharedRegion::open(name, read_only, hugepage_path);
  if (!region) return std::move(region).error();
  Result<StoreLayout> layout =
      read_store_header(name, {region.value().base(), region.value().bytes()});
  if (!layout) return std::move(layout).error();
  return Opened{std::move(region).value(), layout.value()};
}

}  // namespace

Result<std::shared_ptr<const SlotStore>> SlotStore::create(const SlotStorePlan& plan,
                                                           const RegionOptions& options) {
  const Result<std::uint64_t> page = region_page_bytes(options.hugepage_path);
  if (!page) return page.error();
  Result<StoreLayout> layout = plan_store(plan.pools, plan.slot_align, plan.nonce, page.value());
  if (!layout) return std::move(layout).error();
  Result<SharedRegion> region =
      SharedRegion::create(plan.name, layout.value().region_bytes(), options);
  if (!region) return std::move(region).error();
  write_store_header(region.value().base(), layout.value());
  return std::shared_ptr<const SlotStore>(new SlotStore(std::move(region).value(), layout.value()));
}

Result<std::shared_ptr<const SlotStore>> SlotStore::attach(const std::string& name,
                                                           const std::string& hugepage_path,
                                                           std::uint32_t timeout_ms,
                                                           bool read_only) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  // Opened anew each time: a region whose maker died is replaced by a file of the same name.
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    Result<Opened> opened = open_once(name, hugepage_path, read_only);
    if (opened) {
      return std::shared_ptr<const SlotStore>(
          new SlotStore(std::move(opened.value().region), opened.value().layout));
    }
    if (opened.error().code != ErrorCode::NOT_READY) return opened.error();
    const auto now = Clock::now();
    if (now >= deadline) {
      return Error{ErrorCode::NOT_READY,
                   opened.error().message + " (waited " + std::to_string(timeout_ms) + " ms)"};
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline - now));
  }
}

Result<bool> SlotStore::destroy(const std::string& name, const std::string& hugepage_path) {
  return SharedRegion::unlink(name, hugepage_path);
}

std::uint32_t SlotStore::pool_mask() const noexcept {
  std::uint32_t mask = 0;
  for (std::size_t kind = 0; kind < kComponents; ++kind) {
    if (layout_.pools[kind].num_slots != 0) mask |= std::uint32_t{1} << kind;
  }
  return mask;
}

Result<PoolHeader> SlotStore::pool(std::int64_t kind) const {
  if (kind < 0 || kind >= static_cast<std::int64_t>(kComponents)) {
    return Error{ErrorCode::INVALID_ARGUMENT,
                 "kind = " + std::to_string(kind) + " is no component: FULL=0, SWA=1, MAMBA=2"};
  }
  const PoolHeader& pool = layout_.pools[static_cast<std::size_t>(kind)];
  if (pool.num_slots == 0) {
    return Error{ErrorCode::INVALID_ARGUMENT,
                 "SlotStore " + name() + " has no " + component_name(static_cast<Component>(kind)) +
                     " pool (pool_mask = " + std::to_string(pool_mask()) + ")"};
  }
  return pool;
}

Result<std::uint64_t> SlotStore::slot_offset(std::int64_t slot, std::int64_t kind) const {
  Result<PoolHeader> found = pool(kind);
  if (!found) return std::move(found).error();
  const PoolHeader& header = found.value();
  if (slot < 0 || static_cast<std::uint64_t>(slot) >= header.num_slots) {
    return Error{ErrorCode::OUT_OF_RANGE,
                 "slot " + std::to_string(slot) + " is not in the " +
                     component_name(static_cast<Component>(kind)) + " pool of SlotStore " + name() +
                     ", which has slots 0 to " + std::to_string(header.num_slots - 1)};
  }
  return header.offset + static_cast<std::uint64_t>(slot) * header.stride;
}

Result<std::span<std::byte>> SlotStore::slot(std::int64_t slot, std::int64_t kind) const {
  Result<std::uint64_t> offset = slot_offset(slot, kind);
  if (!offset) return std::move(offset).error();
  return data().subspan(offset.value(), layout_.pools[static_cast<std::size_t>(kind)].stride);
}

Result<> SlotStore::require_writable(const char* what) const {
  if (!read_only()) return Unit{};
  return Error{ErrorCode::INVALID_ARGUMENT, std::string(what) + ": SlotStore " + name() +
                                                " is attached read-only; attach it writable"};
}

Result<> SlotStore::prefault(std::uint64_t begin, std::uint64_t end) const {
  if (begin > end || end > layout_.data_bytes) {
    return Error{ErrorCode::OUT_OF_RANGE, "cannot prefault [" + std::to_string(begin) + ", " +
                                              std::to_string(end) + ") of SlotStore " + name() +
                                              ", which has " + std::to_string(layout_.data_bytes) +
                                              " bytes of data"};
  }
  return region_.prefault(layout_.data_offset + begin, layout_.data_offset + end);
}

}  // namespace radixshmem
