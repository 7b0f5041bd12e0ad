// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/verbs_queue_pair.h"

#if RADIX_HAVE_VERBS

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

namespace radixshmem {
namespace {

constexpr int kMinRnrTimer = 12;
constexpr std::uint8_t kHopLimit = 64;

std::uint8_t reads_at_once(int limit) noexcept {
  return static_cast<std::uint8_t>(std::clamp(limit, 1, 128));
}

}  // namespace

Result<std::unique_ptr<VerbsQueuePair>> VerbsQueuePair::make(std::shared_ptr<VerbsDevice> device,
                                                             Role role) {
  auto made = std::make_unique<VerbsQueuePair>(std::move(device), role);
  if (Result<> created = made->create(); !created) return std::move(created).error();
  return made;
}

Result<> VerbsQueuePair::create() {
  Result<VerbsPort> port = device_->port();
  if (!port) return std::move(port).error();
  port_ = port.value();
  std::random_device random;  // so that packets of an earlier connection are not taken for its own
  packet_number_ = random() & 0xff'ffff;
  const VerbsLibrary& library = device_->library();
  // After an error each posted read completes, whether it was to be signalled or not.
  const int entries = std::min<int>(2 * kMaxPosted, device_->limits().max_cqe);
  completions_ = library.create_cq(device_->context(), entries, nullptr, nullptr, 0);
  if (completions_ == nullptr) {
    return system_error("cannot make a completion queue of RDMA device " + device_->name(), errno);
  }
  ibv_qp_init_attr attributes{};
  attributes.send_cq = completions_;
  attributes.recv_cq = completions_;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = role_ == Role::kReads ? kMaxPosted : 1;
  attributes.cap.max_recv_wr = 1;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  pair_ = library.create_qp(device_->domain(), &attributes);
  if (pair_ == nullptr) {
    return system_error("cannot make a queue pair of RDMA device " + device_->name() +
                            " (close idle connections, or raise the memlock limit)",
                        errno);
  }
  return initialise();
}

Result<> VerbsQueuePair::modify(ibv_qp_attr& attributes, int mask, const char* step) {
  const int error = device_->library().modify_qp(pair_, &attributes, mask);
  if (error == 0) return Unit{};
  return system_error("cannot bring a queue pair of RDMA device " + device_->name() + " to " + step,
                      error);
}

Result<> VerbsQueuePair::initialise() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device_->options().port;
  attributes.qp_access_flags = 0;
  if (role_ == Role::kIsRead) attributes.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  return modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                "INIT");
}

VerbsQueuePair::~VerbsQueuePair() {
  const VerbsLibrary& library = device_->library();
  if (pair_ != nullptr) library.destroy_qp(pair_);
  if (completions_ != nullptr) library.destroy_cq(completions_);
}

QueuePairInfo VerbsQueuePair::info() const noexcept {
  QueuePairInfo info{};
  info.version = kVerbsVersion;
  info.number = pair_->qp_num;
  info.packet_number = packet_number_;
  info.lid = port_.attributes.lid;
  info.mtu = static_cast<std::uint8_t>(port_.attributes.active_mtu);
  const ibv_device_attr& limits = device_->limits();
  info.max_reads =
      reads_at_once(role_ == Role::kReads ? limits.max_qp_init_rd_atom : limits.max_qp_rd_atom);
  std::memcpy(info.gid.data(), port_.gid.raw, info.gid.size());
  info.global = port_.global ? 1 : 0;
  info.link_layer = port_.attributes.link_layer;
  return info;
}

Result<> VerbsQueuePair::connect(const QueuePairInfo& peer) {
  const QueuePairInfo own = info();
  if (peer.link_layer != own.link_layer || peer.global != own.global) {
    return Error{ErrorCode::MISMATCH,
                 "the peer's RDMA port has link layer " + std::to_string(peer.link_layer) +
                     (peer.global != 0 ? " with" : " without") + " a GID, RDMA device " +
                     device_->name() + " has " + std::to_string(own.link_layer) +
                     (own.global != 0 ? " with" : " without") + " one: name devices of one fabric"};
  }
  const std::uint8_t reads = std::min(own.max_reads, peer.max_reads);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(own.mtu, peer.mtu));
  attributes.dest_qp_num = peer.number;
  attributes.rq_psn = peer.packet_number;
  attributes.max_dest_rd_atomic = reads;
  attributes.min_rnr_timer = kMinRnrTimer;
  attributes.ah_attr.dlid = peer.lid;
  attributes.ah_attr.sl = device_->options().service_level;
  attributes.ah_attr.port_num = device_->options().port;
  if (port_.global) {
    attributes.ah_attr.is_global = 1;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    attributes.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(port_.gid_index);
    attributes.ah_attr.grh.hop_limit = kHopLimit;
    attributes.ah_attr.grh.traffic_class = device_->options().traffic_class;
  }
  Result<> ready = modify(attributes,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                          "RTR");
  if (!ready) return ready;
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = device_->options().answer_timeout;
  attributes.retry_cnt = device_->options().retries;
  attributes.rnr_retry = 7;
  attributes.sq_psn = packet_number_;
  attributes.max_rd_atomic = reads;
  return modify(attributes,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "RTS");
}

}  // namespace radixshmem

#endif
