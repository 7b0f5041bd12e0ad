// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Random calls of all kinds by several clients of one index, each answer compared with the model.
// One thread: everything but the choice of victims is determined, and predicted exactly.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/node/model.h"
#include "tests/node/server_rig.h"

namespace radixshmem {

struct DriverOptions {
  std::uint64_t seed = 1;
  std::uint32_t trunks = 6;
  std::uint32_t longest_path = 60;
  bool wide = false;  // mostly one-block branches behind a full trunk: segments run out first
};

class ModelDriver final {
 public:
  ModelDriver(const IndexPlan& plan, const DriverOptions& options);

  // Runs `operations` calls. Returns: false at the first difference (told by a test failure).
  [[nodiscard]] bool run(std::uint64_t operations);
  // How often something happened: a test asserts that nothing stayed at zero.
  // clang-format off
#define RADIX_SEEN(X)                                                                            \
  X(hits) X(misses) X(windows) X(aux_found) X(pinned) X(pins_full) X(attached) X(unused)        \
  X(path_missing) X(bad_request) X(mempool_full) X(short_allocations) X(evicted) X(aux_evicted) X(aux_refused)   \
  X(extended) X(stale_cursors) X(resets) X(zombie_calls) X(reattached) X(still_valid) X(invalid) \
  X(checks) X(segment_evictions) X(side_evictions)
  // clang-format on
  struct Seen {
#define RADIX_FIELD(name) std::uint64_t name = 0;
    RADIX_SEEN(RADIX_FIELD)
#undef RADIX_FIELD
  };
  [[nodiscard]] const Seen& seen() const noexcept { return seen_; }

 private:
  static constexpr std::size_t kSessions = 3;  // two of one group, one on its own
  static constexpr std::array kAll{Component::kFull, Component::kSwa, Component::kMamba};

  struct Held {
    std::int32_t slot;
    std::size_t session;
  };
  struct Pinned {
    Hit hit;
    std::size_t session;
    ModelBlock* deepest;  // nullptr once a reset has cut it off
    std::vector<std::pair<ModelBlock*, Component>> aux;
    std::array<std::vector<std::int32_t>, kComponents> slots;
  };
  struct Cursor {
    CursorPoint point;
    Path path;  // up to the cursor
    std::size_t session;
  };
  struct Unpinned {
    Hit hit;
    Path path;
  };

  void step();
  void do_query();
  void do_query_aux(Component c);
  void do_finalize();
  void do_extend();
  void do_allocate();
  void do_insert();
  void do_insert_aux();
  void do_bad_request();
  void do_recycle();
  void do_evict();
  void do_reset();
  void do_reattach();
  void do_validate();

  [[nodiscard]] std::uint32_t below(std::uint32_t n) {
    return static_cast<std::uint32_t>(random_() % n);
  }
  [[nodiscard]] Path random_path();
  [[nodiscard]] std::uint32_t group_of(std::size_t session) const { return session == 2 ? 1 : 0; }
  [[nodiscard]] std::vector<Held>& held(std::size_t session, Component c) {
    return held_[group_of(session)][static_cast<std::size_t>(c)];
  }
  // Takes up to n slots out of the hands of the session's group.
  [[nodiscard]] std::vector<Held> take_held(std::size_t session, Component c, std::size_t n);
  void put_back(std::size_t session, Component c, const std::vector<Held>& slots);
  [[nodiscard]] std::uint32_t held_total(Component c) const;
  // Free slots before a call: exact, after freeing what no pin of before a reset holds.
  [[nodiscard]] std::uint32_t free_now(Component c);
  [[nodiscard]] std::uint32_t aux_evictable(Component c);
  // Keeps an answer, pinned or to be validated later.
  void keep(Hit hit, std::size_t session, const Path& path, const std::vector<ModelBlock*>& found);
  void pin_model(Pinned& pinned, const std::vector<ModelBlock*>& path);
  void release(Pinned& pinned);
  // The next change events of a call.
  void fetch_events();
  void apply_removals();
  // Follows an insert by its events, from the block at `from` on, below `parent`, which becomes the
  // last one that was stored. Returns: the end of what was stored.
  [[nodiscard]] Position follow_insert(const Path& path, const Slots& slots, Position start,
                                       Position from, ModelBlock*& parent);
  // Returns: what the call should answer, with -1 for each slot that was used.
  [[nodiscard]] InsertOutcome follow_insert_aux(Component c, const Path& path, const Slots& slots,
                                                const std::vector<ModelBlock*>& found);
  void expect_slots(const Hit& hit, const std::vector<ModelBlock*>& found, std::uint32_t mask);
  void expect_outcome(const char* call, const InsertOutcome& outcome,
                      const InsertOutcome& expected);
  void expect_no_events();
  void expect_counts(const char* call);
  void fail(const std::string& what);

  ServerRig rig_;
  DriverOptions options_;
  std::mt19937_64 random_;
  Model model_;
  std::vector<SessionPtr> sessions_;
  std::array<std::array<std::vector<Held>, kComponents>, 2> held_;
  std::vector<std::unique_ptr<Pinned>> pinned_;
  std::deque<Unpinned> unpinned_;
  std::deque<Cursor> cursors_;
  ChangeRing::Cursor events_cursor_;
  std::deque<Change> events_;
  std::size_t most_pinned_ = 20;
  std::uint32_t zombie_pins_ = 0;
  bool zombies_ = false;  // slots of before a reset may be held
  bool failed_ = false;
  std::uint64_t operation_ = 0;
  Seen seen_;
};

}  // namespace radixshmem
