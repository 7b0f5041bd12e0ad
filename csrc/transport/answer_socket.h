// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One index stream of the responder: its answers, and the non-blocking socket that they go to.
// Thread safety: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/fd.h"
#include "transport/answer_stream.h"

namespace radixshmem {

class AnswerSocket final {
 public:
  AnswerSocket(Fd socket, const PeerRanges& ranges, std::unique_ptr<VerbsEnd> verbs)
      : socket_(std::move(socket)), answer_(ranges, std::move(verbs)) {}

  // Receives and sends what it can without waiting, within bounds, so that other streams get their
  // turn. Returns: false when the stream is over: ended by the peer, broken, or refused.
  [[nodiscard]] bool take_turn();

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  [[nodiscard]] const AnswerStream& answer() const noexcept { return answer_; }
  // When it last got further.
  [[nodiscard]] std::chrono::steady_clock::time_point moved() const noexcept { return moved_; }
  // Returns: the events to wait for, of epoll.
  [[nodiscard]] std::uint32_t wanted_events() const noexcept;

 private:
  enum class Sent { kAll, kSome, kFailed };

  [[nodiscard]] bool receive();
  [[nodiscard]] Sent send_output();

  Fd socket_;
  AnswerStream answer_;
  std::chrono::steady_clock::time_point moved_ = std::chrono::steady_clock::now();
};

}  // namespace radixshmem
