// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Private, zeroed memory laid out like an index region: for tests that need no file.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/check.h"
#include "layout/region_header.h"

namespace radixshmem {

// Zeroed pages with an inaccessible page on either side: a stray access ends the test.
class GuardedMemory final {
 public:
  explicit GuardedMemory(std::uint64_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
    void* at = ::mmap(nullptr, bytes_ + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RADIX_CHECK(at != MAP_FAILED, bytes);
    base_ = static_cast<std::byte*>(at) + kPage;
    RADIX_CHECK(::mprotect(base_, bytes_, PROT_READ | PROT_WRITE) == 0, bytes);
  }
  ~GuardedMemory() { ::munmap(base_ - kPage, bytes_ + 2 * kPage); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() const noexcept { return {base_, bytes_}; }
  void set_writable(bool writable) const {
    RADIX_CHECK(::mprotect(base_, bytes_, writable ? PROT_READ | PROT_WRITE : PROT_READ) == 0, 0);
  }

 private:
  static constexpr std::uint64_t kPage = 4096;
  std::uint64_t bytes_;
  std::byte* base_ = nullptr;
};

// The smallest of everything, so that tests reach the limits.
[[nodiscard]] inline IndexPlan small_plan(std::uint32_t full, std::uint32_t swa = 0,
                                          std::uint32_t mamba = 0, std::uint32_t window = 4) {
  IndexPlan plan;
  plan.block_size = 16;
  plan.segment_blocks = 16;
  plan.slots = {full, swa, mamba};
  plan.swa_window_blocks = swa != 0 ? window : 0;
  plan.max_clients = 8;
  plan.max_pins = 64;
  plan.ring_entries = 1024;
  plan.identity = "test";
  return plan;
}

[[nodiscard]] inline IndexLayout layout_of(const IndexPlan& plan) {
  auto layout = IndexLayout::from_plan(plan);
  RADIX_CHECK(layout.ok(), plan.slots[0]);
  return std::move(layout).value();
}

}  // namespace radixshmem
