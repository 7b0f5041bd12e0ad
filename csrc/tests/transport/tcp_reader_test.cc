// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The reader against peers that answer what they like.
#include "transport/tcp_reader.h"

#include <fcntl.h>

#include <array>

#include "tests/transport/peer_rig.h"

namespace radixshmem {
namespace {

using Progress = PeerReader::Progress;

class TcpReaderTest : public ::testing::Test {
 protected:
  TcpReaderTest() : reader_(TcpReader::make(release(pair_.client)).value()) {}

  void post() { ASSERT_TRUE(reader_->post({&op_, 1})); }
  void answer(const ReplyHeader& header, std::size_t body_bytes) {
    std::vector<std::byte> bytes(sizeof header + body_bytes, std::byte{0x77});
    std::memcpy(bytes.data(), &header, sizeof header);
    ASSERT_EQ(::send(pair_.server.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  [[nodiscard]] ReplyHeader good(std::uint32_t id = 1) const {
    return {kReplyMagic, 1, 0, id, 0, op_.length};
  }
  // Returns: how the batch in flight ends.
  Progress finish() {
    PeerReader* const one = reader_.get();
    EXPECT_TRUE(wait_all({&one, 1}, in_seconds(20)));
    return reader_->poll();
  }

  SocketPair pair_ = SocketPair::make();
  std::array<std::byte, 100> to_{};
  ReadOp op_{PeerRegion::kIndex, 4096, sizeof to_, to_.data()};
  std::unique_ptr<PeerReader> reader_;
};

TEST_F(TcpReaderTest, sends_what_the_protocol_says) {
  post();
  std::array<std::byte, 64> got{};
  ASSERT_EQ(::recv(pair_.server.get(), got.data(), got.size(), 0), 32);
  const std::array<unsigned char, 32> wanted{'R', 'X', 'R', '1', 1, 0, 1,  0, 1, 0, 0,
                                             0,   16,  0,   0,   0, 0, 16, 0, 0, 0, 0,
                                             0,   0,   100, 0,   0, 0, 0,  0, 0, 0};
  EXPECT_EQ(std::memcmp(got.data(), wanted.data(), wanted.size()), 0);
}

TEST_F(TcpReaderTest, takes_an_answer_that_comes_in_pieces) {
  post();
  const ReplyHeader header = good();
  std::array<std::byte, sizeof header + sizeof to_> bytes{};
  bytes.fill(std::byte{9});
  std::memcpy(bytes.data(), &header, sizeof header);
  for (const std::byte& byte : bytes) {
    EXPECT_EQ(reader_->poll(), Progress::kPending);
    ASSERT_EQ(::send(pair_.server.get(), &byte, 1, 0), 1);
    pollfd readable{reader_->wait_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&readable, 1, 20'000), 1);
  }
  EXPECT_EQ(finish(), Progress::kDone);
  EXPECT_EQ(to_.back(), std::byte{9});
}

TEST_F(TcpReaderTest, breaks_on_a_header_that_answers_something_else) {
  std::vector<ReplyHeader> bad(6, good());
  bad[0].magic ^= 1;
  bad[1].kind = 2;
  bad[2].status = static_cast<std::uint16_t>(Refusal::kOutOfRange);
  bad[3].id = 2;
  bad[4].body_bytes = op_.length + 1;
  bad[5].body_bytes = ~std::uint64_t{0};
  for (const ReplyHeader& header : bad) {
    pair_ = SocketPair::make();
    reader_ = TcpReader::make(release(pair_.client)).value();
    post();
    answer(header, op_.length);
    EXPECT_EQ(finish(), Progress::kFailed);
    EXPECT_TRUE(reader_->broken());
    EXPECT_EQ(reader_->wait_fd(), -1);
    EXPECT_FALSE(reader_->post({&op_, 1}));
  }
}

TEST_F(TcpReaderTest, breaks_at_an_answer_that_nobody_asked_for) {
  post();
  answer(good(), op_.length + 50);  // the rest is taken for the next header
  EXPECT_EQ(finish(), Progress::kDone);
  post();
  EXPECT_EQ(finish(), Progress::kFailed);
}

TEST_F(TcpReaderTest, breaks_when_the_stream_ends_within_an_answer) {
  post();
  answer(good(), op_.length - 1);
  pair_.server.reset();
  EXPECT_EQ(finish(), Progress::kFailed);
}

TEST_F(TcpReaderTest, breaks_when_an_unanswered_batch_is_abandoned) {
  post();
  reader_->abandon();
  EXPECT_TRUE(reader_->broken());
  EXPECT_EQ(reader_->poll(), Progress::kFailed);
  EXPECT_FALSE(reader_->post({&op_, 1}));
}

TEST_F(TcpReaderTest, refuses_what_is_no_connected_stream) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const Fd keep(pipe_ends[1]);
  const std::array bad{pipe_ends[0], ::socket(AF_INET, SOCK_DGRAM, 0),
                       ::socket(AF_INET, SOCK_STREAM, 0), -1};
  for (const int fd : bad) {
    const auto reader = TcpReader::make(fd);
    ASSERT_FALSE(reader.ok());
    EXPECT_EQ(reader.error().code, ErrorCode::INVALID_ARGUMENT);
    EXPECT_NE(reader.error().message.find("descriptor " + std::to_string(fd)), std::string::npos);
    EXPECT_EQ(::fcntl(fd, F_GETFD), -1) << "it is closed";
  }
}

}  // namespace
}  // namespace radixshmem
