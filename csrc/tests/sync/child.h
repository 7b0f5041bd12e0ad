// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A forked child of a test, and names of its own in /dev/shm.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "base/check.h"

namespace radixshmem {

[[nodiscard]] inline std::string unique_name(const std::string& what) {
  static std::atomic<int> serial{0};
  return "/radixshmem_" + what + "_" + std::to_string(::getpid()) + "_" +
         std::to_string(serial.fetch_add(1));
}

// Runs `body` in a forked process, which ends with its result and without destructors. The parent
// waits for a byte from it with wait_ready(). Killed with its owner.
class Child final {
 public:
  explicit Child(const std::function<int(Child&)>& body) {
    RADIX_CHECK(::pipe(to_parent_) == 0 && ::pipe(to_child_) == 0, 0);
    pid_ = ::fork();
    RADIX_CHECK(pid_ >= 0, pid_);
    if (pid_ != 0) return;
    ::close(to_parent_[0]);
    ::close(to_child_[1]);
    ::_exit(body(*this));
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      (void)wait();
    }
    for (const int fd : {to_parent_[0], to_parent_[1], to_child_[0], to_child_[1]}) ::close(fd);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  // In the child: tells the parent, waits for the parent.
  void say_ready() const { RADIX_CHECK(::write(to_parent_[1], "r", 1) == 1, 0); }
  void wait_for_parent() const {
    char byte = 0;
    (void)!::read(to_child_[0], &byte, 1);
  }

  // In the parent. Returns: false when nothing came for 20 s.
  [[nodiscard]] bool wait_ready() const {
    pollfd event{to_parent_[0], POLLIN, 0};
    char byte = 0;
    return ::poll(&event, 1, 20'000) == 1 && ::read(to_parent_[0], &byte, 1) == 1;
  }
  void go_on() const { RADIX_CHECK(::write(to_child_[1], "g", 1) == 1, 0); }
  void signal(int number) const { ::kill(pid_, number); }
  // Waits until SIGSTOP has taken effect.
  void stop() const {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    ::waitpid(pid_, &status, WUNTRACED);
  }
  // Returns: the exit code; 128 + signal when it was killed.
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void kill_and_wait() {
    ::kill(pid_, SIGKILL);
    (void)wait();
  }

 private:
  int to_parent_[2] = {-1, -1};
  int to_child_[2] = {-1, -1};
  pid_t pid_ = -1;
};

}  // namespace radixshmem
