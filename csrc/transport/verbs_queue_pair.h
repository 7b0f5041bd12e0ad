// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One reliable connection, and the queue of its completions. Only transport/verbs_*.
// Life: make, tell the peer info(), connect() to the peer's. Destroying it ends all that is in
// flight: afterwards no memory is read or written by it.
// Thread safety: one thread at a time.
#pragma once

#include "transport/verbs_library.h"

#if RADIX_HAVE_VERBS

#include <memory>

#include "transport/verbs_device.h"
#include "transport/verbs_info.h"

namespace radixshmem {

class VerbsQueuePair final {
 public:
  enum class Role { kReads, kIsRead };
  static constexpr std::uint32_t kMaxPosted = 128;  // reads at once, in the queue of a kReads

  static Result<std::unique_ptr<VerbsQueuePair>> make(std::shared_ptr<VerbsDevice> device,
                                                      Role role);
  VerbsQueuePair(std::shared_ptr<VerbsDevice> device, Role role)
      : device_(std::move(device)), role_(role) {}
  ~VerbsQueuePair();
  VerbsQueuePair(const VerbsQueuePair&) = delete;
  VerbsQueuePair& operator=(const VerbsQueuePair&) = delete;

  // Returns: what the peer has to know, without ranges.
  [[nodiscard]] QueuePairInfo info() const noexcept;
  Result<> connect(const QueuePairInfo& peer);

  [[nodiscard]] ibv_qp* pair() const noexcept { return pair_; }
  [[nodiscard]] ibv_cq* completions() const noexcept { return completions_; }

 private:
  Result<> create();
  Result<> initialise();
  Result<> modify(ibv_qp_attr& attributes, int mask, const char* step);

  std::shared_ptr<VerbsDevice> device_;
  Role role_;
  VerbsPort port_{};
  std::uint32_t packet_number_ = 0;
  ibv_cq* completions_ = nullptr;
  ibv_qp* pair_ = nullptr;
};

}  // namespace radixshmem

#endif
