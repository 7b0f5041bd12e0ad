// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// SWA and MAMBA slots along a matched path: the deepest windows of it, or all that there are.
#include <algorithm>

#include "base/memory_orders.h"
#include "tree/tree.h"

namespace radixshmem {
namespace {

// Reads aux words of a matched path. The side id of a step is loaded at its first use, with those
// of all steps behind it, and kept: validate() looks whether it is still the same.
class AuxReader final {
 public:
  AuxReader(Match& match, const PageArena& arena, const SidePool& sides) noexcept
      : match_(match), arena_(arena), sides_(sides), known_side_(match.steps.size()) {
    to_the_end();
  }

  // The next reads are near the end of the path, which may have been shortened.
  void to_the_end() noexcept { at_step_ = match_.steps.empty() ? 0 : match_.steps.size() - 1; }
  // Requires: position < match.end.
  [[nodiscard]] AuxRead read(Position position, std::uint32_t pool) noexcept {
    while (match_.steps[at_step_].start > position) --at_step_;
    while (position >= match_.steps[at_step_].start + match_.steps[at_step_].count) ++at_step_;
    for (; known_side_ > at_step_; --known_side_) {
      MatchStep& step = match_.steps[known_side_ - 1];
      const SideId side = arena_.header(step.segment)->side.load(kAcquire);
      step.side = side < sides_.size() ? side : 0;
      reader_point(ReaderPoint::kSideLoaded);
    }
    const MatchStep& step = match_.steps[at_step_];
    const std::uint32_t entry = position - step.start;
    const std::uint64_t word =
        step.side != 0 ? sides_.word(step.side, pool, entry).load(kAcquire) : 0;
    return {static_cast<std::uint32_t>(at_step_), pool, entry, word};
  }

 private:
  Match& match_;
  const PageArena& arena_;
  const SidePool& sides_;
  std::size_t known_side_;  // steps from here on have their side id loaded
  std::size_t at_step_ = 0;
};

}  // namespace

void Tree::window(std::uint32_t mask, Match& match, Window& out) const {
  out = Window{};
  const bool want_swa = (mask & kMaskSwa) != 0;
  const bool want_mamba = (mask & kMaskMamba) != 0;
  const std::uint32_t w = plan_.swa_window_blocks;
  const std::uint32_t swa = aux_index(Component::kSwa);
  const std::uint32_t mamba = aux_index(Component::kMamba);

  AuxReader reader(match, arena_, sides_);
  Position n = match.end;
  Position first = n;
  while (n > 0) {
    if (want_mamba && !AuxWord::present(reader.read(n - 1, mamba).word)) {
      --n;
      continue;
    }
    if (!want_swa) break;
    const std::uint32_t need = std::min(w, n);
    first = n;
    while (n - first < need && AuxWord::present(reader.read(first - 1, swa).word)) --first;
    if (n - first == need) break;
    n = first - 1;  // block first - 1 has no slot, so no window may hold it
  }
  match.end = n;
  while (!match.steps.empty() && match.steps.back().start >= n) match.steps.pop_back();
  if (n == 0) return;
  match.steps.back().count = n - match.steps.back().start;
  reader.to_the_end();
  out.first_step = static_cast<std::uint32_t>(match.steps.size() - 1);
  if (want_swa) {
    out.swa_start = n - std::min(w, n);
    for (Position p = out.swa_start; p < n; ++p) {
      out.reads.push_back(reader.read(p, swa));
      out.swa_slots.push_back(static_cast<std::int32_t>(AuxWord::slot(out.reads.back().word)));
      if (p == out.swa_start) out.first_step = out.reads.back().step;
    }
  }
  if (want_mamba) {
    out.reads.push_back(reader.read(n - 1, mamba));
    out.mamba = AuxWord::slot(out.reads.back().word);
  }
}

void Tree::aux_slots(Component c, Position from, Match& match, Window& out) const {
  out = Window{};
  if (from >= match.end) return;
  const std::uint32_t pool = aux_index(c);
  out.aux_slots.reserve(match.end - from);
  AuxReader reader(match, arena_, sides_);
  for (Position p = from; p < match.end; ++p) {
    const AuxRead read = reader.read(p, pool);
    if (!AuxWord::present(read.word)) {
      out.aux_slots.push_back(-1);
      continue;
    }
    if (out.reads.empty()) out.first_step = read.step;
    out.reads.push_back(read);
    out.aux_slots.push_back(static_cast<std::int32_t>(AuxWord::slot(read.word)));
  }
}

}  // namespace radixshmem
