// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/responder.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "transport/answer_socket.h"
#include "transport/stream_socket.h"

namespace radixshmem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kEvents = 16;
constexpr std::uint64_t kWakeId = 0;

struct Stream {
  AnswerSocket socket;
  std::uint32_t events = EPOLLIN;
};

}  // namespace

// The thread holds the mutex while it works on streams, never while it waits.
class Responder::Core final {
 public:
  Core(const PeerRanges& ranges, const ResponderOptions& options)
      : options_(options), ranges_(ranges) {}

  Result<> start();
  Result<> add(int fd);
  Result<> serve_verbs(std::span<const std::shared_ptr<VerbsDevice>> devices);
  [[nodiscard]] ResponderFigures figures() const;
  void stop();

 private:
  using Streams = std::unordered_map<std::uint64_t, Stream>;

  void run();
  void serve(std::uint64_t id);
  Streams::iterator end(Streams::iterator at);
  void account(const AnswerStream& answer);
  void drop_stalled();
  [[nodiscard]] int wait_ms() const noexcept;

  const ResponderOptions options_;
  Fd epoll_;
  Fd wake_;
  std::thread thread_;

  mutable std::mutex mutex_;
  const PeerRanges ranges_;
  std::unique_ptr<VerbsHost> verbs_;  // of these ranges; its ends are in the streams
  Streams streams_;
  std::uint64_t last_id_ = kWakeId;
  std::size_t busy_ = 0;           // streams in the middle of something
  Clock::time_point next_look_{};  // for stalled ones
  ResponderFigures figures_;
  bool stopping_ = false;
};

Result<> Responder::Core::start() {
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  if (epoll_.get() < 0 || wake_.get() < 0 ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    return system_error("cannot start the responder of index reads (see `ulimit -n`)", errno);
  }
  // Signals are for the threads of the host program.
  sigset_t all{};
  sigset_t before{};
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread_.native_handle(), "radix-responder");
  return Unit{};
}

Result<> Responder::Core::add(int fd) {
  Result<Fd> socket = adopt_stream(fd);
  if (!socket) return std::move(socket).error();
  const std::lock_guard lock(mutex_);
  if (stopping_) return Error{ErrorCode::CLOSED, "the responder of index reads was stopped"};
  if (streams_.size() >= options_.max_streams) {
    ++figures_.refused_full;
    return Error{ErrorCode::SYSTEM, "the responder of index reads has " +
                                        std::to_string(streams_.size()) +
                                        " streams, its limit: close idle ones"};
  }
  const std::uint64_t id = ++last_id_;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.value().get(), &event) != 0) {
    return system_error("cannot watch an index stream", errno);
  }
  streams_.try_emplace(
      id, AnswerSocket(std::move(socket).value(), ranges_, verbs_ ? verbs_->make_end() : nullptr));
  ++figures_.accepted;
  return Unit{};
}

Result<> Responder::Core::serve_verbs(std::span<const std::shared_ptr<VerbsDevice>> devices) {
  auto host = VerbsHost::make(devices, ranges_);
  if (!host) return std::move(host).error();
  const std::lock_guard lock(mutex_);
  if (stopping_) return Error{ErrorCode::CLOSED, "the responder of index reads was stopped"};
  for (auto at = streams_.begin(); verbs_ && at != streams_.end();) at = end(at);
  verbs_ = std::move(host).value();
  return Unit{};
}

ResponderFigures Responder::Core::figures() const {
  const std::lock_guard lock(mutex_);
  ResponderFigures figures = figures_;
  figures.streams = streams_.size();
  for (const auto& [id, stream] : streams_) {
    figures.reads += stream.socket.answer().reads();
    figures.read_bytes += stream.socket.answer().read_bytes();
  }
  return figures;
}

void Responder::Core::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  for (auto at = streams_.begin(); at != streams_.end();) at = end(at);
  verbs_.reset();
}

void Responder::Core::run() {
  std::array<epoll_event, kEvents> events;
  int wait = -1;
  for (;;) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), kEvents, wait);
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    for (int i = 0; i < count; ++i) serve(events[static_cast<std::size_t>(i)].data.u64);
    if (busy_ != 0) drop_stalled();
    wait = wait_ms();
  }
}

// A stream may have been closed after its event was fetched: then there is none of this id.
void Responder::Core::serve(std::uint64_t id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  AnswerSocket& socket = found->second.socket;
  if (socket.answer().busy()) --busy_;
  const bool goes_on = socket.take_turn();
  if (socket.answer().busy()) ++busy_;
  if (!goes_on) {
    end(found);
    return;
  }
  const std::uint32_t wanted = socket.wanted_events();
  if (found->second.events == wanted) return;
  epoll_event event{};
  event.events = found->second.events = wanted;
  event.data.u64 = id;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket.fd(), &event);
}

// Also where a forked child holds a copy of the descriptor, the peer sees the end and no event
// comes.
Responder::Core::Streams::iterator Responder::Core::end(Streams::iterator at) {
  const AnswerSocket& socket = at->second.socket;
  if (socket.answer().busy()) --busy_;
  account(socket.answer());
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.fd(), nullptr);
  ::shutdown(socket.fd(), SHUT_RDWR);
  return streams_.erase(at);
}

// Adds what a stream that ends has done.
void Responder::Core::account(const AnswerStream& answer) {
  figures_.reads += answer.reads();
  figures_.read_bytes += answer.read_bytes();
  switch (answer.refused()) {
    case Refusal::kNone:
      break;
    case Refusal::kMalformed:
      ++figures_.refused_malformed;
      break;
    case Refusal::kOutOfRange:
      ++figures_.refused_out_of_range;
      break;
    case Refusal::kNotServed:
      ++figures_.refused_not_served;
      break;
  }
}

void Responder::Core::drop_stalled() {
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + options_.stall_timeout / 4;
  const Clock::time_point oldest = now - options_.stall_timeout;
  for (auto at = streams_.begin(); at != streams_.end();) {
    if (!at->second.socket.answer().busy() || at->second.socket.moved() > oldest) {
      ++at;
      continue;
    }
    ++figures_.dropped_stalled;
    at = end(at);
  }
}

// Returns: how long to wait for events before stalled streams are looked for.
int Responder::Core::wait_ms() const noexcept {
  return busy_ == 0 ? -1 : static_cast<int>(options_.stall_timeout.count() / 4 + 1);
}

Responder::Responder(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Responder::~Responder() {
  stop();
}

Result<std::unique_ptr<Responder>> Responder::start(const PeerRanges& ranges,
                                                    const ResponderOptions& options) {
  auto core = std::make_unique<Core>(ranges, options);
  if (Result<> started = core->start(); !started) return std::move(started).error();
  return std::unique_ptr<Responder>(new Responder(std::move(core)));
}

Result<> Responder::add(int fd) {
  return core_->add(fd);
}
Result<> Responder::serve_verbs(std::span<const std::shared_ptr<VerbsDevice>> devices) {
  return core_->serve_verbs(devices);
}
ResponderFigures Responder::figures() const {
  return core_->figures();
}
void Responder::stop() {
  core_->stop();
}

}  // namespace radixshmem
