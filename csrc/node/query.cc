// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Queries: match without a lock, then make the answer hold.
//
//   P0  take entries of the own pin table, raise its high water mark if needed
//   P1  store the pin(s) (seq_cst)       P2/P3  validate every version that was used (seq_cst)
//   P4  all equal: pinned, touch. Else empty the pins and match again, at most 8 times: then a miss
//
// Every segment of the path is validated, not the deepest alone: between reading an ancestor and
// its child the path may have gone and come back with other slots. The deepest pin protects all
// ancestors, since only tails of leaves are evicted; aux slots need a pin in each segment from the
// first that holds one on. Killed anywhere in between: a pin too many, until the reaper clears the
// table.
#include <algorithm>
#include <utility>

#include "node/call.h"

namespace radixshmem {
namespace {

constexpr int kPinAttempts = 8;

Hit no_answer(const QueryOptions& options, ErrorCode status) noexcept {
  Hit hit;
  hit.status = status;
  hit.mask = options.mask;
  return hit;
}

}  // namespace

Hit::Hit(Hit&& other) noexcept
    : status(other.status),
      mask(other.mask),
      blocks(other.blocks),
      rank(other.rank),
      full_slots(std::move(other.full_slots)),
      full_count(other.full_count),
      window(std::move(other.window)),
      cursor(other.cursor),
      session_(std::move(other.session_)),
      match_(std::move(other.match_)),
      pins_(std::move(other.pins_)),
      pinned_(other.pinned_.exchange(false)) {}

void Hit::finalize() noexcept {
  if (!pinned_.exchange(false, std::memory_order_acq_rel)) return;
  const Session::Call call(*session_);
  if (call.mapped()) session_->clear_pins(*this);
}

bool Hit::validate() const noexcept {
  if (!session_) return true;  // a miss rests on nothing
  const Session::Call call(*session_);
  if (!call) return false;
#if !defined(__SANITIZE_THREAD__)
  // The caller has just copied bytes with plain loads: they must not sink below the versions.
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  if (pinned()) return session_->tree_->stands(match_);
  return session_->tree_->validate(match_, window);
}

bool Session::publish_pins(Hit& hit) {
  const Match& match = hit.match_;
  const std::size_t last = match.steps.size() - 1;
  std::size_t first = hit.window.reads.empty() ? last : hit.window.first_step;
  if (mutant(Mutant::kAuxPinDeepestOnly)) first = last;
  hit.pins_.resize(last - first + 1);
  if (!pins_->reserve(hit.pins_)) {
    hit.pins_.clear();
    return false;
  }
  reader_point(ReaderPoint::kBeforePin);
  for (std::size_t i = first; i <= last; ++i) {
    const MatchStep& step = match.steps[i];
    auto& pin = tree_->clients().pin(self_, hit.pins_[i - first]);
    const std::uint64_t word = PinWord{step.segment, step.count, hit.mask | kMaskFull}.pack();
    if (mutant(Mutant::kNoPinFence)) {
      pin.store(word, std::memory_order_release);
      continue;
    }
    pin.store(word, std::memory_order_seq_cst);
  }
  fault_point(FaultPoint::pin_published);
  return true;
}

void Session::clear_pins(Hit& hit) noexcept {
  for (const std::uint32_t index : hit.pins_) {
    tree_->clients().pin(self_, index).store(0, std::memory_order_release);
  }
  pins_->give_back(hit.pins_);
  hit.pins_.clear();
}

void Session::finish_query(Hit& hit, std::size_t asked, const QueryOptions& options) noexcept {
  const Match& match = hit.match_;
  if (const auto own = peer_table_.own()) hit.rank = own->rank;
  if (hit.blocks != 0 && options.update_recency && !read_only()) {
    tree_->touch(match, hit.window);
  }
  if (!match.steps.empty()) {
    const MatchStep& deepest = match.steps.back();
    hit.cursor =
        CursorPoint{deepest.segment, deepest.count, deepest.version, match.end, incarnation_};
  }
  count(Counter::kQueries, 1);
  count(Counter::kQueriedBlocks, asked);
  count(Counter::kHitBlocks, hit.blocks);
  count(Counter::kMissedBlocks, asked - hit.blocks);
}

Hit Session::find(std::span<const BlockHash> hashes, const CursorPoint* from,
                  const QueryOptions& options) {
  Hit hit;
  hit.mask = options.mask;
  hit.full_slots = std::make_unique_for_overwrite<std::int32_t[]>(hashes.size());
  const bool windowed = (options.mask & ~kMaskFull) != 0;
  Match& match = hit.match_;
  match.steps.reserve(hashes.size() / tree_->segment_blocks() + 4);
  for (int attempt = 0; attempt < kPinAttempts; ++attempt) {
    if (!tree_->match(hashes, from, hit.full_slots.get(), match)) break;
    count(Counter::kRestarts, match.restarts);
    if (match.end != 0 && options.aux_from) {
      const auto c = options.mask == kMaskSwa ? Component::kSwa : Component::kMamba;
      tree_->aux_slots(c, *options.aux_from, match, hit.window);
    } else if (match.end != 0 && windowed) {
      tree_->window(options.mask, match, hit.window);
    }
    if (match.end == 0) break;
    if (options.lock && !publish_pins(hit)) {
      count(Counter::kPinsFull, 1);
      hit.status = ErrorCode::PINS_FULL;
      match.steps.clear();
      hit.window = Window{};
      return hit;
    }
    const bool holds = tree_->validate(match, hit.window);
    reader_point(ReaderPoint::kValidated);
    if (options.lock && mutant(Mutant::kHighWaterAfterValidate)) {
      for (const std::uint32_t index : hit.pins_) {
        auto& mark = tree_->clients().entry(self_).pin_high_water;
        if (index >= mark.load()) mark.store(index + 1);
      }
    }
    if (holds) {
      fault_point(FaultPoint::pin_valid);
      hit.session_ = shared_from_this();
      hit.pinned_ = options.lock;
      hit.blocks = match.end - (from != nullptr ? from->position : 0);
      if ((options.mask & kMaskFull) != 0) hit.full_count = hit.blocks;
      finish_query(hit, hashes.size(), options);
      return hit;
    }
    if (options.lock) clear_pins(hit);
    hit.window = Window{};
    count(Counter::kRestarts, 1);
    match.gave_up = attempt + 1 == kPinAttempts;
  }
  if (from != nullptr) {
    hit.status = ErrorCode::CURSOR_STALE;
  } else if (match.gave_up) {
    count(Counter::kGaveUp, 1);
  }
  match.steps.clear();
  finish_query(hit, hashes.size(), options);
  return hit;
}

Result<Hit> Session::query(std::span<const BlockHash> hashes, const QueryOptions& options) {
  const Call call(*this);
  if (!call) return refusal(call.code());
  if (options.lock) {
    if (auto writable = require_writable("a query with lock=True"); !writable)
      return writable.error();
  }
  const bool known = options.mask != 0 && options.mask <= (kMaskFull | kMaskSwa | kMaskMamba);
  const bool swa_missing = (options.mask & kMaskSwa) != 0 && !tree_->enabled(Component::kSwa);
  const bool mamba_missing = (options.mask & kMaskMamba) != 0 && !tree_->enabled(Component::kMamba);
  const bool one_aux = options.mask == kMaskSwa || options.mask == kMaskMamba;
  if (!known || swa_missing || mamba_missing || (options.aux_from && !one_aux)) {
    return no_answer(options, ErrorCode::BAD_REQUEST);
  }
  return find(hashes, nullptr, options);
}

Result<Hit> Session::extend(const CursorPoint& cursor, std::span<const BlockHash> hashes,
                            const QueryOptions& options) {
  const Call call(*this);
  if (!call) return refusal(call.code());
  if (options.lock) {
    if (auto writable = require_writable("extend(lock=True)"); !writable) return writable.error();
  }
  if (options.mask != kMaskFull) return no_answer(options, ErrorCode::BAD_REQUEST);
  if (cursor.incarnation != incarnation_) return no_answer(options, ErrorCode::CURSOR_STALE);
  return find(hashes, &cursor, options);
}

}  // namespace radixshmem
