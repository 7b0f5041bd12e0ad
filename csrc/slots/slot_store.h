// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The region that holds the bytes of all slots: one pool per component, mapped whole. Its bytes are
// drawn in slot_store_header.h.
//
// Thread safety: an object never changes after create or attach, so every call is safe from any
// thread. Who may read or write which slot is the index's business (owner words, pins): nothing
// here orders two processes that touch the same slot.
// Crash safety: nothing is kept in the region but the header, so a crash leaves nothing to repair.
// It does not map pages (see prefault) and never deletes the file (see destroy).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "base/ids.h"
#include "layout/slot_store_header.h"
#include "shm/shared_region.h"

namespace radixshmem {

struct SlotStorePlan {
  std::string name;
  std::array<PoolSize, kComponents> pools;  // by component
  std::uint64_t slot_align = 4096;
  std::uint64_t nonce = 0;
};

class SlotStore final {
 public:
  // Makes the region, with all its memory reserved and reading as zeros. The name must be free.
  static Result<std::shared_ptr<const SlotStore>> create(const SlotStorePlan& plan,
                                                         const RegionOptions& options = {});
  // Maps an existing one; waits up to `timeout_ms` for it to appear and to be complete.
  // Returns: NOT_READY at the deadline; MISMATCH or CORRUPT for what is no store of this version.
  static Result<std::shared_ptr<const SlotStore>> attach(const std::string& name,
                                                         const std::string& hugepage_path,
                                                         std::uint32_t timeout_ms, bool read_only);
  // Deletes the region's file; mappings live on. Returns: false when there was none.
  static Result<bool> destroy(const std::string& name, const std::string& hugepage_path = "");

  [[nodiscard]] const std::string& name() const noexcept { return region_.name(); }
  [[nodiscard]] std::uint64_t nonce() const noexcept { return layout_.nonce; }
  [[nodiscard]] bool read_only() const noexcept { return region_.read_only(); }
  [[nodiscard]] bool is_hugepage() const noexcept {
    return region_.page_bytes() > kStoreHeaderBytes;
  }
  [[nodiscard]] std::uint32_t pool_mask() const noexcept;
  // Writable unless read_only(). Offsets below count from its begin.
  [[nodiscard]] std::span<std::byte> data() const noexcept {
    return {region_.base() + layout_.data_offset, layout_.data_bytes};
  }

  // Returns: INVALID_ARGUMENT for a kind that is no component or has no pool here.
  Result<PoolHeader> pool(std::int64_t kind) const;
  // Returns: OUT_OF_RANGE for a slot that the pool does not have.
  Result<std::uint64_t> slot_offset(std::int64_t slot, std::int64_t kind) const;
  // Returns: the whole slot, stride long.
  Result<std::span<std::byte>> slot(std::int64_t slot, std::int64_t kind) const;
  // Returns: an error when the mapping is read-only; `what` names the refused call.
  Result<> require_writable(const char* what) const;

  // Maps the pages of [begin, end) of data() without changing a byte.
  Result<> prefault(std::uint64_t begin, std::uint64_t end) const;

 private:
  SlotStore(SharedRegion region, const StoreLayout& layout)
      : region_(std::move(region)), layout_(layout) {}

  SharedRegion region_;
  StoreLayout layout_;
};

}  // namespace radixshmem
