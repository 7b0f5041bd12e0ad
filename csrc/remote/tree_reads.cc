// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "remote/tree_reads.h"

#include <algorithm>
#include <cstring>

#include "tree/hash_table.h"

namespace radixshmem {
namespace {

constexpr std::uint32_t kLargestClass = kSizeClasses - 1;
// Of one table line: more than one entry with the right 32 bits is hardly ever honest.
constexpr std::uint32_t kMaxFoundPerLine = 2;

}  // namespace

void TreeReads::want(Rank rank, SegmentRef segment) {
  if (segment.id != 0) wants_.push_back({rank, segment});
}

void TreeReads::probe(Rank rank, Position position) {
  probes_.push_back({rank, position});
}

void TreeReads::forget_known() {
  const auto less = [](const Want& a, const Want& b) { return a.key() < b.key(); };
  const auto same = [](const Want& a, const Want& b) { return a.key() == b.key(); };
  std::stable_sort(wants_.begin(), wants_.end(), less);
  wants_.erase(std::unique(wants_.begin(), wants_.end(), same), wants_.end());
  std::erase_if(wants_, [&](const Want& want) {
    return std::binary_search(known_.begin(), known_.end(), want.key());
  });
}

void TreeReads::plan_segments(std::vector<LookupTurn::Read>& reads) {
  const auto& units = cover_.classes().units;
  std::erase_if(wants_, [&](const Want& want) {
    const PeerInfo* peer = turn_.readable(want.rank);
    if (peer == nullptr) return true;
    const std::uint32_t least = want.segment.size_class == 0 ? 1 : units[want.segment.size_class];
    const bool inside =
        want.segment.id < peer->arena_units && least <= peer->arena_units - want.segment.id;
    if (!inside) {
      ++figures_.stale_entries;
      return true;
    }
    const std::uint32_t most = want.segment.size_class == 0 ? units[kLargestClass] : least;
    const std::uint32_t read = std::min(most, peer->arena_units - want.segment.id);
    reads.push_back(
        {want.rank,
         {PeerRegion::kIndex, peer->arena_offset + std::uint64_t{want.segment.id} * kUnitBytes,
          read * kUnitBytes, nullptr}});
    return false;
  });
}

void TreeReads::plan_lines(std::vector<LookupTurn::Read>& reads) {
  std::erase_if(probes_, [&](const Probe& probe) {
    const PeerInfo* peer = turn_.readable(probe.rank);
    if (peer == nullptr) return true;
    const TableProbe where = table_probe(cover_.path()[probe.position], peer->table_lines - 1);
    for (const std::uint32_t line : where.line) {
      reads.push_back({probe.rank,
                       {PeerRegion::kIndex, peer->table_offset + std::uint64_t{line} * kCacheLine,
                        kCacheLine, nullptr}});
    }
    return false;
  });
}

bool TreeReads::run() {
  found_.clear();
  forget_known();
  std::vector<LookupTurn::Read> reads;
  plan_segments(reads);
  plan_lines(reads);
  std::uint64_t total = 0;
  for (const auto& read : reads) total += read.op.length;
  bytes_.resize(total);
  std::byte* to = bytes_.data();
  for (auto& read : reads) {
    read.op.to = to;
    to += read.op.length;
  }
  const bool made = !reads.empty() && turn_.run(reads);
  for (std::size_t i = 0; made && i < wants_.size(); ++i) {
    const Want& want = wants_[i];
    if (!reads[i].done) continue;
    if (!cover_.add(want.rank, want.segment.id, {reads[i].op.to, reads[i].op.length}) &&
        want.segment.size_class != 0) {
      ++figures_.stale_entries;
    }
    known_.push_back(want.key());
  }
  std::sort(known_.begin(), known_.end());
  for (std::size_t i = 0; made && i < 2 * probes_.size(); ++i) {
    const auto& read = reads[wants_.size() + i];
    if (read.done) look_into_line(probes_[i / 2], {read.op.to, read.op.length});
  }
  wants_.clear();
  probes_.clear();
  return made;
}

void TreeReads::look_into_line(const Probe& probe, std::span<const std::byte> line) {
  const std::uint32_t tag = table_probe(cover_.path()[probe.position], 0).tag;
  std::uint32_t kept = 0;
  for (std::size_t at = 0; at < line.size() && kept < kMaxFoundPerLine;
       at += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, line.data() + at, sizeof word);
    const auto segment = static_cast<SegmentId>(word);
    if (segment == 0 || static_cast<std::uint32_t>(word >> 32) != tag) continue;
    found_.push_back({probe.rank, probe.position, segment});
    ++kept;
  }
}

}  // namespace radixshmem
