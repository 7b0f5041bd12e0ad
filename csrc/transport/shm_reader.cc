// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/shm_reader.h"

#include <cstring>
#include <optional>
#include <utility>

#include "layout/region_header.h"
#include "layout/slot_store_header.h"
#include "shm/shared_region.h"
#include "shm/stream_copy.h"
#include "transport/racing_copy.h"

namespace radixshmem {
namespace {

// Less than kStreamTotalBytes: of slots that are read and written neither are likely in a cache.
constexpr std::uint64_t kLargeBytes = std::uint64_t{2} << 20;

struct Slots {
  SharedRegion region;
  std::span<const std::byte> data;
};

Error not_this_peer(const std::string& name, const char* what, std::uint64_t here,
                    std::uint64_t wanted) {
  return Error{ErrorCode::NOT_READY,
               "region " + name + " on this host has " + what + " " + std::to_string(here) +
                   ", the peer's has " + std::to_string(wanted) +
                   ": it is another server's, or an earlier life of the peer"};
}

Result<std::optional<Slots>> open_slots(const ShmPeer& peer) {
  if (peer.data_name.empty()) return std::optional<Slots>();
  Result<SharedRegion> region =
      SharedRegion::open(peer.data_name, /*read_only=*/true, peer.data_hugepage_path);
  if (!region) return std::move(region).error();
  const std::span<const std::byte> all{region.value().base(), region.value().bytes()};
  const Result<StoreLayout> layout = read_store_header(peer.data_name, all);
  if (!layout) return layout.error();
  if (layout.value().nonce != peer.nonce) {
    return not_this_peer(peer.data_name, "nonce", layout.value().nonce, peer.nonce);
  }
  const auto data = all.subspan(layout.value().data_offset, layout.value().data_bytes);
  return std::optional<Slots>(Slots{std::move(region).value(), data});
}

class MappedReader final : public PeerReader {
 public:
  MappedReader(SharedRegion index, std::uint64_t readable_bytes, std::uint64_t incarnation,
               std::optional<Slots> slots)
      : index_(std::move(index)),
        readable_bytes_(readable_bytes),
        incarnation_(incarnation),
        slots_(std::move(slots)) {}

  [[nodiscard]] TransportKind kind() const noexcept override { return TransportKind::kShm; }
  [[nodiscard]] bool post(std::span<const ReadOp> ops) noexcept override {
    const std::uint64_t bytes = batch_bytes(ops);
    if (broken_ || bytes == 0) return false;
    const bool large = bytes >= kLargeBytes;
    broken_ = !same_life();
    for (const ReadOp& op : ops) {
      broken_ = broken_ || !copy(op, large);
    }
    return true;
  }
  [[nodiscard]] Progress poll() noexcept override {
    return broken_ ? Progress::kFailed : Progress::kDone;
  }
  void abandon() noexcept override {}
  [[nodiscard]] bool broken() const noexcept override { return broken_; }

 private:
  [[nodiscard]] bool same_life() const noexcept {
    const auto& header = *reinterpret_cast<const RegionHeader*>(index_.base());
    return region_state(index_.base()) == RegionState::kReady &&
           header.incarnation.load(std::memory_order_acquire) == incarnation_;
  }
  // Returns: false when the read is not within its region.
  [[nodiscard]] bool copy(const ReadOp& op, bool large) const noexcept {
    const bool of_slots = op.region == PeerRegion::kSlots;
    std::span<const std::byte> from{index_.base(), readable_bytes_};
    if (of_slots) from = slots_ ? slots_->data : std::span<const std::byte>();
    if (op.offset > from.size() || op.length > from.size() - op.offset) return false;
    from = from.subspan(op.offset, op.length);
    if (!of_slots) {
      racing_copy(op.to, from.data(), from.size());
    } else if (large && op.length >= kStreamFragmentBytes) {
      stream_copy(op.to, from.data(), from.size());
    } else {
      std::memcpy(op.to, from.data(), from.size());
    }
    return true;
  }

  SharedRegion index_;
  std::uint64_t readable_bytes_;
  std::uint64_t incarnation_;
  std::optional<Slots> slots_;
  bool broken_ = false;
};

}  // namespace

Result<std::unique_ptr<PeerReader>> ShmReader::open(const ShmPeer& peer) {
  Result<SharedRegion> region = SharedRegion::open(peer.index_name, /*read_only=*/true);
  if (!region) return std::move(region).error();
  SharedRegion& index = region.value();
  const Result<HeaderView> view = read_header({index.base(), index.bytes()}, peer.index_name);
  if (!view) return view.error();
  const std::uint64_t incarnation = reinterpret_cast<const RegionHeader*>(index.base())
                                        ->incarnation.load(std::memory_order_acquire);
  if (incarnation != peer.incarnation) {
    return not_this_peer(peer.index_name, "incarnation", incarnation, peer.incarnation);
  }
  Result<std::optional<Slots>> slots = open_slots(peer);
  if (!slots) return std::move(slots).error();
  return std::unique_ptr<PeerReader>(new MappedReader(std::move(index),
                                                      view.value().layout.peer_readable_bytes,
                                                      incarnation, std::move(slots).value()));
}

}  // namespace radixshmem
