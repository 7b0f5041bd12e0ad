// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "slots/slot_copy.h"

#include <cstring>
#include <string>
#include <vector>

#include "shm/stream_copy.h"

namespace radixshmem {
namespace {

using std::to_string;

struct Checked {
  std::uint64_t per_slot = 0;  // k
  std::uint64_t total_bytes = 0;
};

// Size of fragment j of a slot; `fragment` counts over all slots.
std::uint64_t size_of(const CopyRequest& request, std::uint64_t fragment,
                      std::uint64_t j) noexcept {
  return request.sizes[request.sizes.size() == request.ptrs.size() ? fragment : j];
}

Result<std::uint64_t> fragments_per_slot(const CopyRequest& request) {
  const std::uint64_t slots = request.slots.size();
  const std::uint64_t ptrs = request.ptrs.size();
  const std::uint64_t sizes = request.sizes.size();
  if (slots == 0 ? ptrs != 0 : ptrs % slots != 0) {
    return invalid_argument("len(ptrs) = " + to_string(ptrs) +
                            " is no multiple of len(slots) = " + to_string(slots));
  }
  const std::uint64_t k = slots == 0 ? 0 : ptrs / slots;
  if (slots != 0 && sizes != ptrs && sizes != k) {
    return invalid_argument("len(sizes) = " + to_string(sizes) + " must be len(ptrs) = " +
                            to_string(ptrs) + " or len(ptrs) / len(slots) = " + to_string(k));
  }
  return k;
}

// Checks the fragments of one slot. Returns: their bytes together.
Result<std::uint64_t> check_slot(const CopyRequest& request, std::uint64_t index, std::uint64_t k,
                                 std::uint64_t room) {
  std::uint64_t used = 0;
  for (std::uint64_t j = 0; j < k; ++j) {
    const std::uint64_t fragment = index * k + j;
    const std::uint64_t size = size_of(request, fragment, j);
    if (size > room - used) {
      const auto offset = static_cast<std::uint64_t>(request.offset);
      return invalid_argument("fragment " + to_string(fragment) + " of " + to_string(size) +
                              " bytes at byte " + to_string(offset + used) + " of slot " +
                              to_string(request.slots[index]) + " ends beyond the slot's " +
                              to_string(offset + room) + " bytes");
    }
    if (size != 0 && request.ptrs[fragment] == 0) {
      return invalid_argument("ptrs[" + to_string(fragment) + "] is null, its size " +
                              to_string(size));
    }
    used += size;
  }
  return used;
}

Result<Checked> check(const SlotStore& store, const CopyRequest& request) {
  const Result<PoolHeader> pool = store.pool(request.kind);
  if (!pool) return pool.error();
  const std::uint64_t stride = pool.value().stride;
  const Result<std::uint64_t> k = fragments_per_slot(request);
  if (!k) return k.error();
  if (request.offset < 0 || static_cast<std::uint64_t>(request.offset) > stride) {
    return invalid_argument("offset = " + to_string(request.offset) + " is not in a slot of " +
                            to_string(stride) + " bytes");
  }
  Checked checked{k.value(), 0};
  for (std::uint64_t i = 0; i < request.slots.size(); ++i) {
    const Result<std::uint64_t> where = store.slot_offset(request.slots[i], request.kind);
    if (!where) return where.error();
    const Result<std::uint64_t> bytes =
        check_slot(request, i, k.value(), stride - static_cast<std::uint64_t>(request.offset));
    if (!bytes) return bytes.error();
    if (__builtin_add_overflow(checked.total_bytes, bytes.value(), &checked.total_bytes)) {
      return invalid_argument("the sizes add up to more than 2^64 bytes");
    }
  }
  return checked;
}

// memmove, because a fragment may itself lie in the store; it is as fast as memcpy.
void copy_fragment(std::byte* to, const std::byte* from, std::uint64_t size, bool large) noexcept {
  if (large && size >= kStreamFragmentBytes) {
    stream_copy(to, from, size);
  } else {
    std::memmove(to, from, size);
  }
}

// Checks the request, then calls move(in_slot, pointer, size, large) for each fragment.
template <typename Move>
Result<std::uint64_t> for_each_fragment(const SlotStore& store, const CopyRequest& given,
                                        Move move) {
  // Other threads of the caller may write to its arrays between the check and the use.
  const std::vector slots(given.slots.begin(), given.slots.end());
  const std::vector ptrs(given.ptrs.begin(), given.ptrs.end());
  const std::vector sizes(given.sizes.begin(), given.sizes.end());
  const CopyRequest request{slots, ptrs, sizes, given.kind, given.offset};
  const Result<Checked> checked = check(store, request);
  if (!checked) return checked.error();
  const auto [per_slot, total_bytes] = checked.value();
  const bool large = total_bytes >= kStreamTotalBytes;
  const PoolHeader pool = store.pool(request.kind).value();
  std::byte* const base = store.data().data() + pool.offset + request.offset;
  std::uint64_t fragment = 0;
  for (const std::int32_t slot : request.slots) {
    std::byte* in_slot = base + static_cast<std::uint64_t>(slot) * pool.stride;
    for (std::uint64_t j = 0; j < per_slot; ++j, ++fragment) {
      const std::uint64_t size = size_of(request, fragment, j);
      if (size == 0) continue;
      move(in_slot, reinterpret_cast<std::byte*>(request.ptrs[fragment]), size, large);
      in_slot += size;
    }
  }
  return total_bytes;
}

}  // namespace

Result<std::uint64_t> copy_in(const SlotStore& store, const CopyRequest& request) {
  if (Result<> writable = store.require_writable("copy_in"); !writable) {
    return std::move(writable).error();
  }
  return for_each_fragment(store, request,
                           [](std::byte* in_slot, const std::byte* pointer, std::uint64_t size,
                              bool large) { copy_fragment(in_slot, pointer, size, large); });
}

Result<std::uint64_t> copy_out(const SlotStore& store, const CopyRequest& request) {
  return for_each_fragment(store, request,
                           [](const std::byte* in_slot, std::byte* pointer, std::uint64_t size,
                              bool large) { copy_fragment(pointer, in_slot, size, large); });
}

}  // namespace radixshmem
