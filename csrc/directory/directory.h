// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One node's part of the directory: the area kDirectory of its own region, and what belongs to it
// but is not for others to read.
//
//   lines     DirectoryLine[lines]      directory_words.h; read by peers at any time
//   waiting   of keys with more holders than the lines take: 16 each, in private memory
//   generations   u8[entries], in private memory: when its holder published an entry last
//
// An entry is free when it is empty or names a life of a rank that is over. A new holder of a key
// takes, in this order: its own older entry; with 4 holders in the lines, every second time the
// place of one of them, who then waits, or else waits itself; a free entry, in the emptier line;
// with both lines full the place of a holder of whichever key has the most there, if that is more
// than this key has; nothing, which is counted. A retracted holder's place goes to one that waits.
// What was displaced or dropped comes back with the owner's slow re-publication; what the owner no
// longer has, and could not retract, has an older generation then and is swept away.
//
// Who may call: one thread, the server's. Invariants:
//   1  a rank has at most one entry of a key, in the lines or waiting
//   2  at most 4 holders of a key are in its lines, of those that are alive
// After a crash of the server nothing here is believed: the next one clears it, and peers publish
// to it anew, because it has another incarnation.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "directory/directory_words.h"

namespace radixshmem {

struct DirectoryCounters {
  std::uint64_t published = 0;  // keys that came, also those that were there already
  std::uint64_t retracted = 0;  // keys that were there and went
  std::uint64_t dropped = 0;    // no room in two full lines
  std::uint64_t displaced = 0;  // holders that gave way to a key with fewer of them
  std::uint64_t capped = 0;     // holders beyond those that can wait
  std::uint64_t promoted = 0;   // holders that waited and came into a line
  std::uint64_t refused = 0;    // keys of a rank or a life that is no member
  std::uint64_t swept = 0;      // entries of an older generation
  std::uint64_t batches = 0;    // that were applied
  std::uint64_t foreign = 0;    // batches of another digest
  std::uint64_t malformed = 0;  // batches that are none, or of somebody else
};

// What a holder says of a key.
struct Claim {
  std::uint16_t rank = 0;
  std::uint16_t incarnation = 0;  // the low bits of the index incarnation
  std::uint32_t aux = 0;          // to set, besides what an entry of this generation has
  SegmentRef segment;
  SegmentRef parent;
  std::uint8_t generation = 0;
  std::uint8_t aux_clear = 0;  // to clear first
};

class Directory final {
 public:
  static constexpr std::uint32_t kMaxHolders = 4;  // of a key, in its lines
  static constexpr std::uint32_t kMaxWaiting = 16;

  // Requires: `area` maps `lines` lines of zeros, or clear() follows.
  Directory(std::byte* area, std::uint32_t lines) noexcept;

  // Forgets every entry and every rank; keys are mixed with `digest` from now on.
  void clear(std::uint64_t digest) noexcept;
  [[nodiscard]] std::uint64_t digest() const noexcept { return digest_; }

  // Takes entries of this life of `rank`; those of another are dead.
  void admit(std::uint16_t rank, std::uint16_t incarnation) noexcept;
  // All entries of `rank` are dead, and it is refused.
  void expel(std::uint16_t rank) noexcept;
  [[nodiscard]] bool admitted(std::uint16_t rank, std::uint16_t incarnation) const noexcept {
    return lives_[rank] == incarnation;
  }

  void publish(BlockHash key, Claim claim) noexcept;
  void retract(BlockHash key, std::uint16_t rank, std::uint16_t incarnation) noexcept;
  // Takes every entry of `rank` out, but for those of generation `keep`; it remains a member. Reads
  // the whole area.
  void drop_rank(std::uint16_t rank, std::optional<std::uint8_t> keep = {}) noexcept;

  // Does what a batch says that came from `rank`, in this life. The bytes are hostile input.
  // Returns: INVALID_ARGUMENT for what is no batch of it; MISMATCH for one of another digest.
  Result<> apply(std::span<const std::byte> batch, std::uint16_t rank, std::uint16_t incarnation);

  [[nodiscard]] const DirectoryCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] std::uint32_t lines() const noexcept { return line_count_; }
  // Entries that are not empty; some may be dead.
  [[nodiscard]] std::uint64_t entries() const noexcept { return entries_; }
  [[nodiscard]] std::uint64_t waiting() const noexcept { return waiting_claims_; }
  // The words of a line, as a reader gets them.
  [[nodiscard]] DirectoryLine line(std::uint32_t index) const noexcept;

 private:
  struct Line {
    std::atomic<std::uint64_t> words[2 * kEntriesPerLine];
  };
  static_assert(sizeof(Line) == sizeof(DirectoryLine));
  // One entry of the lines of a key.
  struct Place {
    std::atomic<std::uint64_t>* words = nullptr;
    DirectoryEntry entry;  // word 0 alone
    std::uint8_t* generation = nullptr;
    bool free = false;
    std::uint32_t line = 0;  // 0 or 1
  };
  struct Survey {
    std::array<Place, 2 * kEntriesPerLine> place;
    std::uint32_t count = 0;
    std::uint32_t holders = 0;  // alive, of this tag
    std::array<std::uint32_t, 2> free{};
  };

  [[nodiscard]] Survey survey(const KeyPlace& place) noexcept;
  [[nodiscard]] bool dead(const DirectoryEntry& entry) const noexcept {
    return lives_[entry.rank] != entry.incarnation;
  }
  [[nodiscard]] static Place* entry_of(Survey& found, std::uint32_t tag,
                                       std::uint16_t rank) noexcept;
  [[nodiscard]] static Place* free_entry(Survey& found) noexcept;
  [[nodiscard]] Place* victim_for(Survey& found) noexcept;
  void put(Place& at, std::uint32_t tag, const Claim& claim) noexcept;
  void erase(std::atomic<std::uint64_t>* words) noexcept;
  void join_full_key(std::uint64_t id, std::uint32_t tag, Survey& found, Claim claim) noexcept;
  void wait(std::uint64_t id, const Claim& claim) noexcept;
  // Returns: what `rank` said when it began to wait, if it did.
  std::optional<Claim> stop_waiting(std::uint64_t id, std::uint16_t rank) noexcept;
  void promote(const KeyPlace& place, std::vector<Claim>& claims) noexcept;
  void promote_key(std::uint64_t id) noexcept;
  // Takes `rank` from all who wait, and promotes where there is room.
  void purge_waiting(std::uint16_t rank, std::optional<std::uint8_t> keep) noexcept;
  [[nodiscard]] std::uint32_t random(std::uint32_t below) noexcept;

  Line* lines_;
  std::uint32_t line_count_;
  std::uint64_t digest_ = 0;
  std::vector<std::uint32_t> lives_;       // by rank: its incarnation, or none
  std::vector<std::uint8_t> generations_;  // by entry
  std::unordered_map<std::uint64_t, std::vector<Claim>> waiting_;  // by key_id()
  std::uint64_t waiting_claims_ = 0;
  std::uint64_t entries_ = 0;
  std::uint64_t random_ = 1;
  DirectoryCounters counters_;
};

}  // namespace radixshmem
