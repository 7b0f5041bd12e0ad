// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "slots/pinned_chunks.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace radixshmem {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

// The first border of a slot of `pool` at or after `from` that is also one of a page. Borders of
// slots and of pages meet anew at least every kPageBytes slots. Returns: `none` if not in the pool.
std::uint64_t page_border(const PoolHeader& pool, std::uint64_t from, std::uint64_t none) {
  std::uint64_t slot = from <= pool.offset ? 0 : (from - pool.offset - 1) / pool.stride + 1;
  const std::uint64_t last = std::min(pool.num_slots, slot + kPageBytes);
  for (; slot < last; ++slot) {
    const std::uint64_t border = pool.offset + slot * pool.stride;
    if (border % kPageBytes == 0) return border;
  }
  return none;
}

}  // namespace

std::vector<std::uint64_t> chunk_ends(const SlotStore& store, std::uint64_t chunk_bytes) {
  const std::uint64_t total = store.data().size();
  std::vector<std::uint64_t> ends;
  for (std::uint64_t begin = 0; begin < total;) {
    const std::uint64_t room = total - begin;
    std::uint64_t end = total;
    if (const std::uint64_t step = std::max(chunk_bytes, std::uint64_t{1}); step < room) {
      for (std::int64_t kind = 0; kind < static_cast<std::int64_t>(kComponents); ++kind) {
        const Result<PoolHeader> pool = store.pool(kind);
        if (pool) end = std::min(end, page_border(pool.value(), begin + step, total));
      }
    }
    ends.push_back(end);
    begin = end;
  }
  return ends;
}

PinnedChunks::PinnedChunks(std::shared_ptr<const SlotStore> store,
                           std::shared_ptr<HostPinner> pinner, std::uint64_t chunk_bytes)
    : store_(std::move(store)),
      pinner_(std::move(pinner)),
      ends_(chunk_ends(*store_, chunk_bytes)) {}

PinnedChunks::~PinnedChunks() {
  // What cannot be unpinned now goes with the process; there is nobody to tell.
  while (done_ > 0) (void)pinner_->unpin(begin_of(--done_));
}

std::byte* PinnedChunks::begin_of(std::size_t chunk) const noexcept {
  return store_->data().data() + (chunk == 0 ? 0 : ends_[chunk - 1]);
}

Result<std::uint64_t> PinnedChunks::pin_next() {
  RADIX_CHECK(done_ < ends_.size(), done_);
  const std::uint64_t begin = pinned_bytes();
  const std::uint64_t end = ends_[done_];
  // Whole pages, which the mapping has behind its last slot too.
  const std::uint64_t bytes = (end - begin + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (Result<> pinned = pinner_->pin(begin_of(done_), bytes, store_->read_only()); !pinned) {
    return Error{pinned.error().code, "cannot register bytes " + std::to_string(begin) + " to " +
                                          std::to_string(end) + " of SlotStore " + store_->name() +
                                          " with CUDA: " + pinned.error().message};
  }
  ++done_;
  pinned_.store(end, std::memory_order_release);  // pairs with the load in pinned_bytes
  return end;
}

}  // namespace radixshmem
