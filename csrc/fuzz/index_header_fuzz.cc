// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// read_header on damaged headers of index regions: what it accepts must lie inside the region.
// Input: two bytes {length to cut off, number of edits}, then edits of three bytes
// {offset:16, xor}.
#include <cstdint>
#include <cstring>

#include "tests/layout/test_region.h"

namespace radixshmem {
namespace {

class Target final {
 public:
  Target()
      : plan_(small_plan(64, 8, 4)), layout_(layout_of(plan_)), memory_(layout_.region_bytes) {}

  void run(const std::uint8_t* data, std::size_t size) {
    std::memset(memory_.base(), 0, kHeaderBytes);
    write_header(memory_.base(), plan_, layout_, 1);
    publish_header(memory_.base());
    if (size < 2) return;
    // Mostly whole regions: a cut is soon found. Few edits: one that is refused hides the others.
    const std::uint64_t length = memory_.bytes() - (data[0] % 4 == 0 ? data[0] * 4096u : 0);
    const std::size_t edits = data[1] % 4;
    for (std::size_t i = 2; i + 2 < size && i < 2 + 3 * edits; i += 3) {
      const std::size_t offset = (data[i] | std::size_t{data[i + 1]} << 8) % kEdited;
      memory_.base()[offset] ^= std::byte{data[i + 2]};
    }
    const auto view = read_header(memory_.span().first(length), "fuzz");
    if (!view.ok()) return;
    for (const Area& area : view.value().layout.areas) {
      RADIX_CHECK(area.offset <= length && area.bytes <= length - area.offset, area.offset);
    }
    RADIX_CHECK(view.value().plan.identity.size() <= kMaxIdentityBytes, 0);
  }

 private:
  // The words before the area table, and some of it.
  static constexpr std::size_t kEdited = offsetof(RegionHeader, areas) + 6 * sizeof(AreaRecord);
  IndexPlan plan_;
  IndexLayout layout_;
  GuardedMemory memory_;
};

}  // namespace
}  // namespace radixshmem

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static radixshmem::Target target;
  target.run(data, size);
  return 0;
}
