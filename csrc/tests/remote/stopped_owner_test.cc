// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A lookup in another process's memory, and reads of the slots that it names. Over verbs the owner
// does not run at all meanwhile: scripts/rdma_vm.sh makes a machine that has them.
#include <sys/mman.h>

#include <cstring>

#include "tests/remote/cluster_rig.h"
#include "tests/transport/transports.h"

namespace radixshmem {
namespace {

constexpr std::uint32_t kSlotBytes = 512;

// Slots that say whose they are, shared with forked processes.
class SlotMemory final {
 public:
  explicit SlotMemory(std::uint32_t slots)
      : bytes_(std::size_t{slots} * kSlotBytes),
        base_(static_cast<std::byte*>(
            ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    RADIX_CHECK(base_ != MAP_FAILED, errno);
    for (std::uint32_t slot = 0; slot < slots; ++slot) fill(slot, base_ + slot * kSlotBytes);
  }
  ~SlotMemory() { ::munmap(base_, bytes_); }
  SlotMemory(const SlotMemory&) = delete;
  SlotMemory& operator=(const SlotMemory&) = delete;

  static void fill(std::uint32_t slot, std::byte* to) {
    for (std::uint32_t i = 0; i < kSlotBytes; ++i) {
      to[i] = static_cast<std::byte>((slot + 1) * 2'654'435'761u >> (i % 24));
    }
  }
  [[nodiscard]] std::span<const std::byte> span() const { return {base_, bytes_}; }

 private:
  std::size_t bytes_;
  std::byte* base_;
};

std::vector<Transport> transports_between_processes() {
  std::vector<Transport> all = transports_here();
  std::erase_if(all, [](const Transport& one) {
    return one.kind != TransportKind::kTcp && one.kind != TransportKind::kVerbs;
  });
  return all;
}

class OtherProcess : public ::testing::TestWithParam<Transport> {
 protected:
  // Returns: how many of the hit's blocks have the bytes of the slot that it names.
  static std::size_t right_slots(PeerReader& reader, const RemoteHit& hit) {
    std::vector<std::uint32_t> slots;
    for (const RemoteFragment& fragment : hit.full) {
      slots.insert(slots.end(), fragment.slots.begin(), fragment.slots.end());
    }
    std::vector<std::byte> got(slots.size() * kSlotBytes);
    std::vector<ReadOp> ops;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      ops.push_back({PeerRegion::kSlots, std::uint64_t{slots[i]} * kSlotBytes, kSlotBytes,
                     got.data() + i * kSlotBytes});
    }
    if (read_all(reader, ops) != PeerReader::Progress::kDone) return 0;
    std::size_t right = 0;
    std::array<std::byte, kSlotBytes> wanted{};
    for (std::size_t i = 0; i < slots.size(); ++i) {
      SlotMemory::fill(slots[i], wanted.data());
      right += std::memcmp(ops[i].to, wanted.data(), kSlotBytes) == 0 ? 1U : 0U;
    }
    return right;
  }
};

INSTANTIATE_TEST_SUITE_P(transports, OtherProcess,
                         ::testing::ValuesIn(transports_between_processes()),
                         [](const auto& chosen) { return chosen.param.name; });

TEST_P(OtherProcess, is_found_and_read_also_while_it_is_stopped) {
  ClusterRig cluster(2);
  const Path path = make_path(1, 500);
  const Path branch = branch_of(path, 200, 2, 150);
  cluster.put(0, first_of(path, 100));
  cluster.put(1, path);
  cluster.put(1, branch);
  cluster.publish_all();
  const SlotMemory slots(cluster.plan().slots[0]);
  const PeerMemory unused;
  PeerProcess owner({cluster.node(1).readable(), slots.span()});  // with a copy of node 1
  auto index = GetParam().open(unused, owner);
  auto bytes = GetParam().open(unused, owner);
  ASSERT_TRUE(index.ok() && bytes.ok());
  cluster.connect(0, 0);
  const auto adopted = cluster.node(0).peers.adopt(1, cluster.node(1).info.incarnation,
                                                   std::move(index).value(), in_seconds(20));
  ASSERT_TRUE(adopted.ok()) << adopted.error().message;

  if (GetParam().one_sided) owner.child().stop();
  for (int i = 0; i < 20; ++i) {
    const Path& wanted = i % 2 == 0 ? path : branch;
    const RemoteHit hit = cluster.find(0, wanted);
    ASSERT_EQ(hit.common_hit, wanted.size());
    EXPECT_EQ(hit.figures.rounds, 2U);
    EXPECT_EQ(hit.figures.timeouts + hit.figures.failures + hit.figures.stale_entries, 0U);
    ASSERT_EQ(right_slots(*bytes.value(), hit), wanted.size() - 100);
  }
  owner.child().signal(SIGCONT);
}

}  // namespace
}  // namespace radixshmem
