// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Guards one call of a Session against close(): counted in, then the states are tested; close()
// sets its flag, then waits for the count (both seq_cst, so one of the two sees the other).
#pragma once

#include "node/session.h"

namespace radixshmem {

class Session::Call final {
 public:
  explicit Call(const Session& session) noexcept : session_(session) {
    session_.in_flight_.fetch_add(1, std::memory_order_seq_cst);
    code_ = session_.closed_.load(std::memory_order_seq_cst) ? ErrorCode::CLOSED : session_.state();
  }
  ~Call() { session_.in_flight_.fetch_sub(1, std::memory_order_release); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  explicit operator bool() const noexcept { return code_ == ErrorCode::OK; }
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  // Returns: whether the mapping is there, whatever the server did to the region.
  [[nodiscard]] bool mapped() const noexcept { return code_ != ErrorCode::CLOSED; }

 private:
  const Session& session_;
  ErrorCode code_;
};

}  // namespace radixshmem
