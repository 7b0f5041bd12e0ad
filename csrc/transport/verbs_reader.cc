// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/verbs_library.h"

#if RADIX_HAVE_VERBS

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "transport/stream_socket.h"
#include "transport/verbs_queue_pair.h"

namespace radixshmem {
namespace {

constexpr std::size_t kLandingBytes = 256 << 10;
constexpr std::uint32_t kMaxStepBytes = 1 << 20;  // of one RDMA READ

// Where bytes arrive whose destination is not registered. Shared, so that a fork does not move it.
class Landing final {
 public:
  Landing()
      : base_(::mmap(nullptr, kLandingBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                     0)) {}
  ~Landing() {
    if (base_ != MAP_FAILED) ::munmap(base_, kLandingBytes);
  }
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;
  Result<> register_with(const VerbsDevice& device) {
    if (base_ == MAP_FAILED) return system_error("cannot map memory for RDMA READs", ENOMEM);
    Result<VerbsMemory> memory =
        device.register_memory(base(), kLandingBytes, IBV_ACCESS_LOCAL_WRITE);
    if (!memory) return std::move(memory).error();
    memory_ = std::move(memory).value();
    return Unit{};
  }
  [[nodiscard]] std::byte* base() const noexcept { return static_cast<std::byte*>(base_); }
  [[nodiscard]] std::uint32_t key() const noexcept { return memory_.local_key(); }

 private:
  void* base_;
  VerbsMemory memory_;  // ends before the mapping does
};

// A batch is read in waves: as many reads as the queue and the landing take, the last of which
// tells when all are done, since a connection completes its reads in order.
class Reader final : public PeerReader {
 public:
  Reader(Fd stream, std::shared_ptr<VerbsDevice> device)
      : stream_(std::move(stream)), device_(std::move(device)) {}

  Result<> connect(Deadline deadline, std::uint8_t rail);

  [[nodiscard]] TransportKind kind() const noexcept override { return TransportKind::kVerbs; }
  [[nodiscard]] bool post(std::span<const ReadOp> ops) noexcept override;
  [[nodiscard]] Progress poll() noexcept override;
  void abandon() noexcept override {
    if (result_ == Progress::kPending) fail();
  }
  [[nodiscard]] bool broken() const noexcept override { return pair_ == nullptr; }

 private:
  // A part of a batch that went to the landing.
  struct Landed {
    std::byte* to;
    std::size_t at;
    std::size_t bytes;
  };

  Result<QueuePairInfo> exchange(const QueuePairInfo& own, Deadline deadline);
  [[nodiscard]] bool peer_lives() const noexcept;
  void fail() noexcept {
    pair_.reset();
    stream_.reset();
    result_ = Progress::kFailed;
  }
  void start_wave() noexcept;
  [[nodiscard]] bool add_step(std::uint32_t step) noexcept;
  void end_wave() noexcept;

