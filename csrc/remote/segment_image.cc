// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "remote/segment_image.h"

#include <algorithm>

#include "arena/segment.h"
#include "layout/words.h"

namespace radixshmem {
namespace {

constexpr std::size_t kHashes = kSegmentHeaderBytes;

}  // namespace

std::optional<SegmentImage> SegmentImage::of(std::span<const std::byte> bytes,
                                             const ClassTable& classes) noexcept {
  if (bytes.size() < kUnitBytes) return std::nullopt;
  SegmentImage image;
  image.bytes_ = bytes.data();
  const auto size_class = image.at<std::uint8_t>(offsetof(SegmentHeader, size_class));
  if (size_class == 0 || size_class >= kSizeClasses) return std::nullopt;
  if (bytes.size() < std::size_t{classes.units[size_class]} * kUnitBytes) return std::nullopt;
  const auto head = SegmentHead::unpack(image.at<std::uint64_t>(offsetof(SegmentHeader, head)));
  image.capacity_ = classes.capacity[size_class];
  image.count_ = head.count;
  image.start_ = image.at<Position>(offsetof(SegmentHeader, start));
  image.parent_ = image.at<SegmentId>(offsetof(SegmentHeader, parent));
  image.side_ = image.at<SideId>(offsetof(SegmentHeader, side));
  const std::uint32_t s = classes.segment_blocks;
  if (!head.live() || head.count == 0 || head.count > image.capacity_ ||
      image.start_ % s + head.count > s || (image.start_ == 0) != (image.parent_ == 0)) {
    return std::nullopt;
  }
  return image;
}

std::uint32_t SegmentImage::matched(std::span<const BlockHash> path) const noexcept {
  if (start_ >= path.size()) return 0;
  const std::span<const BlockHash> rest = path.subspan(start_);
  const auto most = static_cast<std::uint32_t>(std::min<std::size_t>(count_, rest.size()));
  std::uint32_t equal = 0;
  while (equal < most && at<BlockHash>(kHashes + std::size_t{8} * equal) == rest[equal]) ++equal;
  return equal;
}

bool SegmentImage::goes_on(std::uint32_t entries) const noexcept {
  if (capacity_ == 1) return at<std::uint32_t>(offsetof(SegmentHeader, child_count)) != 0;
  return at<std::uint16_t>(kHashes + std::size_t{12} * capacity_ +
                           std::size_t{2} * (entries - 1)) != 0;
}

bool SegmentImage::append_slots(std::uint32_t entries, std::vector<std::int32_t>& out) const {
  const std::size_t before = out.size();
  const std::size_t slots = kHashes + std::size_t{8} * capacity_;
  for (std::uint32_t i = 0; i < entries; ++i) {
    const auto slot = at<SlotId>(slots + std::size_t{4} * i);
    if (slot > kMaxPoolSlots) {
      out.resize(before);
      return false;
    }
    out.push_back(static_cast<std::int32_t>(slot));
  }
  return true;
}

}  // namespace radixshmem
