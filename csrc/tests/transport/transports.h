// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The transports that the suite runs on: all that this machine has.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/transport/fake_reader.h"
#include "tests/transport/peer_rig.h"

namespace radixshmem {

struct Transport {
  const char* name;
  TransportKind kind;
  bool one_sided;      // reads while the peer is stopped
  bool outlives_peer;  // reads what a dead peer left
  Result<std::unique_ptr<PeerReader>> (*open)(const PeerMemory& memory, PeerProcess& process);

  friend std::ostream& operator<<(std::ostream& out, const Transport& transport) {
    return out << transport.name;
  }
};

inline Result<std::unique_ptr<PeerReader>> open_shm(const PeerMemory& memory, PeerProcess&) {
  return ShmReader::open(memory.shm_peer());
}

inline Result<std::unique_ptr<PeerReader>> open_tcp(const PeerMemory&, PeerProcess& process) {
  return TcpReader::make(process.take_stream());
}

inline Result<std::unique_ptr<PeerReader>> open_fake(const PeerMemory& memory,
                                                     PeerProcess& process) {
  auto inner = open_tcp(memory, process);
  if (!inner) return inner;
  Faults faults;
  faults.reorder = true;
  faults.tear = true;
  return std::unique_ptr<PeerReader>(new FakeReader(std::move(inner).value(), faults, 7));
}

inline Result<std::unique_ptr<PeerReader>> open_test_verbs(const PeerMemory&,
                                                           PeerProcess& process) {
  auto device = open_test_device();
  if (!device) return std::move(device).error();
  return VerbsReader::make(process.take_stream(), std::move(device).value(), in_seconds(20));
}

[[nodiscard]] inline std::vector<Transport> transports_here() {
  std::vector<Transport> here{{"shm", TransportKind::kShm, true, true, &open_shm},
                              {"tcp", TransportKind::kTcp, false, false, &open_tcp},
                              {"fake", TransportKind::kFake, false, false, &open_fake}};
  if (!rdma_device().empty()) {
    here.push_back({"verbs", TransportKind::kVerbs, true, false, &open_test_verbs});
  }
  return here;
}

}  // namespace radixshmem
