// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A real index server and clients of it, for tests; everything in /dev/shm goes with it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "node/index_server.h"
#include "tests/layout/test_region.h"
#include "tests/sync/child.h"
#include "tests/tree/tree_rig.h"

namespace radixshmem {

using SessionPtr = std::shared_ptr<Session>;

class ServerRig {
 public:
  explicit ServerRig(const IndexPlan& plan) : plan_(plan), name_(unique_name("node")) {
    claim();
    own_ = take(server_->create(plan, /*prefault=*/false));
  }
  ~ServerRig() {
    if (server_) server_->close();
    ::unlink(("/dev/shm" + name_).c_str());
    ::unlink(("/dev/shm" + name_ + ".live").c_str());
  }
  ServerRig(const ServerRig&) = delete;
  ServerRig& operator=(const ServerRig&) = delete;

  // Returns: the value; a test that does not expect the error ends with its message.
  template <typename T>
  static T take(Result<T> result) {
    if (!result) {
      std::fprintf(stderr, "%s\n", result.error().message.c_str());
      std::abort();
    }
    return std::move(result).value();
  }
  void claim() { server_ = take(IndexServer::claim(name_, 0600, -1)); }
  [[nodiscard]] SessionPtr attach(const std::string& group = "", bool read_only = false) const {
    return take(Session::attach(name_, group, read_only));
  }
  // The server dies without a close: files, byte 0 and its session go as by kill -9.
  void die() {
    own_.reset();
    server_.reset();
  }

  [[nodiscard]] IndexServer& server() { return *server_; }
  [[nodiscard]] std::unique_ptr<IndexServer>& server_ptr() { return server_; }
  [[nodiscard]] Session& own() { return *own_; }
  void set_own(SessionPtr own) { own_ = std::move(own); }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const IndexPlan& plan() const { return plan_; }

 private:
  IndexPlan plan_;
  std::string name_;
  std::unique_ptr<IndexServer> server_;
  SessionPtr own_;
};

// Calls of a session, with errors that a test does not expect turned into failures.
[[nodiscard]] inline Hit query(const SessionPtr& session, const Path& path,
                               std::uint32_t mask = kMaskFull, bool lock = false) {
  return ServerRig::take(session->query(path, {mask, lock, /*update_recency=*/true}));
}
// All slots of `c` from block `from` on.
[[nodiscard]] inline Hit query_aux(const SessionPtr& session, const Path& path, Component c,
                                   Position from = 0, bool lock = false, bool touch = true) {
  return ServerRig::take(
      session->query(path, {1u << static_cast<std::uint32_t>(c), lock, touch, from}));
}
[[nodiscard]] inline Slots allocate(const SessionPtr& session, std::int64_t n,
                                    Component c = Component::kFull) {
  return ServerRig::take(session->allocate(n, c));
}
inline InsertOutcome insert(const SessionPtr& session, const Path& path, const Slots& slots,
                            Position start = 0, bool recycle = true,
                            Component c = Component::kFull) {
  return ServerRig::take(session->insert(path, slots, start, recycle, c));
}
// Inserts a whole path of new blocks. Returns: its slots.
inline Slots put(const SessionPtr& session, const Path& path) {
  Slots slots = allocate(session, static_cast<std::int64_t>(path.size()));
  EXPECT_EQ(slots.size(), path.size());
  EXPECT_EQ(insert(session, path, slots).error, ErrorCode::OK);
  return slots;
}
[[nodiscard]] inline Slots slots_of(const Hit& hit) {
  return {hit.full_slots.get(), hit.full_slots.get() + hit.full_count};
}
[[nodiscard]] inline std::string problems(const SessionPtr& session) {
  std::string text;
  for (const std::string& line : ServerRig::take(session->check(false))) text += line + "\n";
  return text;
}
[[nodiscard]] inline std::uint32_t free_slots(const SessionPtr& session,
                                              Component c = Component::kFull) {
  return ServerRig::take(session->slots_free(c));
}

}  // namespace radixshmem
