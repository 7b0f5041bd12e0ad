// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Answers the index streams of peers out of this node's memory: one thread, any number of streams.
//
// It believes nothing: a malformed request, or a read outside of the ranges, is refused, counted,
// and ends its stream. Memory per stream is bounded (answer_stream.h), their number too. A stream
// that stays in the middle of a request or an answer without getting further is dropped after a
// deadline; idle streams stay.
// Authentication has happened on the socket before it comes here.
// Thread safety: all calls from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "transport/index_stream.h"
#include "transport/verbs.h"

namespace radixshmem {

struct ResponderOptions {
  std::uint32_t max_streams = 1024;
  std::chrono::milliseconds stall_timeout{10'000};
};

struct ResponderFigures {
  std::uint64_t streams = 0;  // now; all others since the start
  std::uint64_t accepted = 0;
  std::uint64_t reads = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t refused_malformed = 0;
  std::uint64_t refused_out_of_range = 0;
  std::uint64_t refused_not_served = 0;
  std::uint64_t refused_full = 0;  // streams beyond max_streams
  std::uint64_t dropped_stalled = 0;
};

class Responder final {
 public:
  // Requires: the ranges stay mapped until stop() has returned.
  static Result<std::unique_ptr<Responder>> start(const PeerRanges& ranges,
                                                  const ResponderOptions& options = {});
  ~Responder();
  Responder(const Responder&) = delete;
  Responder& operator=(const Responder&) = delete;

  // Takes `fd`, a connected and authenticated stream socket, over in any case.
  Result<> add(int fd);
  // Lets peers read the ranges through RDMA devices too, on streams added from now on. Registers
  // the ranges with each, which pins their memory and takes a while; streams are served meanwhile.
  // Requires: there is a device.
  Result<> serve_verbs(std::span<const std::shared_ptr<VerbsDevice>> devices);
  [[nodiscard]] ResponderFigures figures() const;
  // Closes all streams and ends the thread. When it returns the ranges are no longer read.
  void stop();

 private:
  class Core;
  explicit Responder(std::unique_ptr<Core> core);

  std::unique_ptr<Core> core_;
};

}  // namespace radixshmem
