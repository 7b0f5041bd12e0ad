// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bench/simulation/node.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "directory/peer_info.h"

namespace radixshmem::bench {
namespace {

constexpr ClientId kClient = 1;
constexpr std::uint32_t kGroup = 1;

HeaderView view_of(const IndexPlan& plan) {
  auto layout = IndexLayout::from_plan(plan);
  RADIX_CHECK(layout.ok(), plan.slots[0]);
  return {plan, std::move(layout).value()};
}

}  // namespace

IndexPlan plan_of(std::uint32_t slots, std::uint64_t directory_bytes, std::uint32_t ring_entries) {
  IndexPlan plan;
  plan.block_size = kBlockTokens;
  plan.slots[static_cast<std::size_t>(Component::kFull)] = slots;
  plan.directory_bytes = directory_bytes;
  plan.max_clients = 1;
  plan.max_pins = 16;
  plan.ring_entries = ring_entries;
  return plan;
}

Pages::Pages(std::uint64_t bytes) : bytes_(bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  RADIX_CHECK(at != MAP_FAILED, bytes);
  base_ = static_cast<std::byte*>(at);
}

Pages::~Pages() {
  ::munmap(base_, bytes_);
}

Node::Node(const IndexPlan& plan)
    : memory_(view_of(plan).layout.region_bytes),
      view_(view_of(plan)),
      tree_(memory_.base(), view_) {
  write_header(base(), view_.plan, view_.layout, kIncarnation);
  tree_.init();
  tree_.clients().claim(kClient, kGroup, 1);
  tree_.clients().entry(kClient).pin_high_water.store(1);
  publish_header(base());
}

PeerInfo Node::info(Rank rank) const noexcept {
  PeerInfo info = peer_info_of(tree_);
  info.rank = rank;
  info.state = PeerState::kLive;
  return info;
}

Position Node::hit(std::span<const BlockHash> path) {
  static thread_local std::vector<std::int32_t> slots;  // nobody looks at them
  slots.resize(std::max(slots.size(), path.size()));
  RADIX_CHECK(tree_.match(path, nullptr, slots.data(), match_), path.size());
  return match_.end;
}

bool Node::store(std::span<const BlockHash> path) {
  const Position have = hit(path);
  if (have == path.size()) return true;
  auto& pin = tree_.clients().pin(kClient, 0);
  if (have != 0) {  // what is being made room for must not be evicted itself
    tree_.touch(match_, {});
    const MatchStep& last = match_.steps.back();
    pin.store(PinWord{last.segment, last.count, kMaskFull}.pack());
  }
  std::vector<SlotId> ids(path.size() - have);
  ids.resize(tree_.allocate(Component::kFull, ids, kClient));
  std::vector<std::int32_t> slots(ids.begin(), ids.end());
  const std::size_t end = have + slots.size();
  const InsertOutcome outcome = tree_.insert(path.first(end), std::move(slots), have, kGroup);
  pin.store(0);
  const bool full = outcome.error == ErrorCode::MEMPOOL_FULL;
  RADIX_CHECK(full || outcome.error == ErrorCode::OK, static_cast<int>(outcome.error));
  tree_.recycle(Component::kFull, outcome.unused);
  return !full;
}

}  // namespace radixshmem::bench
