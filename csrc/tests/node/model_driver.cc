// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tests/node/model_driver.h"

namespace radixshmem {
namespace {

constexpr std::uint64_t kOperationsPerCheck = 500;
constexpr std::size_t kFewPins = 24;
constexpr std::size_t kManyPins = 400;  // more than the sessions have

std::uint64_t digest(std::uint64_t parent, std::uint64_t token) {
  return mix_hash(parent * 0x9e3779b97f4a7c15u + token + 1);
}

}  // namespace

ModelDriver::ModelDriver(const IndexPlan& plan, const DriverOptions& options)
    : rig_(plan), options_(options), random_(options.seed), model_(plan.swa_window_blocks) {
  for (std::size_t i = 0; i < kSessions; ++i) {
    sessions_.push_back(rig_.attach(group_of(i) == 0 ? "engine" : ""));
  }
  events_cursor_ = rig_.own().tree().ring().at_head();
}

void ModelDriver::fail(const std::string& what) {
  if (!failed_) {
    ADD_FAILURE() << what << " (seed " << options_.seed << ", operation " << operation_ << ")";
  }
  failed_ = true;
}

// Chained hashes of made-up tokens: one of a few trunks, left at some block for one of a few tails.
Path ModelDriver::random_path() {
  const std::uint32_t s = rig_.own().tree().segment_blocks();
  const std::uint64_t trunk = below(options_.trunks);
  std::uint32_t length = 1 + below(options_.longest_path);
  std::uint32_t leave = below(4) == 0 ? below(length + 1) : s * below(length / s + 1) + below(3);
  std::uint64_t tail = 1 + below(4);
  if (options_.wide && below(100) != 0) {
    leave = s;
    length = s + 1;
    tail = 1 + below(20'000);
  }
  Path path;
  std::uint64_t h = digest(0, trunk);
  for (std::uint32_t p = 0; p < length; ++p) {
    h = digest(h, p < leave ? p : p + 1000 * tail);
    path.push_back(h);
  }
  return path;
}

std::uint32_t ModelDriver::held_total(Component c) const {
  std::size_t n = 0;
  for (const auto& group : held_) n += group[static_cast<std::size_t>(c)].size();
  return static_cast<std::uint32_t>(n);
}

std::vector<ModelDriver::Held> ModelDriver::take_held(std::size_t session, Component c,
                                                      std::size_t n) {
  auto& from = held(session, c);
  std::vector<Held> out;
  while (out.size() < n && !from.empty()) {
    const std::size_t at = below(static_cast<std::uint32_t>(from.size()));
    out.push_back(from[at]);
    from[at] = from.back();
    from.pop_back();
  }
  return out;
}

void ModelDriver::put_back(std::size_t session, Component c, const std::vector<Held>& slots) {
  auto& to = held(session, c);
  to.insert(to.end(), slots.begin(), slots.end());
}

std::uint32_t ModelDriver::free_now(Component c) {
  if (zombies_) {
    ++seen_.zombie_calls;
    const std::uint32_t free = free_slots(sessions_[0], c);  // sweeps
    if (zombie_pins_ == 0) zombies_ = false;
    return free;
  }
  return rig_.plan().slots[static_cast<std::size_t>(c)] - held_total(c) - model_.attached(c);
}

void ModelDriver::expect_counts(const char* call) {
  for (const Component c : kAll) {
    const auto k = static_cast<std::size_t>(c);
    const std::uint32_t used = held_total(c) + model_.attached(c);
    const std::uint32_t free = rig_.own().tree().pool(c).free_count();
    if (zombies_ ? free + used > rig_.plan().slots[k] : free + used != rig_.plan().slots[k]) {
      fail(std::string(call) + ": component " + std::to_string(k) + " has " + std::to_string(free) +
           " free slots, " + std::to_string(used) + " are used");
    }
  }
}

void ModelDriver::fetch_events() {
  std::array<Change, 256> changes;
  for (;;) {
    bool resync = false;
    const std::size_t got = rig_.own().tree().ring().drain(events_cursor_, changes, resync);
    if (resync) fail("a resync was demanded");
    events_.insert(events_.end(), changes.begin(),
                   changes.begin() + static_cast<std::ptrdiff_t>(got));
    if (got == 0) return;
  }
}

void ModelDriver::apply_removals() {
  while (!events_.empty() && events_.front().kind == ChangeKind::kRemoved) {
    const std::string wrong = model_.remove(events_.front());
    if (!wrong.empty()) fail(wrong);
    ++(events_.front().component == Component::kFull ? seen_.evicted : seen_.aux_evicted);
    events_.pop_front();
  }
  const std::string wrong = model_.end_of_batch();
  if (!wrong.empty()) fail(wrong);
}

void ModelDriver::expect_no_events() {
  fetch_events();
  if (!events_.empty()) fail("an unexpected change event");
}

void ModelDriver::step() {
  const std::uint32_t dice = below(1000);
  if (dice < 50) return do_query_aux(kAll[1 + below(2)]);
  if (dice < 330) return do_query();
  if (dice < 420) return most_pinned_ == kManyPins ? do_query() : do_finalize();
  if (dice < 460) return do_extend();
  if (dice < 480) return do_validate();
  if (dice < 680) return do_allocate();
  if (dice < 860) return do_insert();
  if (dice < 940) return do_insert_aux();
  if (dice < 960) return do_bad_request();
  if (dice < 985) return do_recycle();
  if (dice < 998) return do_evict();
  if (below(options_.wide ? 40 : 4) != 0) return do_reattach();
  do_reset();
}

bool ModelDriver::run(std::uint64_t operations) {
  for (const std::uint64_t end = operation_ + operations; operation_ < end && !failed_;) {
    ++operation_;
    step();
    expect_counts("after a call");
    if (operation_ % kOperationsPerCheck != 0 || failed_) continue;
    ++seen_.checks;
    if (below(10) == 0) most_pinned_ = below(4) == 0 ? kManyPins : kFewPins;
    const std::string wrong = problems(sessions_[0]);
    if (!wrong.empty()) fail(wrong);
    const auto blocks = ServerRig::take(sessions_[0]->total_blocks());
    if (blocks != model_.attached(Component::kFull)) fail("total_blocks");
  }
  return !failed_;
}

}  // namespace radixshmem
