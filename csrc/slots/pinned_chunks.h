// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The registration of a mapped SlotStore with a GPU, chunk by chunk.
//
//   data() | chunk 0 | chunk 1 | chunk 2 | ...      pinned: [0, pinned_bytes())
//
// 1. Chunks begin and end on slot borders: no slot lies in two. A copy between a GPU and memory of
//    two registrations would be refused.
// 2. They begin on page borders too: no page is registered twice.
// 3. The object keeps the mapping, and its end unpins, last chunk first, before it lets go of the
//    mapping. So a copy in flight needs only to hold a reference: what it uses stays pinned and
//    mapped, whoever gives the registration up meanwhile, and however.
//
// Thread safety: pin_next() by one thread at a time; the rest from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "slots/cuda_driver.h"
#include "slots/slot_store.h"

namespace radixshmem {

// Returns: offsets in data() where chunks of at least `chunk_bytes` end, ascending; the last one is
// its size.
std::vector<std::uint64_t> chunk_ends(const SlotStore& store, std::uint64_t chunk_bytes);

class PinnedChunks final {
 public:
  PinnedChunks(std::shared_ptr<const SlotStore> store, std::shared_ptr<HostPinner> pinner,
               std::uint64_t chunk_bytes);
  PinnedChunks(const PinnedChunks&) = delete;
  PinnedChunks& operator=(const PinnedChunks&) = delete;
  ~PinnedChunks();

  // Pins one more chunk. Returns: pinned_bytes() after it, or the error, which changes nothing.
  // Requires: not all is pinned.
  Result<std::uint64_t> pin_next();

  [[nodiscard]] std::uint64_t pinned_bytes() const noexcept {
    return pinned_.load(std::memory_order_acquire);  // pairs with the store in pin_next
  }
  [[nodiscard]] std::uint64_t total_bytes() const noexcept { return store_->data().size(); }

 private:
  [[nodiscard]] std::byte* begin_of(std::size_t chunk) const noexcept;

  const std::shared_ptr<const SlotStore> store_;
  const std::shared_ptr<HostPinner> pinner_;
  const std::vector<std::uint64_t> ends_;
  std::size_t done_ = 0;  // chunks
  std::atomic<std::uint64_t> pinned_{0};
};

}  // namespace radixshmem
