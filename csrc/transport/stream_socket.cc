// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/stream_socket.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

namespace radixshmem {
namespace {

// A host that vanished is noticed after about 30 s, by whoever waits for nothing else.
constexpr int kIdleSeconds = 15;
constexpr int kProbeSeconds = 5;
constexpr int kProbes = 3;

Error unusable(int fd, const char* why) {
  return invalid_argument("descriptor " + std::to_string(fd) +
                          " cannot carry an index stream: " + why);
}

void set_option(int fd, int level, int option, int value) noexcept {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

// Returns: false, with errno, at the deadline.
bool wait_for(int fd, short events, Deadline deadline) noexcept {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      errno = ETIMEDOUT;
      return false;
    }
    pollfd event{fd, events, 0};
    const int limit = static_cast<int>(std::min<std::int64_t>(left.count(), 60'000));
    if (::poll(&event, 1, limit) > 0) return true;
  }
}

}  // namespace

Result<Fd> adopt_stream(int fd) {
  Fd owner(fd);
  int type = 0;
  socklen_t type_bytes = sizeof type;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes) != 0) {
    return unusable(fd, std::strerror(errno));
  }
  sockaddr_storage peer{};
  socklen_t peer_bytes = sizeof peer;
  if (type != SOCK_STREAM) return unusable(fd, "it is not a stream socket");
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0) {
    return unusable(fd, std::strerror(errno));
  }
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return system_error("cannot make descriptor " + std::to_string(fd) + " non-blocking", errno);
  }
  if (peer.ss_family == AF_INET || peer.ss_family == AF_INET6) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  }
  return owner;
}

bool send_all(int fd, std::span<const std::byte> bytes, Deadline deadline) noexcept {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    } else if ((errno != EAGAIN && errno != EINTR) || !wait_for(fd, POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

bool receive_all(int fd, std::span<std::byte> bytes, Deadline deadline) noexcept {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
      continue;
    }
    if (n == 0) errno = EPIPE;
    if ((n < 0 && errno != EAGAIN && errno != EINTR) || n == 0 || !wait_for(fd, POLLIN, deadline)) {
      return false;
    }
  }
  return true;
}

}  // namespace radixshmem
