// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Tells the keepers of shards which keys this node's tree has.
//
// It follows the change ring. A key, the hash of a block at a position that is a multiple of g, is
// published when its chunk of the path is complete, or nothing more came for a second, or somebody
// flushes; before that its segment is read without a lock, and what is not there is not published.
// An evicted key is retracted. Where a SWA window ends or a MAMBA checkpoint is, the key before it
// gets an aux bit: a hint, since windows may be cut without the key hearing of it.
// Republication, in slices and if wanted at a limited rate:
//   everything   after a lost ring, and now and then; in a new generation, so that the keepers
//                forget at its end what was not published again
//   what moved   keys whose shard has got a new keeper, to that one
// Nothing here is needed for safety: a reader of the directory compares hashes in the tree.
//
// Who may call: one thread, of the server. Times are milliseconds of one steady clock.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "directory/key_reader.h"
#include "directory/outbox.h"
#include "directory/pending_keys.h"

namespace radixshmem {

struct PublisherOptions {
  std::uint32_t chunk_blocks = 256;    // a complete chunk is published at once
  std::uint64_t idle_ms = 1000;        // the rest after so long
  std::size_t max_pending = 1u << 18;  // keys; with more the oldest are published
};

struct PublisherCounters {
  std::uint64_t events = 0;     // changes read from the ring
  std::uint64_t resyncs = 0;    // the ring was lost: everything is published anew
  std::uint64_t published = 0;  // keys, each time
  std::uint64_t retracted = 0;
  std::uint64_t given_up = 0;     // keys that were stored and could not be read any more
  std::uint64_t republished = 0;  // keys read by a republication
  std::uint64_t batches = 0;
  std::uint64_t bytes = 0;
};

class Publisher final {
 public:
  using Time = std::uint64_t;  // ms

  // Publishes to nobody until set_maps(). Requires: `tree` outlives it, and a chunk has a block.
  Publisher(const Tree& tree, const Publishing& who, const PublisherOptions& options);

  // The maps that are written to. Keys of shards with a new keeper are published to it, `rate` a
  // second (0 = as fast as asked), from `now + delay` on.
  void set_maps(ShardMaps maps, std::uint32_t rate, Time now, Time delay = 0);
  // Publishes what `keeper` keeps to it once more: it is new, or may have missed something.
  void resend(std::uint16_t keeper, std::uint32_t rate, Time now);
  // Publishes everything once more in a new generation, `rate` keys a second (0 = as fast as
  // asked); nothing while that is being done already.
  void republish_all(std::uint32_t rate, Time now);
  // Tells every keeper to forget this rank, and publishes nothing any more.
  void stop();

  // Returns: what to send now. Stops reading at about `budget` keys; more() then says true.
  [[nodiscard]] std::vector<AddressedBatch> collect(Time now, std::size_t budget);
  // Returns: everything that is in the tree now and was not sent yet, partial chunks too.
  [[nodiscard]] std::vector<AddressedBatch> flush(Time now);
  [[nodiscard]] bool more() const noexcept { return more_; }

  // Returns: whether a republication is under way.
  [[nodiscard]] bool republishing() const noexcept { return scan_.has_value(); }
  [[nodiscard]] std::size_t pending() const noexcept { return pending_.size(); }
  [[nodiscard]] const PublisherCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] const Publishing& identity() const noexcept { return outbox_.who(); }

 private:
  // A granule along the path that leads to a segment.
  struct Granule {
    SegmentId leaf = 0;
    Position position = 0;
    [[nodiscard]] std::uint64_t id() const noexcept { return std::uint64_t{leaf} << 32 | position; }
  };
  struct Scan {
    bool everything = false;
    bool urgent = false;     // a flush waits for its end
    std::uint32_t rate = 0;  // keys a second; 0 = no limit
    Time begin = 0;
    std::uint64_t keys = 0;
    PageId page = 1;
    std::uint32_t index = 0;
  };

  // publisher.cc
  bool read_ring(std::size_t budget, Time now);
  void apply(const Change& change, Time now);
  void apply_full(const Change& change, Time now);
  void complete_chunk(SegmentId last, Position begin);
  void release(SegmentId segment, const PendingKey& key, Time now);
  void publish(const KeyFacts& facts, std::uint32_t aux_flags, const Keepers& to);
  [[nodiscard]] std::vector<AddressedBatch> take();
  // What waits to be looked at or to be idle.
  void forget_pending() noexcept;

  // publisher_aux.cc
  void apply_aux(const Change& change);
  void look_at(Granule granule, std::uint32_t clear);
  void wait_for_window(Granule granule, SegmentId lacking);
  void publish_granules();

  // republication.cc
  void resync(Time now);
  void begin_scan(bool everything, std::uint32_t rate, bool urgent, Time begin);
  // Returns: whether it stopped because of the budget.
  bool scan(std::size_t budget, bool to_the_end, Time now);
  void scan_segment(SegmentId id);
  void end_scan();

  const Tree& tree_;
  KeyReader reader_;
  PublisherOptions options_;
  Outbox outbox_;
  ChangeRing::Cursor cursor_;
  PendingKeys pending_;
  std::unordered_map<std::uint64_t, std::uint32_t> granules_;    // to look at -> aux bits that went
  std::unordered_map<SegmentId, std::vector<Granule>> waiting_;  // for a slot in that segment
  std::size_t waiting_granules_ = 0;
  std::optional<Scan> scan_;
  std::vector<Keepers> moved_;  // by shard: its new keepers; empty = none has any
  bool stopped_ = false;
  bool more_ = false;
  PublisherCounters counters_;
};

}  // namespace radixshmem
