// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tree/hash_table.h"

#include "base/check.h"
#include "base/memory_orders.h"

namespace radixshmem {
namespace {

constexpr int kWalkSteps = 200;

std::atomic<std::uint64_t>* empty_entry(TableLine& line) noexcept {
  for (auto& entry : line.entry) {
    if (entry.load(kRelaxed) == 0) return &entry;
  }
  return nullptr;
}

}  // namespace

SegmentId HashTable::peek(BlockHash key) const noexcept {
  const Probe p = probe(key);
  for (const auto& entry : lines_[p.line[0]].entry) {
    const std::uint64_t word = entry.load(kRelaxed);
    if (static_cast<std::uint32_t>(word >> 32) != p.tag || word == 0) continue;
    const auto segment = static_cast<SegmentId>(word);
    return segment < arena_->units() ? segment : 0;
  }
  __builtin_prefetch(&lines_[p.line[1]]);
  return 0;
}

SegmentId HashTable::find(BlockHash key, Position start) const noexcept {
  SegmentId found = 0;
  for_each_candidate(key, [&](SegmentId id) {
    if (id >= arena_->units()) return false;  // only in a damaged region
    const Segment segment = arena_->segment(id);
    if (!segment.head().live() || segment.start() != start || segment.hash(0) != key) return false;
    found = id;
    return true;
  });
  return found;
}

void HashTable::put(std::atomic<std::uint64_t>& entry, std::uint64_t word, bool logged) noexcept {
  if (logged) {
    log_->store(entry, word);
  } else {
    entry.store(word, kRelease);
  }
}

bool HashTable::put_in_line(const Probe& p, std::uint64_t word, bool logged) noexcept {
  auto* entry = empty_entry(lines_[p.line[0]]);
  if (entry == nullptr) entry = empty_entry(lines_[p.line[1]]);
  if (entry == nullptr) return false;
  put(*entry, word, logged);
  return true;
}

bool HashTable::move_one(const Probe& p, std::uint64_t word, bool logged) noexcept {
  for (const std::uint32_t l : p.line) {
    for (auto& entry : lines_[l].entry) {
      const std::uint64_t resident = entry.load(kRelaxed);
      const Probe home = probe(key_of(resident));
      const std::uint32_t other = home.line[0] == l ? home.line[1] : home.line[0];
      auto* empty = empty_entry(lines_[other]);
      if (empty == nullptr || other == l) continue;
      put(*empty, resident, logged);
      if (logged) fault_point(FaultPoint::segment_table_move);
      put(entry, word, logged);
      return true;
    }
  }
  return false;
}

bool HashTable::insert(BlockHash key, SegmentId segment, bool logged) noexcept {
  std::uint64_t word = std::uint64_t{probe(key).tag} << 32 | segment;
  Probe p = probe(key);
  if (put_in_line(p, word, logged)) return true;
  // A rebuild holds the sequence odd by itself.
  if (logged) begin_move();
  bool placed = false;
  std::uint64_t dice = mix_hash(key ^ segment);
  for (int step = 0; step < kWalkSteps && !placed; ++step) {
    work_->table_moves.fetch_add(1, kRelaxed);
    placed = put_in_line(p, word, logged) || move_one(p, word, logged);
    if (placed) break;
    // Both lines and all their neighbours are full: displace one at random and place that.
    auto& entry = lines_[p.line[dice & 1]].entry[(dice >> 1) & 7];
    dice = mix_hash(dice + 1);
    const std::uint64_t displaced = entry.load(kRelaxed);
    put(entry, word, logged);
    word = displaced;
    p = probe(key_of(word));
  }
  if (logged && placed) end_move();
  return placed;  // if not placed the caller undoes the log and ends the move
}

void HashTable::erase(BlockHash key, SegmentId segment) noexcept {
  const Probe p = probe(key);
  for (const std::uint32_t l : p.line) {
    for (auto& entry : lines_[l].entry) {
      if (static_cast<SegmentId>(entry.load(kRelaxed)) != segment) continue;
      log_->store(entry, 0);
      return;
    }
  }
}

void HashTable::grow() noexcept {
  const std::uint32_t old_lines = lines_in_use();
  const std::uint32_t old_mask = old_lines - 1;
  const std::uint32_t new_mask = old_lines * 2 - 1;
  begin_move();
  fault_point(FaultPoint::table_grow_begin);
  root_->line_mask.store(new_mask, kRelease);
  for (std::uint32_t l = 0; l < old_lines; ++l) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      auto& upper = lines_[l + old_lines].entry[i];
      upper.store(0, kRelease);  // nobody has looked at it yet: what it holds may be damage
      const std::uint64_t word = lines_[l].entry[i].load(kRelaxed);
      if (word == 0) continue;
      const Probe p = table_probe(key_of(word), new_mask);
      const std::uint32_t home = (p.line[0] & old_mask) == l ? p.line[0] : p.line[1];
      if (home == l) continue;
      upper.store(word, kRelease);
      lines_[l].entry[i].store(0, kRelease);
    }
    if (l == old_lines / 2) fault_point(FaultPoint::table_grow_middle);
  }
  end_move();
  work_->table_growths.fetch_add(1, kRelaxed);
}

void HashTable::clear() noexcept {
  const std::uint32_t lines = lines_in_use();
  for (std::uint32_t l = 0; l < lines; ++l) {
    for (auto& entry : lines_[l].entry) entry.store(0, kRelease);
  }
}

}  // namespace radixshmem
