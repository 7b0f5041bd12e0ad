// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bench/loopback_row.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>

namespace radixshmem::bench {
namespace {

constexpr std::uint64_t kTrips = 500;
constexpr std::size_t kMessageBytes = 64;

bool send_all(int fd, const std::byte* data) {
  return ::send(fd, data, kMessageBytes, MSG_NOSIGNAL) == static_cast<ssize_t>(kMessageBytes);
}

bool receive_all(int fd, std::byte* data) {
  return ::recv(fd, data, kMessageBytes, MSG_WAITALL) == static_cast<ssize_t>(kMessageBytes);
}

// Two ends of a TCP connection over loopback; a thread answers at one.
class Echo final {
 public:
  Echo() {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    near_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::bind(listener, generic, size) == 0 && ::listen(listener, 1) == 0 &&
        ::getsockname(listener, generic, &size) == 0 && ::connect(near_, generic, size) == 0) {
      far_ = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    }
    ::close(listener);
    const int yes = 1;
    for (const int fd : {near_, far_}) {
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    }
    answerer_ = std::thread([fd = far_] {
      std::array<std::byte, kMessageBytes> message{};
      while (receive_all(fd, message.data()) && send_all(fd, message.data())) {
      }
    });
  }
  ~Echo() {
    ::shutdown(near_, SHUT_RDWR);
    answerer_.join();
    ::close(near_);
    ::close(far_);
  }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;

  [[nodiscard]] bool trip() {
    return send_all(near_, message_.data()) && receive_all(near_, message_.data());
  }

 private:
  int near_ = -1;
  int far_ = -1;
  std::array<std::byte, kMessageBytes> message_{};
  std::thread answerer_;
};

}  // namespace

void add_loopback_row(Rows& rows) {
  rows["loopback"] = [echo = std::make_shared<Echo>()]() -> Result<Sample> {
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; i < kTrips; ++i) {
      if (!echo->trip()) return system_error("a round trip over loopback", errno);
    }
    const std::chrono::duration<double, std::nano> ns = std::chrono::steady_clock::now() - begin;
    return Sample{ns.count() / static_cast<double>(kTrips), kTrips};
  };
}

}  // namespace radixshmem::bench
