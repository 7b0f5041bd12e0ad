// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/answer_socket.h"

#include <cerrno>

#include <sys/epoll.h>
#include <sys/socket.h>

namespace radixshmem {
namespace {

constexpr int kSendsPerTurn = 2;

}  // namespace

// Returns: false at the end of the stream.
bool AnswerSocket::receive() {
  const std::span<std::byte> room = answer_.room();
  const ssize_t n = ::recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  answer_.received(static_cast<std::size_t>(n));
  moved_ = std::chrono::steady_clock::now();
  return true;
}

AnswerSocket::Sent AnswerSocket::send_output() {
  const std::span<const iovec> parts = answer_.output();
  std::size_t wanted = 0;
  for (const iovec& part : parts) wanted += part.iov_len;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  const ssize_t n = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Sent::kSome : Sent::kFailed;
  answer_.sent(static_cast<std::size_t>(n));
  moved_ = std::chrono::steady_clock::now();
  return static_cast<std::size_t>(n) == wanted ? Sent::kAll : Sent::kSome;
}

bool AnswerSocket::take_turn() {
  if (!answer_.answering() && !receive()) return false;
  for (int i = 0; i < kSendsPerTurn && answer_.answering(); ++i) {
    const Sent sent = send_output();
    if (sent == Sent::kFailed) return false;
    if (sent == Sent::kSome) break;
  }
  return answer_.answering() || answer_.refused() == Refusal::kNone;
}

std::uint32_t AnswerSocket::wanted_events() const noexcept {
  return answer_.answering() ? EPOLLOUT : EPOLLIN;
}

}  // namespace radixshmem
