// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The responder's side of one index stream, without its socket: bytes in, bytes out.
//
// It takes input until it holds a whole request, then gives output until the reply is complete, and
// so on; while it answers it takes no input. Memory: the request (64 KiB at most) and a staging
// buffer (64 KiB); replies are made piece by piece. Index bytes are copied to the staging buffer,
// word by word; slots are sent from where they lie.
// Thread safety: one thread at a time. Requires: the ranges stay mapped.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "transport/index_stream.h"
#include "transport/verbs.h"

namespace radixshmem {

class AnswerStream final {
 public:
  // `verbs` answers VERBS requests; where there is none, they are refused.
  explicit AnswerStream(const PeerRanges& ranges, std::unique_ptr<VerbsEnd> verbs = nullptr);

  // Where the next bytes of input go; at least what is missing of a request. Requires:
  // !answering().
  [[nodiscard]] std::span<std::byte> room() noexcept { return std::span(input_).subspan(filled_); }
  // Says that `bytes` of room() were filled. Requires: no more than its size.
  void received(std::size_t bytes);

  // Whether a reply is not yet wholly sent.
  [[nodiscard]] bool answering() const noexcept { return answering_; }
  // Whether it is in the middle of a request or a reply.
  [[nodiscard]] bool busy() const noexcept { return answering_ || filled_ != 0; }
  // The next bytes of output, never empty. Requires: answering().
  [[nodiscard]] std::span<const iovec> output() noexcept;
  // Says that the first `bytes` of output() are gone. Requires: no more than there were.
  void sent(std::size_t bytes);

  // Why the stream is to be closed when the reply is sent; kNone: it goes on.
  [[nodiscard]] Refusal refused() const noexcept { return refused_; }
  [[nodiscard]] std::uint64_t reads() const noexcept { return reads_done_; }
  [[nodiscard]] std::uint64_t read_bytes() const noexcept { return bytes_done_; }

 private:
  void parse();
  void start_reply(const RequestHeader& header, Refusal status, std::span<const std::byte> body);
  void gather();
  void add_piece(const std::byte* from, std::size_t bytes) noexcept;

  static constexpr std::size_t kPieces = 64;

  const PeerRanges& ranges_;
  std::unique_ptr<VerbsEnd> verbs_;
  std::vector<std::byte> input_;
  std::size_t filled_ = 0;
  std::vector<ReadRequest> batch_;
  std::size_t at_ = 0;      // the read in batch_ whose bytes come next
  std::uint32_t done_ = 0;  // bytes of it that were gathered
  std::unique_ptr<std::byte[]> staging_;
  std::size_t staged_ = 0;
  std::array<iovec, kPieces> pieces_{};
  std::size_t piece_ = 0;
  std::size_t pieces_end_ = 0;
  bool answering_ = false;
  Refusal refused_ = Refusal::kNone;
  std::uint64_t reads_done_ = 0;
  std::uint64_t bytes_done_ = 0;
};

}  // namespace radixshmem
