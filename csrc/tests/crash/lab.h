// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A small index in one process for directed tests: a server, a writer and a reader session, and
// hooks that run a lambda at a fault point or between two steps of a reader. What dies, dies in a
// forked child with a session of its own.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "node/index_server.h"
#include "tests/crash/blocks.h"
#include "tests/crash/board.h"
#include "tests/crash/inspector.h"
#include "tests/crash/options.h"

namespace radixshmem::crash {

// The hooks of the running test; empty = none.
inline std::function<void(FaultPoint)> on_fault_point;
inline std::function<void(ReaderPoint)> on_reader_point;

using Path = std::vector<BlockHash>;
// A path of `blocks` blocks; equal names have equal prefixes.
[[nodiscard]] Path path_of(std::uint64_t name, std::size_t blocks);

class Lab final {
 public:
  // The mutant is active for the life of the lab, in this process and its children.
  explicit Lab(Mutant mutant, const Options& options = tiny_options());
  ~Lab();
  Lab(const Lab&) = delete;
  Lab& operator=(const Lab&) = delete;

  [[nodiscard]] Session& server() { return *server_session_; }
  [[nodiscard]] IndexServer& index_server() { return *server_; }
  [[nodiscard]] Session& writer() { return *writer_; }
  [[nodiscard]] Session& reader() { return *reader_; }
  [[nodiscard]] Tree& tree() { return server_session_->tree(); }
  [[nodiscard]] Board& board() { return *board_; }
  [[nodiscard]] const std::string& name() const { return options_.name; }

  // Stores what is missing of the path, with the right bytes.
  void put(Session& session, const Path& path);
  // Stores the aux slots at the end of the path: a SWA window, or a MAMBA checkpoint.
  void put_aux(Session& session, const Path& path, Component c);
  [[nodiscard]] Hit query(Session& session, const Path& path, std::uint32_t mask, bool lock);
  // All slots of `c` along the path.
  [[nodiscard]] Hit query_aux(Session& session, const Path& path, Component c, bool lock);
  // Evicts all that can be evicted of the pool.
  std::uint32_t evict_all(Session& session, Component c);
  // Takes every slot that can be had without evicting and overwrites it. They stay taken.
  std::vector<std::int32_t> take_and_spoil(Session& session, Component c);
  // Returns: what is wrong with the bytes of an answer, empty if nothing.
  [[nodiscard]] std::string wrong_bytes(const Hit& hit, const Path& path);
  // Takes the lock as the server (which recovers first, if its owner died). Returns: the first
  // violated invariant, empty if none.
  [[nodiscard]] std::string first_violation();

  // Runs `work` in a child that attaches for itself and dies when it comes to `point`. Returns:
  // whether it died there.
  bool die_at(FaultPoint point, const std::function<void(Session&)>& work, bool stress = false);
  // Frees quarantined slots, whatever their age.
  void release_quarantine();

 private:
  Options options_;
  Board* board_;
  std::unique_ptr<IndexServer> server_;
  std::shared_ptr<Session> server_session_;
  std::shared_ptr<Session> writer_;
  std::shared_ptr<Session> reader_;
  std::uint64_t generation_ = 0;
};

}  // namespace radixshmem::crash
