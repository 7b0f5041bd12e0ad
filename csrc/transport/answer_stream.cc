// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/answer_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "transport/racing_copy.h"

namespace radixshmem {
namespace {

constexpr std::size_t kFirstInputBytes = 2048;  // most requests of a lookup fit
constexpr std::size_t kStagingBytes = 64 << 10;
constexpr std::size_t kGatherBytes = 256 << 10;  // as much as one send takes at once

}  // namespace

AnswerStream::AnswerStream(const PeerRanges& ranges, std::unique_ptr<VerbsEnd> verbs)
    : ranges_(ranges), verbs_(std::move(verbs)), input_(kFirstInputBytes) {}

void AnswerStream::received(std::size_t bytes) {
  RADIX_DCHECK(!answering_ && bytes <= input_.size() - filled_, bytes);
  filled_ += bytes;
  parse();
}

void AnswerStream::parse() {
  RequestHeader header{};
  if (filled_ < sizeof header) return;
  std::memcpy(&header, input_.data(), sizeof header);
  Refusal status = check_header(header);
  const std::size_t need = sizeof header + header.body_bytes;
  std::span<const std::byte> answer;
  batch_.clear();
  if (status == Refusal::kNone) {
    if (input_.size() < need) input_.resize(need);
    if (filled_ < need) return;
    if (header.kind == static_cast<std::uint16_t>(StreamKind::kRead)) {
      batch_.resize(header.count);
      std::memcpy(batch_.data(), input_.data() + sizeof header, header.body_bytes);
      status = check_reads(batch_, ranges_);
    } else {
      if (verbs_)
        answer = verbs_->connect(std::span(input_).subspan(sizeof header, header.body_bytes));
      if (answer.empty()) status = Refusal::kNotServed;
    }
  }
  if (status != Refusal::kNone) {
    batch_.clear();
    filled_ = 0;  // whatever follows is not looked at
  } else {
    filled_ -= need;
    std::memmove(input_.data(), input_.data() + need, filled_);
  }
  start_reply(header, status, answer);
}

void AnswerStream::start_reply(const RequestHeader& header, Refusal status,
                               std::span<const std::byte> body) {
  ReplyHeader reply{};
  reply.magic = kReplyMagic;
  reply.kind = header.kind;
  reply.status = static_cast<std::uint16_t>(status);
  reply.id = header.id;
  reply.body_bytes = body.size();
  for (const ReadRequest& read : batch_) {
    reply.body_bytes += read.length;
    bytes_done_ += read.length;
  }
  reads_done_ += batch_.size();

  if (!staging_) staging_ = std::make_unique_for_overwrite<std::byte[]>(kStagingBytes);
  std::memcpy(staging_.get(), &reply, sizeof reply);
  if (!body.empty()) std::memcpy(staging_.get() + sizeof reply, body.data(), body.size());
  staged_ = sizeof reply + body.size();
  piece_ = pieces_end_ = 0;
  add_piece(staging_.get(), staged_);
  at_ = 0;
  done_ = 0;
  answering_ = true;
  refused_ = status;
  gather();
}

void AnswerStream::add_piece(const std::byte* from, std::size_t bytes) noexcept {
  if (pieces_end_ != 0) {
    iovec& last = pieces_[pieces_end_ - 1];
    if (static_cast<const std::byte*>(last.iov_base) + last.iov_len == from) {
      last.iov_len += bytes;
      return;
    }
  }
  pieces_[pieces_end_++] = {const_cast<std::byte*>(from), bytes};
}

// Adds pieces until one of the buffers is full or the reply is complete.
void AnswerStream::gather() {
  std::size_t gathered = 0;
  while (at_ < batch_.size() && pieces_end_ < kPieces && gathered < kGatherBytes) {
    const ReadRequest& read = batch_[at_];
    const bool of_index = read.region == static_cast<std::uint32_t>(PeerRegion::kIndex);
    const std::size_t limit = of_index ? kStagingBytes - staged_ : kGatherBytes - gathered;
    const std::size_t bytes = std::min<std::size_t>(read.length - done_, limit);
    if (bytes == 0) break;
    const std::byte* from =
        ranges_.of(static_cast<PeerRegion>(read.region)).data() + read.offset + done_;
    if (of_index) {
      std::byte* const to = staging_.get() + staged_;
      racing_copy(to, from, bytes);
      staged_ += bytes;
      from = to;
    }
    add_piece(from, bytes);
    gathered += bytes;
    done_ += static_cast<std::uint32_t>(bytes);
    if (done_ == read.length) {
      ++at_;
      done_ = 0;
    }
  }
}

std::span<const iovec> AnswerStream::output() noexcept {
  return std::span(pieces_).subspan(piece_, pieces_end_ - piece_);
}

void AnswerStream::sent(std::size_t bytes) {
  while (bytes != 0) {
    RADIX_DCHECK(piece_ < pieces_end_, bytes);
    iovec& piece = pieces_[piece_];
    const std::size_t part = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + part;
    piece.iov_len -= part;
    bytes -= part;
    if (piece.iov_len == 0) ++piece_;
  }
  if (piece_ < pieces_end_) return;
  piece_ = pieces_end_ = 0;
  staged_ = 0;
  if (at_ < batch_.size()) {
    gather();
    return;
  }
  answering_ = false;
  if (refused_ == Refusal::kNone && filled_ != 0) parse();
}

}  // namespace radixshmem
