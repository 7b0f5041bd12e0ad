// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/verbs_library.h"

#if RADIX_HAVE_VERBS

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "transport/verbs_queue_pair.h"

namespace radixshmem {
namespace {

// A device, and the memory as it is registered with it.
struct Rail {
  std::shared_ptr<VerbsDevice> device;
  std::array<VerbsMemory, 2> memory;
  std::array<VerbsRange, 2> ranges{};
};

Result<> register_range(Rail& rail, PeerRegion region, std::span<const std::byte> range) {
  if (range.empty()) return Unit{};
  Result<VerbsMemory> registered =
      rail.device->register_memory(range.data(), range.size(), IBV_ACCESS_REMOTE_READ);
  if (!registered) return std::move(registered).error();
  const auto i = static_cast<std::size_t>(region);
  rail.memory[i] = std::move(registered).value();
  rail.ranges[i] = {reinterpret_cast<std::uint64_t>(range.data()), range.size(),
                    rail.memory[i].remote_key(), 0};
  return Unit{};
}

class End final : public VerbsEnd {
 public:
  explicit End(std::span<const Rail> rails) : rails_(rails) {}

  [[nodiscard]] std::span<const std::byte> connect(
      std::span<const std::byte> request) noexcept override {
    QueuePairInfo peer{};
    if (!parse_verbs_info(request, peer)) return {};
    pair_.reset();
    const Rail& rail = rails_[peer.rail % rails_.size()];
    auto made = VerbsQueuePair::make(rail.device, VerbsQueuePair::Role::kIsRead);
    if (!made || !made.value()->connect(peer)) return {};
    pair_ = std::move(made).value();
    QueuePairInfo own = pair_->info();
    own.rail = peer.rail;
    own.ranges = rail.ranges;
    std::memcpy(answer_.data(), &own, sizeof own);
    return answer_;
  }

 private:
  std::span<const Rail> rails_;
  std::unique_ptr<VerbsQueuePair> pair_;
  std::array<std::byte, sizeof(QueuePairInfo)> answer_{};
};

class Host final : public VerbsHost {
 public:
  explicit Host(std::vector<Rail> rails) : rails_(std::move(rails)) {}
  [[nodiscard]] std::unique_ptr<VerbsEnd> make_end() override {
    return std::make_unique<End>(rails_);
  }

 private:
  std::vector<Rail> rails_;
};

}  // namespace

Result<std::unique_ptr<VerbsHost>> VerbsHost::make(
    std::span<const std::shared_ptr<VerbsDevice>> devices, const PeerRanges& ranges) {
  RADIX_CHECK(!devices.empty(), 0);
  std::vector<Rail> rails;
  for (const auto& device : devices) {
    Rail& rail = rails.emplace_back();
    rail.device = device;
    for (const PeerRegion region : {PeerRegion::kIndex, PeerRegion::kSlots}) {
      Result<> registered = register_range(rail, region, ranges.of(region));
      if (!registered) return std::move(registered).error();
    }
  }
  return std::unique_ptr<VerbsHost>(new Host(std::move(rails)));
}

}  // namespace radixshmem

#endif
