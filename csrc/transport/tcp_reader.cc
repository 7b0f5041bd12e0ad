// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/tcp_reader.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "transport/index_stream.h"
#include "transport/stream_socket.h"

namespace radixshmem {
namespace {

constexpr std::size_t kParts = 256;

class StreamReader final : public PeerReader {
 public:
  explicit StreamReader(Fd socket) : socket_(std::move(socket)) {}

  [[nodiscard]] TransportKind kind() const noexcept override { return TransportKind::kTcp; }
  [[nodiscard]] bool post(std::span<const ReadOp> ops) noexcept override;
  [[nodiscard]] Progress poll() noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override { return socket_.get(); }
  [[nodiscard]] short wait_events() const noexcept override {
    return sent_ < request_.size() ? POLLIN | POLLOUT : POLLIN;
  }
  void abandon() noexcept override {
    if (result_ == Progress::kPending) fail();
  }
  [[nodiscard]] bool broken() const noexcept override { return socket_.get() < 0; }

 private:
  void fail() noexcept {
    socket_.reset();
    result_ = Progress::kFailed;
  }
  void send_some() noexcept;
  [[nodiscard]] bool receive_some() noexcept;
  [[nodiscard]] std::size_t parts_to_fill(std::array<iovec, kParts>& parts) noexcept;
  void filled(std::size_t bytes) noexcept;
  [[nodiscard]] bool header_is_good() const noexcept;

  Fd socket_;
  std::vector<std::byte> request_;
  std::size_t sent_ = 0;
  std::vector<ReadOp> ops_;
  std::uint64_t bytes_ = 0;  // of the whole body
  ReplyHeader reply_{};
  std::size_t header_filled_ = 0;
  std::size_t at_ = 0;      // the read in ops_ that is being filled
  std::uint32_t done_ = 0;  // bytes of it
  std::uint32_t id_ = 0;
  Progress result_ = Progress::kDone;
};

bool StreamReader::post(std::span<const ReadOp> ops) noexcept {
  bytes_ = batch_bytes(ops);
  if (broken() || bytes_ == 0) return false;
  const RequestHeader header{kRequestMagic, static_cast<std::uint16_t>(StreamKind::kRead),
                             static_cast<std::uint16_t>(ops.size()), ++id_,
                             static_cast<std::uint32_t>(ops.size() * sizeof(ReadRequest))};
  ops_.assign(ops.begin(), ops.end());
  request_.resize(sizeof header + header.body_bytes);
  std::byte* to = request_.data();
  std::memcpy(to, &header, sizeof header);
  to += sizeof header;
  for (const ReadOp& op : ops) {
    const ReadRequest read{op.offset, op.length, static_cast<std::uint32_t>(op.region)};
    std::memcpy(to, &read, sizeof read);
    to += sizeof read;
  }
  sent_ = 0;
  header_filled_ = 0;
  at_ = 0;
  done_ = 0;
  result_ = Progress::kPending;
  send_some();
  return true;
}

void StreamReader::send_some() noexcept {
  const ssize_t n = ::send(socket_.get(), request_.data() + sent_, request_.size() - sent_,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) {
    sent_ += static_cast<std::size_t>(n);
  } else if (errno != EAGAIN && errno != EINTR) {
    fail();
  }
}

PeerReader::Progress StreamReader::poll() noexcept {
  if (result_ == Progress::kPending && sent_ < request_.size()) send_some();
  while (result_ == Progress::kPending && receive_some()) {
  }
  return result_;
}

// Returns: whether it got further and the reply is not complete.
bool StreamReader::receive_some() noexcept {
  std::array<iovec, kParts> parts;
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts_to_fill(parts);
  const ssize_t n = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    fail();
    return false;
  }
  filled(static_cast<std::size_t>(n));
  return result_ == Progress::kPending;
}

std::size_t StreamReader::parts_to_fill(std::array<iovec, kParts>& parts) noexcept {
  std::size_t count = 0;
  if (header_filled_ < sizeof reply_) {
    parts[count++] = {reinterpret_cast<std::byte*>(&reply_) + header_filled_,
                      sizeof reply_ - header_filled_};
  }
  std::uint32_t skip = done_;
  for (std::size_t i = at_; i < ops_.size() && count < kParts; ++i) {
    parts[count++] = {ops_[i].to + skip, ops_[i].length - skip};
    skip = 0;
  }
  return count;
}

void StreamReader::filled(std::size_t bytes) noexcept {
  const std::size_t of_header = std::min(bytes, sizeof reply_ - header_filled_);
  header_filled_ += of_header;
  bytes -= of_header;
  if (header_filled_ == sizeof reply_ && of_header != 0 && !header_is_good()) {
    fail();
    return;
  }
  while (bytes != 0) {
    const std::uint32_t left = ops_[at_].length - done_;
    if (bytes < left) {
      done_ += static_cast<std::uint32_t>(bytes);
      return;
    }
    bytes -= left;
    done_ = 0;
    ++at_;
  }
  if (at_ == ops_.size()) result_ = Progress::kDone;
}

bool StreamReader::header_is_good() const noexcept {
  return reply_.magic == kReplyMagic &&
         reply_.kind == static_cast<std::uint16_t>(StreamKind::kRead) &&
         reply_.status == static_cast<std::uint16_t>(Refusal::kNone) && reply_.id == id_ &&
         reply_.body_bytes == bytes_;
}

}  // namespace

Result<std::unique_ptr<PeerReader>> TcpReader::make(int fd) {
  Result<Fd> socket = adopt_stream(fd);
  if (!socket) return std::move(socket).error();
  return std::unique_ptr<PeerReader>(new StreamReader(std::move(socket).value()));
}

}  // namespace radixshmem
