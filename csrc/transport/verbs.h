// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Reads over InfiniBand and RoCE: RDMA READs on reliable connections, which the peer's processes
// take no part in once the connection is made.
//
// libibverbs is loaded at run time; a build without its header, a machine without the library and
// one without a device give the same NOT_READY, whose message says which.
// A connection is made over an index stream (index_stream.h): both sides exchange a QueuePairInfo.
// The stream stays open as long as the connection: where it ends, the peer's life has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "transport/index_stream.h"
#include "transport/peer_reader.h"

namespace radixshmem {

struct VerbsOptions {
  std::string device;              // "mlx5_0", "mlx5_bond_0"; empty: the first whose port is up
  std::uint8_t port = 1;           // of the device
  int gid_index = -1;              // -1: 3 if that is RoCE v2 with an IPv4 address, else the first
  std::uint8_t traffic_class = 0;  // of the packets, for lossless queues
  std::uint8_t service_level = 0;  // of InfiniBand
  std::uint8_t answer_timeout = 14;  // an answer is late after 4.096 us * 2^answer_timeout
  std::uint8_t retries = 7;          // after which the connection breaks
};

// An open device, with the memory that is registered with it. Thread safety: from any thread.
class VerbsDevice;

// NOT_READY: no verbs here. INVALID_ARGUMENT names the devices, or prints the GID table.
Result<std::shared_ptr<VerbsDevice>> open_verbs(const VerbsOptions& options);

// Returns: device, port, link layer, GID and MTU, for logs and status.
[[nodiscard]] std::string describe(const VerbsDevice& device);

// Registers memory that reads go straight to; other destinations get a copy of what was read.
// Requires: it stays mapped as long as the device, or a reader of it, is.
Result<> register_destination(VerbsDevice& device, std::span<std::byte> memory);

class VerbsReader final {
 public:
  // Takes the stream `fd` over and connects; waits for the peer until the deadline. The peer's
  // device is the one of number `rail`, modulo as many as it serves.
  static Result<std::unique_ptr<PeerReader>> make(int fd, std::shared_ptr<VerbsDevice> device,
                                                  Deadline deadline, std::uint8_t rail = 0);
};

// The responder's end of one connection, made by request of the peer.
class VerbsEnd {
 public:
  VerbsEnd() = default;
  VerbsEnd(const VerbsEnd&) = delete;
  VerbsEnd& operator=(const VerbsEnd&) = delete;
  virtual ~VerbsEnd() = default;
  // Connects to who sent `request`, instead of whom it was connected to before.
  // Returns: the answer; nothing when it cannot.
  [[nodiscard]] virtual std::span<const std::byte> connect(
      std::span<const std::byte> request) noexcept = 0;
};

// Memory that peers may read, and never write, through some devices. Thread safety: from any
// thread.
class VerbsHost {
 public:
  // Registers the ranges with each device, which pins their memory and takes a while.
  // Requires: there is a device; the ranges stay mapped as long as the host is.
  static Result<std::unique_ptr<VerbsHost>> make(
      std::span<const std::shared_ptr<VerbsDevice>> devices, const PeerRanges& ranges);
  VerbsHost() = default;
  VerbsHost(const VerbsHost&) = delete;
  VerbsHost& operator=(const VerbsHost&) = delete;
  virtual ~VerbsHost() = default;
  // Requires: the host outlives it.
  [[nodiscard]] virtual std::unique_ptr<VerbsEnd> make_end() = 0;
};

}  // namespace radixshmem
