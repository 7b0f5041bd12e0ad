// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/verbs_library.h"

#if RADIX_HAVE_VERBS

#include <cstring>
#include <utility>

#include "transport/verbs_queue_pair.h"

namespace radixshmem {
namespace {

class Host final : public VerbsHost {
 public:
  explicit Host(std::shared_ptr<VerbsDevice> device) : device_(std::move(device)) {}

  Result<> register_range(PeerRegion region, std::span<const std::byte> range);
  [[nodiscard]] std::unique_ptr<VerbsEnd> make_end() override;

  [[nodiscard]] const std::shared_ptr<VerbsDevice>& device() const { return device_; }
  [[nodiscard]] const std::array<VerbsRange, 2>& ranges() const { return ranges_; }

 private:
  std::shared_ptr<VerbsDevice> device_;
  std::array<VerbsMemory, 2> memory_;
  std::array<VerbsRange, 2> ranges_{};
};

class End final : public VerbsEnd {
 public:
  explicit End(const Host& host) : host_(host) {}

  [[nodiscard]] std::span<const std::byte> connect(
      std::span<const std::byte> request) noexcept override {
    QueuePairInfo peer{};
    if (!parse_verbs_info(request, peer)) return {};
    pair_.reset();
    auto made = VerbsQueuePair::make(host_.device(), VerbsQueuePair::Role::kIsRead);
    if (!made || !made.value()->connect(peer)) return {};
    pair_ = std::move(made).value();
    QueuePairInfo own = pair_->info();
    own.ranges = host_.ranges();
    std::memcpy(answer_.data(), &own, sizeof own);
    return answer_;
  }

 private:
  const Host& host_;
  std::unique_ptr<VerbsQueuePair> pair_;
  std::array<std::byte, sizeof(QueuePairInfo)> answer_{};
};

Result<> Host::register_range(PeerRegion region, std::span<const std::byte> range) {
  if (range.empty()) return Unit{};
  const auto i = static_cast<std::size_t>(region);
  Result<VerbsMemory> registered =
      device_->register_memory(range.data(), range.size(), IBV_ACCESS_REMOTE_READ);
  if (!registered) return std::move(registered).error();
  memory_[i] = std::move(registered).value();
  ranges_[i] = {reinterpret_cast<std::uint64_t>(range.data()), range.size(),
                memory_[i].remote_key(), 0};
  return Unit{};
}

std::unique_ptr<VerbsEnd> Host::make_end() {
  return std::make_unique<End>(*this);
}

}  // namespace

Result<std::unique_ptr<VerbsHost>> VerbsHost::make(std::shared_ptr<VerbsDevice> device,
                                                   const PeerRanges& ranges) {
  auto host = std::make_unique<Host>(std::move(device));
  for (const PeerRegion region : {PeerRegion::kIndex, PeerRegion::kSlots}) {
    Result<> registered = host->register_range(region, ranges.of(region));
    if (!registered) return std::move(registered).error();
  }
  return std::unique_ptr<VerbsHost>(std::move(host));
}

}  // namespace radixshmem

#endif
