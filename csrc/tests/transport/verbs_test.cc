// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What verbs do beyond the suite that all transports pass. Most of it needs an RDMA device:
// scripts/rdma_vm.sh runs it in a virtual machine that has one.
#include "transport/verbs.h"

#include <array>
#include <cstring>

#include "tests/transport/transports.h"
#include "transport/answer_stream.h"
#include "transport/verbs_info.h"

namespace radixshmem {
namespace {

using Progress = PeerReader::Progress;

QueuePairInfo good_info() {
  QueuePairInfo info{};
  info.version = kVerbsVersion;
  info.number = 17;
  info.mtu = 5;
  info.max_reads = 16;
  return info;
}

bool parses(const QueuePairInfo& info, std::size_t bytes = sizeof(QueuePairInfo)) {
  QueuePairInfo parsed{};
  return parse_verbs_info(std::as_bytes(std::span(&info, 1)).first(bytes), parsed);
}

TEST(VerbsInfoTest, refuses_what_a_hostile_peer_may_send) {
  EXPECT_TRUE(parses(good_info()));
  EXPECT_FALSE(parses(good_info(), sizeof(QueuePairInfo) - 1));
  QueuePairInfo info = good_info();
  info.version = 2;
  EXPECT_FALSE(parses(info));
  info = good_info();
  info.number = 1 << 24;
  EXPECT_FALSE(parses(info));
  for (const auto mtu : std::array<std::uint8_t, 2>{0, 6}) {
    info = good_info();
    info.mtu = mtu;
    EXPECT_FALSE(parses(info));
  }
  info = good_info();
  info.max_reads = 0;
  EXPECT_FALSE(parses(info));
}

class RecordingEnd final : public VerbsEnd {
 public:
  explicit RecordingEnd(std::vector<std::byte> answer) : answer_(std::move(answer)) {}
  [[nodiscard]] std::span<const std::byte> connect(
      std::span<const std::byte> request) noexcept override {
    EXPECT_EQ(request.size(), 3U);
    return answer_;
  }

 private:
  std::vector<std::byte> answer_;
};

// Returns: what a stream answers to a VERBS request of three bytes.
std::vector<std::byte> answer_of(std::unique_ptr<VerbsEnd> end) {
  const PeerRanges none;
  AnswerStream stream(none, std::move(end));
  const RequestHeader header{kRequestMagic, 2, 0, 4, 3};
  std::memcpy(stream.room().data(), &header, sizeof header);
  stream.received(sizeof header + 3);
  std::vector<std::byte> all;
  while (stream.answering()) {
    const iovec part = stream.output().front();
    const auto* const from = static_cast<const std::byte*>(part.iov_base);
    all.insert(all.end(), from, from + part.iov_len);
    stream.sent(part.iov_len);
  }
  return all;
}

TEST(VerbsStreamTest, answers_with_what_the_device_side_says) {
  const std::vector<std::byte> said(88, std::byte{5});
  const std::vector<std::byte> answer = answer_of(std::make_unique<RecordingEnd>(said));
  ASSERT_EQ(answer.size(), sizeof(ReplyHeader) + said.size());
  ReplyHeader reply{};
  std::memcpy(&reply, answer.data(), sizeof reply);
  EXPECT_EQ(reply.kind, 2);
  EXPECT_EQ(reply.status, 0);
  EXPECT_EQ(reply.body_bytes, said.size());
  EXPECT_EQ(answer.back(), std::byte{5});
}

TEST(VerbsStreamTest, refuses_when_the_device_side_cannot) {
  const std::vector<std::byte> answer =
      answer_of(std::make_unique<RecordingEnd>(std::vector<std::byte>{}));
  ASSERT_EQ(answer.size(), sizeof(ReplyHeader));
  ReplyHeader reply{};
  std::memcpy(&reply, answer.data(), sizeof reply);
  EXPECT_EQ(static_cast<Refusal>(reply.status), Refusal::kNotServed);
}

TEST(VerbsOpenTest, says_why_there_are_none_where_there_is_no_device) {
  if (!rdma_device().empty()) GTEST_SKIP() << "there is " << rdma_device();
  const auto device = open_verbs({});
  if (device.ok()) GTEST_SKIP() << "there is " << describe(*device.value());
  EXPECT_EQ(device.error().code, ErrorCode::NOT_READY);
  EXPECT_EQ(device.error().message.rfind("verbs cannot be used: ", 0), 0U)
      << device.error().message;
}

class VerbsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (rdma_device().empty()) GTEST_SKIP() << "RADIX_TEST_RDMA_DEVICE names no RDMA device";
    auto opened = open_test_device();
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    device_ = std::move(opened).value();
  }
  [[nodiscard]] static std::string refusal(const VerbsOptions& options) {
    const auto device = open_verbs(options);
    if (device.ok()) return "";
    EXPECT_EQ(device.error().code, ErrorCode::INVALID_ARGUMENT);
    return device.error().message;
  }
  // A responder in this process, with verbs.
  [[nodiscard]] std::unique_ptr<Responder> serve() {
    auto responder = Responder::start(memory_.ranges()).value();
    const Result<> served = responder->serve_verbs({&device_, 1});
    EXPECT_TRUE(served.ok()) << served.error().message;
    return responder;
  }
  [[nodiscard]] Result<std::unique_ptr<PeerReader>> reader_of(Responder& responder) {
    SocketPair pair = SocketPair::make();
    EXPECT_TRUE(responder.add(release(pair.server)).ok());
    return VerbsReader::make(release(pair.client), device_, in_seconds(20));
  }
  [[nodiscard]] static bool works(PeerReader& reader) {
    Reads reads;
    reads.add(PeerRegion::kIndex, PeerMemory::kPatternFrom, 960);
    return read_all(reader, reads.ops()) == Progress::kDone && reads.wrong() == 0;
  }

