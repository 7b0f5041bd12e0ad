// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/directory.h"

#include <algorithm>

#include "base/memory_orders.h"

namespace radixshmem {
namespace {

constexpr std::uint32_t kNoLife = 0xffffffff;
constexpr std::size_t kRanks = 65536;

// An entry that its holder published in this generation keeps the aux bits that are not cleared.
void keep_aux(Claim& claim, std::uint32_t had, std::uint8_t generation) noexcept {
  if (generation != claim.generation) return;
  claim.aux |= had & ~std::uint32_t{claim.aux_clear};
}

DirectoryEntry entry_from(std::uint32_t tag, const Claim& claim) noexcept {
  return {tag, claim.aux, claim.rank, claim.incarnation, claim.segment, claim.parent};
}

}  // namespace

Directory::Directory(std::byte* area, std::uint32_t lines) noexcept
    : lines_(reinterpret_cast<Line*>(area)),
      line_count_(lines),
      lives_(kRanks, kNoLife),
      generations_(std::size_t{lines} * kEntriesPerLine) {}

void Directory::clear(std::uint64_t digest) noexcept {
  for (std::uint32_t i = 0; i < line_count_; ++i) {
    for (auto& word : lines_[i].words) {
      if (word.load(kRelaxed) != 0) word.store(0, kRelease);
    }
  }
  digest_ = digest;
  std::fill(lives_.begin(), lives_.end(), kNoLife);
  waiting_.clear();
  waiting_claims_ = 0;
  entries_ = 0;
}

DirectoryLine Directory::line(std::uint32_t index) const noexcept {
  DirectoryLine copy;
  for (std::size_t i = 0; i < copy.words.size(); ++i) {
    copy.words[i] = lines_[index].words[i].load(kAcquire);
  }
  return copy;
}

Directory::Survey Directory::survey(const KeyPlace& place) noexcept {
  Survey found;
  const std::array<std::uint32_t, 2> index{place.line(0, line_count_), place.line(1, line_count_)};
  for (std::uint32_t l = 0; l < (index[0] == index[1] ? 1u : 2u); ++l) {
    for (std::uint32_t i = 0; i < kEntriesPerLine; ++i) {
      Place& at = found.place[found.count++];
      at.words = &lines_[index[l]].words[2 * i];
      at.generation = &generations_[std::size_t{index[l]} * kEntriesPerLine + i];
      at.line = l;
      const std::uint64_t word = at.words[0].load(kRelaxed);
      at.entry = DirectoryEntry::unpack(word, 0);
      at.free = word == 0 || dead(at.entry);
      if (at.free) {
        ++found.free[l];
      } else if (at.entry.tag == place.tag) {
        ++found.holders;
      }
    }
  }
  return found;
}

Directory::Place* Directory::entry_of(Survey& found, std::uint32_t tag,
                                      std::uint16_t rank) noexcept {
  for (Place& at : std::span(found.place).first(found.count)) {
    if (at.entry.tag == tag && at.entry.rank == rank) return &at;
  }
  return nullptr;
}

Directory::Place* Directory::free_entry(Survey& found) noexcept {
  const std::uint32_t line = found.free[1] > found.free[0] ? 1 : 0;
  for (Place& at : std::span(found.place).first(found.count)) {
    if (at.free && at.line == line) return &at;
  }
  return nullptr;
}

Directory::Place* Directory::victim_for(Survey& found) noexcept {
  const auto places = std::span(found.place).first(found.count);
  std::uint32_t most = found.holders;
  std::uint32_t of = 0;
  for (const Place& at : places) {
    const auto same = static_cast<std::uint32_t>(
        std::count_if(places.begin(), places.end(),
                      [&](const Place& other) { return other.entry.tag == at.entry.tag; }));
    if (same > std::max(most, 1u)) {
      most = same;
      of = at.entry.tag;
    }
  }
  if (of == 0) return nullptr;
  std::uint32_t skip = random(most);
  for (Place& at : places) {
    if (at.entry.tag == of && skip-- == 0) return &at;
  }
  return nullptr;
}

void Directory::put(Place& at, std::uint32_t tag, const Claim& claim) noexcept {
  const DirectoryEntry entry = entry_from(tag, claim);
  const std::uint64_t before = at.words[0].load(kRelaxed);
  if (before == 0) ++entries_;
  *at.generation = claim.generation;
  if (before == entry.word0() && at.words[1].load(kRelaxed) == entry.word1()) return;
  at.words[0].store(0, kRelease);
  at.words[1].store(entry.word1(), kRelease);
  at.words[0].store(entry.word0(), kRelease);
}

void Directory::erase(std::atomic<std::uint64_t>* words) noexcept {
  words[0].store(0, kRelease);
  --entries_;
}

void Directory::admit(std::uint16_t rank, std::uint16_t incarnation) noexcept {
  if (admitted(rank, incarnation)) return;
  expel(rank);
  lives_[rank] = incarnation;
}

void Directory::expel(std::uint16_t rank) noexcept {
  if (lives_[rank] == kNoLife) return;
  lives_[rank] = kNoLife;
  purge_waiting(rank, {});
}

void Directory::publish(BlockHash key, Claim claim) noexcept {
  if (!admitted(claim.rank, claim.incarnation)) {
    ++counters_.refused;
    return;
  }
  ++counters_.published;
  const std::uint64_t id = key_id(key, digest_);
  const KeyPlace place = place_of_id(id);
  if (const auto waited = stop_waiting(id, claim.rank); waited) {
    keep_aux(claim, waited->aux, waited->generation);
  }
  Survey found = survey(place);
  Place* mine = entry_of(found, place.tag, claim.rank);
  if (mine != nullptr && mine->free) {  // of an earlier life: the key may be full without it
    erase(mine->words);
    found = survey(place);
    mine = nullptr;
  }
  if (mine != nullptr) {
    keep_aux(claim, mine->entry.aux, *mine->generation);
    put(*mine, place.tag, claim);
  } else if (found.holders >= kMaxHolders) {
    join_full_key(id, place.tag, found, claim);
  } else if (Place* at = free_entry(found); at != nullptr) {
    put(*at, place.tag, claim);
  } else if (Place* victim = victim_for(found); victim != nullptr) {
    ++counters_.displaced;
    put(*victim, place.tag, claim);
  } else {
    ++counters_.dropped;
  }
}

void Directory::join_full_key(std::uint64_t id, std::uint32_t tag, Survey& found,
                              Claim claim) noexcept {
  if (random(2) == 0) {
    std::uint32_t skip = random(found.holders);
    for (Place& at : std::span(found.place).first(found.count)) {
      if (at.free || at.entry.tag != tag || skip-- != 0) continue;
      const auto old =
          DirectoryEntry::unpack(at.words[0].load(kRelaxed), at.words[1].load(kRelaxed));
      const std::uint8_t generation = *at.generation;
      put(at, tag, claim);
      claim = {old.rank, old.incarnation, old.aux, old.segment, old.parent, generation, 0};
      break;
    }
  }
  wait(id, claim);
}

void Directory::wait(std::uint64_t id, const Claim& claim) noexcept {
  const auto at = waiting_.find(id);
  if (waiting_claims_ >= line_count_ ||
      (at != waiting_.end() && at->second.size() >= kMaxWaiting)) {
    ++counters_.capped;
    return;
  }
  waiting_[id].push_back(claim);
  ++waiting_claims_;
}

std::optional<Claim> Directory::stop_waiting(std::uint64_t id, std::uint16_t rank) noexcept {
  const auto at = waiting_.find(id);
  if (at == waiting_.end()) return std::nullopt;
  std::vector<Claim>& claims = at->second;
  const auto mine = std::ranges::find(claims, rank, &Claim::rank);
  if (mine == claims.end()) return std::nullopt;
  const Claim claim = *mine;
  claims.erase(mine);
  --waiting_claims_;
  if (claims.empty()) waiting_.erase(at);
  return claim;
}

void Directory::retract(BlockHash key, std::uint16_t rank, std::uint16_t incarnation) noexcept {
  if (!admitted(rank, incarnation)) {
    ++counters_.refused;
    return;
  }
  const std::uint64_t id = key_id(key, digest_);
  const KeyPlace place = place_of_id(id);
  if (stop_waiting(id, rank)) {
    ++counters_.retracted;
    return;
  }
  Survey found = survey(place);
  const Place* mine = entry_of(found, place.tag, rank);
  if (mine == nullptr) return;
  erase(mine->words);
  ++counters_.retracted;
  promote_key(id);
}

void Directory::promote(const KeyPlace& place, std::vector<Claim>& claims) noexcept {
  while (!claims.empty()) {
    Survey found = survey(place);
    Place* at = found.holders < kMaxHolders ? free_entry(found) : nullptr;
    if (at == nullptr) return;
    put(*at, place.tag, claims.back());
    claims.pop_back();
    --waiting_claims_;
    ++counters_.promoted;
  }
}

void Directory::promote_key(std::uint64_t id) noexcept {
  const auto at = waiting_.find(id);
  if (at == waiting_.end()) return;
  promote(place_of_id(id), at->second);
  if (at->second.empty()) waiting_.erase(at);
}

void Directory::purge_waiting(std::uint16_t rank, std::optional<std::uint8_t> keep) noexcept {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    waiting_claims_ -= std::erase_if(
        at->second, [&](const Claim& c) { return c.rank == rank && c.generation != keep; });
    promote(place_of_id(at->first), at->second);
    at = at->second.empty() ? waiting_.erase(at) : std::next(at);
  }
}

void Directory::drop_rank(std::uint16_t rank, std::optional<std::uint8_t> keep) noexcept {
  for (std::uint32_t i = 0; i < line_count_; ++i) {
    for (std::uint32_t e = 0; e < kEntriesPerLine; ++e) {
      auto* words = &lines_[i].words[2 * e];
      const std::uint64_t word = words[0].load(kRelaxed);
      if (word == 0 || DirectoryEntry::unpack(word, 0).rank != rank) continue;
      if (generations_[std::size_t{i} * kEntriesPerLine + e] == keep) continue;
      erase(words);
      counters_.swept += keep ? 1 : 0;
    }
  }
  purge_waiting(rank, keep);
}

std::uint32_t Directory::random(std::uint32_t below) noexcept {
  random_ += 0x9e3779b97f4a7c15u;
  return static_cast<std::uint32_t>((mix_hash(random_) >> 32) * below >> 32);
}

}  // namespace radixshmem