  // In this order: each ends before what it is made of, or writes to.
  Fd stream_;
  std::shared_ptr<VerbsDevice> device_;
  Landing landing_;
  std::unique_ptr<VerbsQueuePair> pair_;
  std::array<VerbsRange, 2> ranges_{};
  std::vector<ReadOp> ops_;
  std::size_t at_ = 0;      // the read in ops_ that the next wave begins with
  std::uint32_t done_ = 0;  // bytes of it that earlier waves have read
  std::array<ibv_send_wr, VerbsQueuePair::kMaxPosted> requests_{};
  std::array<ibv_sge, VerbsQueuePair::kMaxPosted> parts_{};
  std::array<Landed, VerbsQueuePair::kMaxPosted> landed_{};
  std::size_t landed_count_ = 0;
  std::size_t landing_used_ = 0;
  Progress result_ = Progress::kDone;
};

Result<> Reader::connect(Deadline deadline, std::uint8_t rail) {
  if (Result<> registered = landing_.register_with(*device_); !registered) return registered;
  auto pair = VerbsQueuePair::make(device_, VerbsQueuePair::Role::kReads);
  if (!pair) return std::move(pair).error();
  QueuePairInfo own = pair.value()->info();
  own.rail = rail;
  const Result<QueuePairInfo> peer = exchange(own, deadline);
  if (!peer) return peer.error();
  if (Result<> connected = pair.value()->connect(peer.value()); !connected) return connected;
  ranges_ = peer.value().ranges;
  pair_ = std::move(pair).value();
  return Unit{};
}

Result<QueuePairInfo> Reader::exchange(const QueuePairInfo& own, Deadline deadline) {
  struct {
    RequestHeader header;
    QueuePairInfo info;
  } request{{kRequestMagic, static_cast<std::uint16_t>(StreamKind::kVerbs), 0, 0, sizeof own}, own};
  static_assert(sizeof request == sizeof(RequestHeader) + sizeof own);
  struct {
    ReplyHeader header;
    QueuePairInfo info;
  } reply{};
  static_assert(sizeof reply == sizeof(ReplyHeader) + sizeof own);
  if (!send_all(stream_.get(), std::as_bytes(std::span(&request, 1)), deadline)) {
    return system_error("cannot ask the peer for a verbs connection", errno);
  }
  const auto header = std::as_writable_bytes(std::span(&reply.header, 1));
  if (!receive_all(stream_.get(), header, deadline)) {
    return system_error("the peer did not answer the request for a verbs connection", errno);
  }
  if (reply.header.magic != kReplyMagic || reply.header.kind != request.header.kind ||
      reply.header.status != 0 || reply.header.body_bytes != sizeof own) {
    return Error{ErrorCode::NOT_READY, "the peer makes no verbs connection (status " +
                                           std::to_string(reply.header.status) +
                                           "): see its log for its RDMA device"};
  }
  const auto body = std::as_writable_bytes(std::span(&reply.info, 1));
  QueuePairInfo peer{};
  if (!receive_all(stream_.get(), body, deadline) || !parse_verbs_info(body, peer)) {
    return Error{ErrorCode::SYSTEM, "the peer broke off while a verbs connection was made"};
  }
  return peer;
}

// The stream carries nothing after the connection was made, and ends with the life of the ranges.
bool Reader::peer_lives() const noexcept {
  std::byte byte{};
  return ::recv(stream_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
         (errno == EAGAIN || errno == EINTR);
}

bool Reader::post(std::span<const ReadOp> ops) noexcept {
  if (broken() || batch_bytes(ops) == 0) return false;
  if (!peer_lives()) {
    fail();
    return false;
  }
  ops_.assign(ops.begin(), ops.end());
  at_ = 0;
  done_ = 0;
  result_ = Progress::kPending;
  for (const ReadOp& op : ops) {
    const std::uint64_t bytes = ranges_[static_cast<std::size_t>(op.region)].bytes;
    if (op.offset <= bytes && op.length <= bytes - op.offset) continue;
    fail();
    return true;
  }
  start_wave();
  return true;
}

void Reader::start_wave() noexcept {
  landed_count_ = 0;
  landing_used_ = 0;
  std::uint32_t steps = 0;
  while (at_ < ops_.size() && steps < VerbsQueuePair::kMaxPosted && add_step(steps)) ++steps;
  for (std::uint32_t i = 0; i + 1 < steps; ++i) requests_[i].next = &requests_[i + 1];
  requests_[steps - 1].next = nullptr;
  requests_[steps - 1].send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  if (::ibv_post_send(pair_->pair(), requests_.data(), &refused) != 0) fail();
}

// Adds the next bytes to the wave. Returns: false when the landing has no room for them.
bool Reader::add_step(std::uint32_t step) noexcept {
  const ReadOp& op = ops_[at_];
  const VerbsRange& range = ranges_[static_cast<std::size_t>(op.region)];
  std::uint32_t bytes = std::min(op.length - done_, kMaxStepBytes);
  std::byte* to = op.to + done_;
  std::uint32_t key = 0;
  if (op.region != PeerRegion::kSlots || !device_->local_key(to, bytes, key)) {
    const std::size_t room = kLandingBytes - landing_used_;
    if (room == 0) return false;
    bytes = static_cast<std::uint32_t>(std::min<std::size_t>(bytes, room));
    landed_[landed_count_++] = {to, landing_used_, bytes};
    to = landing_.base() + landing_used_;
    key = landing_.key();
    landing_used_ += bytes;
  }
  parts_[step] = {reinterpret_cast<std::uint64_t>(to), bytes, key};
  ibv_send_wr& request = requests_[step];
  request = {};
  request.sg_list = &parts_[step];
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.wr.rdma.remote_addr = range.address + op.offset + done_;
  request.wr.rdma.rkey = range.key;
  done_ += bytes;
  if (done_ == op.length) {
    ++at_;
    done_ = 0;
  }
  return true;
}

PeerReader::Progress Reader::poll() noexcept {
  while (result_ == Progress::kPending) {
    ibv_wc completion{};
    const int count = ::ibv_poll_cq(pair_->completions(), 1, &completion);
    if (count == 0) break;
    if (count < 0 || completion.status != IBV_WC_SUCCESS) {
      fail();
    } else {
      end_wave();
    }
  }
  return result_;
}

void Reader::end_wave() noexcept {
  for (std::size_t i = 0; i < landed_count_; ++i) {
    std::memcpy(landed_[i].to, landing_.base() + landed_[i].at, landed_[i].bytes);
  }
  if (at_ == ops_.size()) {
    result_ = Progress::kDone;
  } else {
    start_wave();
  }
}

}  // namespace

Result<std::unique_ptr<PeerReader>> VerbsReader::make(int fd, std::shared_ptr<VerbsDevice> device,
                                                      Deadline deadline, std::uint8_t rail) {
  Result<Fd> stream = adopt_stream(fd);
  if (!stream) return std::move(stream).error();
  auto reader = std::make_unique<Reader>(std::move(stream).value(), std::move(device));
  if (Result<> connected = reader->connect(deadline, rail); !connected) {
    return std::move(connected).error();
  }
  return std::unique_ptr<PeerReader>(std::move(reader));
}

}  // namespace radixshmem

#endif
