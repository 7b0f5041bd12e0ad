// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A peer for the transport tests: regions of its own, and a process that answers for them.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/fd.h"
#include "layout/slot_store_header.h"
#include "shm/shared_region.h"
#include "tests/layout/test_region.h"
#include "tests/sync/child.h"
#include "transport/responder.h"
#include "transport/shm_reader.h"
#include "transport/tcp_reader.h"
#include "transport/verbs.h"

namespace radixshmem {

[[nodiscard]] inline Deadline in_seconds(int seconds) {
  return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
}

// Both ends of a TCP connection over loopback.
struct SocketPair {
  Fd client;
  Fd server;

  [[nodiscard]] static SocketPair make() {
    const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t bytes = sizeof address;
    RADIX_CHECK(::bind(listener.get(), generic, bytes) == 0 && ::listen(listener.get(), 1) == 0 &&
                    ::getsockname(listener.get(), generic, &bytes) == 0,
                errno);
    SocketPair pair{Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), Fd()};
    RADIX_CHECK(::connect(pair.client.get(), generic, bytes) == 0, errno);
    pair.server = Fd(::accept(listener.get(), nullptr, nullptr));
    RADIX_CHECK(pair.server.get() >= 0, errno);
    return pair;
  }
};

[[nodiscard]] inline int release(Fd& fd) {
  return ::dup(std::exchange(fd, Fd()).get());
}

// The regions of a peer: every byte that peers may read is known.
class PeerMemory final {
 public:
  static constexpr std::uint64_t kIncarnation = 0x1234'5678'9abc'def0;
  static constexpr std::uint64_t kNonce = 99;
  static constexpr std::uint64_t kSlotsBytes = std::uint64_t{2} << 20;
  static constexpr std::uint64_t kPatternFrom = kHeaderBytes;  // in the index

  PeerMemory()
      : index_name_(unique_name("peer_index")),
        data_name_(unique_name("peer_data")),
        layout_(layout_of(small_plan(64))),
        store_(plan_store({{{256, kSlotsBytes / 256}, {}, {}}}, 4096, kNonce, 4096).value()),
        index_(SharedRegion::create(index_name_, layout_.region_bytes).value()),
        data_(SharedRegion::create(data_name_, store_.region_bytes()).value()) {
    RADIX_CHECK(layout_.peer_readable_bytes <= kSlotsBytes, layout_.peer_readable_bytes);
    write_header(index_.base(), small_plan(64), layout_, kIncarnation);
    publish_header(index_.base());
    write_store_header(data_.base(), store_);
    std::memcpy(index_.base() + kPatternFrom, pattern(PeerRegion::kIndex) + kPatternFrom,
                layout_.peer_readable_bytes - kPatternFrom);
    std::memcpy(data_.base() + store_.data_offset, pattern(PeerRegion::kSlots), kSlotsBytes);
  }
  ~PeerMemory() {
    (void)SharedRegion::unlink(index_name_);
    (void)SharedRegion::unlink(data_name_);
  }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // What the bytes of a region are, from its begin on.
  [[nodiscard]] static const std::byte* pattern(PeerRegion region) {
    static const auto patterns = [] {
      std::array<std::vector<std::byte>, 2> made;
      std::mt19937 random(1);
      for (auto& bytes : made) {
        for (std::uint64_t i = 0; i < kSlotsBytes; ++i) {
          bytes.push_back(static_cast<std::byte>(random()));
        }
      }
      return made;
    }();
    return patterns[static_cast<std::size_t>(region)].data();
  }
  [[nodiscard]] static std::byte byte_at(PeerRegion region, std::uint64_t offset) {
    return pattern(region)[offset];
  }
  [[nodiscard]] std::uint64_t index_bytes() const { return layout_.peer_readable_bytes; }
  [[nodiscard]] std::byte* index() const { return index_.base(); }
  [[nodiscard]] PeerRanges ranges() const {
    return {{index_.base(), layout_.peer_readable_bytes},
            {data_.base() + store_.data_offset, kSlotsBytes}};
  }
  [[nodiscard]] ShmPeer shm_peer() const {
    return {index_name_, kIncarnation, data_name_, "", kNonce};
  }

 private:
  std::string index_name_;
  std::string data_name_;
  IndexLayout layout_;
  StoreLayout store_;
  SharedRegion index_;
  SharedRegion data_;
};

// Returns: the RDMA device to test with; "" where there is none. scripts/rdma_vm.sh makes one.
[[nodiscard]] inline std::string rdma_device() {
  const char* const name = std::getenv("RADIX_TEST_RDMA_DEVICE");
  return name != nullptr ? name : "";
}

[[nodiscard]] inline Result<std::shared_ptr<VerbsDevice>> open_test_device() {
  VerbsOptions options;
  options.device = rdma_device();
  return open_verbs(options);
}

// A process with a responder for some memory, and streams to it.
class PeerProcess final {
 public:
  static constexpr int kStreams = 4;

  explicit PeerProcess(const PeerRanges& ranges) {
    for (int i = 0; i < kStreams; ++i) pairs_.push_back(SocketPair::make());
    child_.emplace([&](Child& child) {
      auto responder = Responder::start(ranges);
      if (!responder) return 1;
      if (!rdma_device().empty()) {
        auto device = open_test_device();
        if (!device || !responder.value()->serve_verbs({&device.value(), 1})) return 3;
      }
      for (SocketPair& pair : pairs_) {
        pair.client.reset();
        if (!responder.value()->add(release(pair.server))) return 2;
      }
      child.say_ready();
      child.wait_for_parent();
      return 0;
    });
    for (SocketPair& pair : pairs_) pair.server.reset();
    EXPECT_TRUE(child_->wait_ready());
  }

  // Returns: the client end of a stream that nobody has yet.
  [[nodiscard]] int take_stream() {
    Fd fd = std::move(pairs_.back().client);
    pairs_.pop_back();
    return release(fd);
  }
  [[nodiscard]] Child& child() { return *child_; }

 private:
  std::vector<SocketPair> pairs_;
  std::optional<Child> child_;
};

// Destinations for the bytes of some reads, checked against the pattern.
class Reads final {
 public:
  void add(PeerRegion region, std::uint64_t offset, std::uint32_t length) {
    buffers_.push_back(std::make_unique<std::byte[]>(length));
    ops_.push_back({region, offset, length, buffers_.back().get()});
  }
  [[nodiscard]] std::span<const ReadOp> ops() const { return ops_; }
  // Returns: how many reads hold other bytes than the pattern's.
  [[nodiscard]] std::size_t wrong() const {
    std::size_t count = 0;
    for (const ReadOp& op : ops_) {
      const std::byte* const wanted = PeerMemory::pattern(op.region) + op.offset;
      if (std::memcmp(op.to, wanted, op.length) != 0) ++count;
    }
    return count;
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  std::vector<ReadOp> ops_;
};

// Returns: how one batch ended; kPending when it did not within 20 s.
inline PeerReader::Progress read_all(PeerReader& reader, std::span<const ReadOp> ops) {
  if (!reader.post(ops)) return PeerReader::Progress::kFailed;
  PeerReader* const one = &reader;
  (void)wait_all({&one, 1}, in_seconds(20));
  return reader.poll();
}

}  // namespace radixshmem