  PeerMemory memory_;
  std::shared_ptr<VerbsDevice> device_;
};

TEST_F(VerbsTest, opens_a_device_by_name_or_the_first_that_is_up) {
  EXPECT_NE(describe(*device_).find(rdma_device() + " port 1, RoCE v2, gid_idx "),
            std::string::npos)
      << describe(*device_);
  EXPECT_NE(describe(*device_).find("(::ffff:10."), std::string::npos) << describe(*device_);
  EXPECT_TRUE(open_verbs({}).ok());
  VerbsOptions other;
  other.device = "mlx5_bond_7";
  EXPECT_EQ(refusal(other), "there is no RDMA device mlx5_bond_7; here are: " + rdma_device());
}

TEST_F(VerbsTest, prints_the_gid_table_for_a_wrong_index) {
  VerbsOptions options;
  options.device = rdma_device();
  options.gid_index = 900;
  const std::string message = refusal(options);
  EXPECT_NE(message.find("gid_idx 900 is no RoCE v2 address of port 1"), std::string::npos);
  EXPECT_NE(message.find("\n  1  ::ffff:10.77.0.1  RoCE v2"), std::string::npos) << message;
}

TEST_F(VerbsTest, prefers_index_3_among_the_addresses_of_ipv4) {
  EXPECT_NE(describe(*device_).find("gid_idx 3 (::ffff:10.77.0.3)"), std::string::npos)
      << describe(*device_);
  VerbsOptions options;
  options.gid_index = 2;
  const auto second = open_verbs(options);
  ASSERT_TRUE(second.ok()) << second.error().message;
  EXPECT_NE(describe(*second.value()).find("gid_idx 2 (::ffff:10.77.0.2)"), std::string::npos);
}

TEST_F(VerbsTest, reads_straight_into_registered_memory) {
  const auto responder = serve();
  auto reader = reader_of(*responder);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  std::vector<std::byte> store(PeerMemory::kSlotsBytes);
  ASSERT_TRUE(register_destination(*device_, store).ok());
  std::vector<ReadOp> ops;
  constexpr std::uint32_t kSlot = 256 << 10;
  for (std::uint32_t at = 0; at < store.size(); at += kSlot) {
    ops.push_back({PeerRegion::kSlots, at, kSlot, store.data() + at});
  }
  ASSERT_EQ(read_all(*reader.value(), ops), Progress::kDone);
  EXPECT_EQ(std::memcmp(store.data(), PeerMemory::pattern(PeerRegion::kSlots), store.size()), 0);
}

// Two devices of one name stand for two NICs; each has keys of its own for the memory.
TEST_F(VerbsTest, reads_through_each_device_of_the_peer) {
  auto responder = Responder::start(memory_.ranges()).value();
  const std::array devices{device_, open_test_device().value()};
  ASSERT_TRUE(responder->serve_verbs(devices).ok());
  for (const std::uint8_t rail : std::array<std::uint8_t, 3>{0, 1, 255}) {
    SocketPair pair = SocketPair::make();
    ASSERT_TRUE(responder->add(release(pair.server)).ok());
    auto reader = VerbsReader::make(release(pair.client), device_, in_seconds(20), rail);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    EXPECT_TRUE(works(*reader.value())) << int{rail};
  }
}

TEST_F(VerbsTest, breaks_at_once_when_the_peer_stops) {
  const auto responder = serve();
  auto before = reader_of(*responder);
  ASSERT_TRUE(before.ok()) << before.error().message;
  EXPECT_TRUE(works(*before.value()));
  responder->stop();
  EXPECT_FALSE(works(*before.value()));
  EXPECT_TRUE(before.value()->broken());
  const auto late = responder->serve_verbs({&device_, 1});
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, ErrorCode::CLOSED) << late.error().message;
}

TEST_F(VerbsTest, is_not_ready_where_the_peer_serves_none) {
  const auto responder = Responder::start(memory_.ranges()).value();
  const auto refused = reader_of(*responder);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::NOT_READY) << refused.error().message;
}

TEST_F(VerbsTest, serves_reads_over_the_stream_beside_verbs) {
  const auto responder = serve();
  SocketPair pair = SocketPair::make();
  ASSERT_TRUE(responder->add(release(pair.server)).ok());
  const auto reader = TcpReader::make(release(pair.client));
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE(works(*reader.value()));
}

TEST_F(VerbsTest, gives_up_connecting_at_the_deadline) {
  SocketPair pair = SocketPair::make();  // nobody answers
  const auto reader =
      VerbsReader::make(release(pair.client), device_,
                        std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
  ASSERT_FALSE(reader.ok());
  EXPECT_NE(reader.error().message.find("did not answer"), std::string::npos);
}

TEST_F(VerbsTest, makes_connections_again_and_again) {
  const auto responder = serve();
  for (int i = 0; i < 50; ++i) {
    auto reader = reader_of(*responder);
    ASSERT_TRUE(reader.ok()) << i << ": " << reader.error().message;
    ASSERT_TRUE(works(*reader.value())) << i;
  }
}

}  // namespace
}  // namespace radixshmem
