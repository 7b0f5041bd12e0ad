// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Bulk copies between slots and scattered fragments of memory, e.g. one per layer.
//
// With k = ptrs.size() / slots.size(): fragments [i*k, (i+1)*k) belong to slots[i] and lie one
// after the other in it, the first at `offset`. sizes has one entry per fragment, or k entries that
// hold for every slot. A fragment of size 0 may have a null pointer.
//
// Thread safety: from any thread. Everything is checked before the first byte is copied, but the
// pointers themselves cannot be checked. The caller owns or pins the slots.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "slots/slot_store.h"

namespace radixshmem {

struct CopyRequest {
  std::span<const std::int32_t> slots;
  std::span<const std::uint64_t> ptrs;  // addresses in this process
  std::span<const std::uint64_t> sizes;
  std::int64_t kind = 0;
  std::int64_t offset = 0;
};

// Copies fragments into slots. Returns: the bytes copied; on an error nothing was copied.
Result<std::uint64_t> copy_in(const SlotStore& store, const CopyRequest& request);

// Copies slots into fragments. Returns: the bytes copied; on an error nothing was copied.
Result<std::uint64_t> copy_out(const SlotStore& store, const CopyRequest& request);

}  // namespace radixshmem
