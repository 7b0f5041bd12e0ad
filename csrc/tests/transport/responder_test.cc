// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The responder against clients that ask what they like, or ask and do not listen.
#include "transport/responder.h"

#include <fcntl.h>

#include <array>
#include <functional>

#include "tests/transport/peer_rig.h"

namespace radixshmem {
namespace {

using Progress = PeerReader::Progress;

class ResponderTest : public ::testing::Test {
 protected:
  ResponderTest() { start({}); }

  void start(const ResponderOptions& options) {
    auto started = Responder::start(memory_.ranges(), options);
    ASSERT_TRUE(started.ok());
    responder_ = std::move(started).value();
  }
  [[nodiscard]] Fd connect() {
    SocketPair pair = SocketPair::make();
    EXPECT_TRUE(responder_->add(release(pair.server)).ok());
    return std::move(pair.client);
  }
  [[nodiscard]] std::unique_ptr<PeerReader> reader() {
    Fd fd = connect();
    return TcpReader::make(release(fd)).value();
  }
  [[nodiscard]] static bool works(PeerReader& reader) {
    Reads reads;
    reads.add(PeerRegion::kSlots, 4096, 64);
    return read_all(reader, reads.ops()) == Progress::kDone && reads.wrong() == 0;
  }
  // Returns: all that comes until the other side ends the stream.
  [[nodiscard]] static std::vector<std::byte> read_to_end(int fd) {
    std::vector<std::byte> all;
    std::array<std::byte, 65536> part;
    pollfd readable{fd, POLLIN, 0};
    while (::poll(&readable, 1, 20'000) == 1) {
      const ssize_t n = ::recv(fd, part.data(), part.size(), 0);
      if (n <= 0) return all;
      all.insert(all.end(), part.begin(), part.begin() + n);
    }
    ADD_FAILURE() << "the stream did not end";
    return all;
  }
  // Sends a request and returns the status of the answer, after which the stream ended.
  [[nodiscard]] Refusal refusal(const RequestHeader& header,
                                const std::vector<ReadRequest>& reads) {
    const Fd fd = connect();
    send_request(fd.get(), header, reads);
    const std::vector<std::byte> answer = read_to_end(fd.get());
    ReplyHeader reply{};
    EXPECT_EQ(answer.size(), sizeof reply);
    if (answer.size() == sizeof reply) std::memcpy(&reply, answer.data(), sizeof reply);
    EXPECT_EQ(reply.magic, kReplyMagic);
    return static_cast<Refusal>(reply.status);
  }
  static void send_request(int fd, const RequestHeader& header,
                           const std::vector<ReadRequest>& reads) {
    std::vector<std::byte> bytes(sizeof header + reads.size() * sizeof(ReadRequest));
    std::memcpy(bytes.data(), &header, sizeof header);
    if (!reads.empty()) {
      std::memcpy(bytes.data() + sizeof header, reads.data(), bytes.size() - sizeof header);
    }
    EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  [[nodiscard]] static RequestHeader header_for(const std::vector<ReadRequest>& reads) {
    return {kRequestMagic, 1, static_cast<std::uint16_t>(reads.size()), 5,
            static_cast<std::uint32_t>(reads.size() * sizeof(ReadRequest))};
  }
  // Waits until the figures say `wanted`.
  void expect_figure(std::uint64_t ResponderFigures::* figure, std::uint64_t wanted) {
    const Deadline deadline = in_seconds(20);
    while (responder_->figures().*figure != wanted) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << responder_->figures().*figure;
      std::this_thread::yield();
    }
  }

  PeerMemory memory_;
  std::unique_ptr<Responder> responder_;
};

TEST_F(ResponderTest, counts_streams_reads_and_bytes) {
  {
    const auto first = reader();
    const auto second = reader();
    EXPECT_TRUE(works(*first));
    EXPECT_TRUE(works(*second));
    Reads reads;
    for (int i = 0; i < 3; ++i) reads.add(PeerRegion::kIndex, 8192, 100);
    ASSERT_EQ(read_all(*first, reads.ops()), Progress::kDone);
    const ResponderFigures figures = responder_->figures();
    EXPECT_EQ(figures.streams, 2U);
    EXPECT_EQ(figures.reads, 5U);
    EXPECT_EQ(figures.read_bytes, 428U);
  }
  expect_figure(&ResponderFigures::streams, 0);
  EXPECT_EQ(responder_->figures().accepted, 2U);
  EXPECT_EQ(responder_->figures().reads, 5U) << "of streams that ended, too";
}

TEST_F(ResponderTest, refuses_malformed_requests_and_ends_the_stream) {
  const std::vector<ReadRequest> one{{4096, 8, 0}};
  const auto with = [&](const std::function<void(RequestHeader&)>& change) {
    RequestHeader header = header_for(one);
    change(header);
    return header;
  };
  const std::vector<RequestHeader> bad{
      with([](RequestHeader& h) { h.magic = 0x20544547; }),  // "GET "
      with([](RequestHeader& h) { h.kind = 3; }),
      with([](RequestHeader& h) { h.count = 0; }),
      with([](RequestHeader& h) { h.count = 2; }),
      with([](RequestHeader& h) { h.body_bytes = 0xffff'ffff; }),
      with([](RequestHeader& h) { h.kind = 2; }),  // a count there
      {kRequestMagic, 1, kMaxReads + 1, 1, (kMaxReads + 1) * sizeof(ReadRequest)},
  };
  for (const RequestHeader& header : bad) EXPECT_EQ(refusal(header, one), Refusal::kMalformed);
  const std::vector<std::vector<ReadRequest>> bodies{
      {{0, 0, 0}},
      {{0, 8, 2}},
      {{0, kMaxReadBytes + 1, 1}},
      std::vector<ReadRequest>(513, {0, PeerMemory::kSlotsBytes, 1}),  // more than 1 GiB in sum
  };
  for (const auto& body : bodies) EXPECT_EQ(refusal(header_for(body), body), Refusal::kMalformed);
  expect_figure(&ResponderFigures::refused_malformed, bad.size() + bodies.size());
  expect_figure(&ResponderFigures::streams, 0);
  EXPECT_EQ(responder_->figures().read_bytes, 0U);
}

TEST_F(ResponderTest, refuses_reads_outside_of_the_ranges) {
  const std::vector<ReadRequest> bad{{memory_.index_bytes(), 1, 0},
                                     {memory_.index_bytes() - 7, 8, 0},
                                     {PeerMemory::kSlotsBytes - 1, 2, 1},
                                     {~std::uint64_t{0}, 64, 1},
                                     {~std::uint64_t{0} - 63, 64, 0}};
  for (const ReadRequest& read : bad) {
    const std::vector<ReadRequest> reads{{4096, 8, 0}, read};
    EXPECT_EQ(refusal(header_for(reads), reads), Refusal::kOutOfRange) << read.offset;
  }
  expect_figure(&ResponderFigures::refused_out_of_range, bad.size());
}

TEST_F(ResponderTest, refuses_verbs_where_it_has_no_device) {
  EXPECT_EQ(refusal({kRequestMagic, 2, 0, 7, 0}, {}), Refusal::kNotServed);
  expect_figure(&ResponderFigures::refused_not_served, 1);
}

TEST_F(ResponderTest, answers_requests_that_come_together_or_in_pieces) {
  const Fd fd = connect();
  const std::vector<ReadRequest> reads{{4096, 8, 0}, {5000, 8, 1}};
  for (int i = 0; i < 3; ++i) send_request(fd.get(), header_for(reads), reads);
  const RequestHeader header = header_for(reads);
  std::array<std::byte, 48> bytes{};
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, reads.data(), 32);
  for (const std::byte& byte : bytes) ASSERT_EQ(::send(fd.get(), &byte, 1, 0), 1);
  std::array<std::byte, 4 * 40> answers{};
  ASSERT_EQ(::recv(fd.get(), answers.data(), answers.size(), MSG_WAITALL), 4 * 40);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(answers[i * 40 + 24], PeerMemory::byte_at(PeerRegion::kIndex, 4096));
    EXPECT_EQ(answers[i * 40 + 32], PeerMemory::byte_at(PeerRegion::kSlots, 5000));
  }
}

TEST_F(ResponderTest, serves_others_while_one_does_not_listen_and_drops_that_one) {
  start({.max_streams = 8, .stall_timeout = std::chrono::milliseconds(200)});
  const Fd deaf = connect();
  const std::vector<ReadRequest> reads(100, {0, PeerMemory::kSlotsBytes, 1});
  send_request(deaf.get(), header_for(reads), reads);
  const auto other = reader();
  const Deadline deadline = in_seconds(20);
  do {
    ASSERT_TRUE(works(*other));
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  } while (responder_->figures().dropped_stalled == 0);
  EXPECT_LT(read_to_end(deaf.get()).size(), 100 * PeerMemory::kSlotsBytes);
  expect_figure(&ResponderFigures::streams, 1);
}

TEST_F(ResponderTest, drops_half_a_request_but_keeps_idle_streams) {
  start({.max_streams = 8, .stall_timeout = std::chrono::milliseconds(100)});
  const auto idle = reader();
  ASSERT_TRUE(works(*idle));
  const Fd half = connect();
  ASSERT_EQ(::send(half.get(), "RXR1", 4, 0), 4);
  EXPECT_TRUE(read_to_end(half.get()).empty());
  EXPECT_EQ(responder_->figures().dropped_stalled, 1U);
  EXPECT_TRUE(works(*idle));
}

TEST_F(ResponderTest, refuses_more_streams_than_its_limit) {
  start({.max_streams = 2});
  const Fd first = connect();
  auto second = reader();
  SocketPair third = SocketPair::make();
  const auto refused = responder_->add(release(third.server));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("has 2 streams, its limit"), std::string::npos);
  EXPECT_TRUE(read_to_end(third.client.get()).empty());
  EXPECT_EQ(responder_->figures().refused_full, 1U);
  EXPECT_TRUE(works(*second));
  second.reset();
  expect_figure(&ResponderFigures::streams, 1);
  EXPECT_TRUE(works(*reader()));
}

TEST_F(ResponderTest, refuses_what_is_no_stream) {
  const auto refused = responder_->add(::open("/dev/null", O_RDONLY));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::INVALID_ARGUMENT);
}

TEST_F(ResponderTest, reads_nothing_any_more_once_it_is_stopped) {
  const auto before = reader();
  ASSERT_TRUE(works(*before));
  responder_->stop();
  responder_->stop();
  EXPECT_FALSE(works(*before));
  SocketPair late = SocketPair::make();
  const auto refused = responder_->add(release(late.server));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::CLOSED);
  EXPECT_EQ(responder_->figures().streams, 0U);
}

TEST_F(ResponderTest, survives_a_hundred_abrupt_ends) {
  const auto steady = reader();
  const std::vector<ReadRequest> reads(10, {0, PeerMemory::kSlotsBytes, 1});
  for (int i = 0; i < 100; ++i) {
    Fd fd = connect();
    send_request(fd.get(), header_for(reads), reads);
    const linger hard{1, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    fd.reset();
    ASSERT_TRUE(works(*steady)) << i;
  }
  expect_figure(&ResponderFigures::streams, 1);
}

}  // namespace
}  // namespace radixshmem
