// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What holds on every transport.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/transport/transports.h"

namespace radixshmem {
namespace {

using Progress = PeerReader::Progress;
constexpr auto kIndex = PeerRegion::kIndex;
constexpr auto kSlots = PeerRegion::kSlots;

class EveryTransport : public ::testing::TestWithParam<Transport> {
 protected:
  EveryTransport() : process_(memory_.ranges()), reader_(open()) {}

  [[nodiscard]] std::unique_ptr<PeerReader> open() {
    auto reader = GetParam().open(memory_, process_);
    if (!reader) {
      std::fprintf(stderr, "%s: %s\n", GetParam().name, reader.error().message.c_str());
      std::abort();
    }
    return std::move(reader).value();
  }
  // Returns: whether a small read gives the right bytes.
  [[nodiscard]] static bool works(PeerReader& reader) {
    Reads reads;
    reads.add(kSlots, 12345, 100);
    return read_all(reader, reads.ops()) == Progress::kDone && reads.wrong() == 0;
  }
  // As many bytes as no socket buffers at once.
  static void add_large(Reads& reads) {
    for (int i = 0; i < 8; ++i) reads.add(kSlots, 0, PeerMemory::kSlotsBytes);
  }

  PeerMemory memory_;
  PeerProcess process_;
  std::unique_ptr<PeerReader> reader_;
};

INSTANTIATE_TEST_SUITE_P(transports, EveryTransport, ::testing::ValuesIn(transports_here()),
                         [](const auto& chosen) { return chosen.param.name; });

TEST_P(EveryTransport, says_its_kind) {
  EXPECT_EQ(reader_->kind(), GetParam().kind);
}

TEST_P(EveryTransport, reads_the_right_bytes) {
  Reads reads;
  reads.add(kIndex, PeerMemory::kPatternFrom, 64);
  reads.add(kSlots, 0, 1);
  reads.add(kIndex, PeerMemory::kPatternFrom + 3, 6);   // within a word and beyond
  reads.add(kIndex, PeerMemory::kPatternFrom + 13, 1);  // within a word
  reads.add(kIndex, memory_.index_bytes() - 961, 961);
  reads.add(kSlots, PeerMemory::kSlotsBytes - 100'001, 100'001);
  ASSERT_EQ(read_all(*reader_, reads.ops()), Progress::kDone);
  EXPECT_EQ(reads.wrong(), 0U);
  EXPECT_EQ(reader_->poll(), Progress::kDone);
  EXPECT_FALSE(reader_->broken());
}

TEST_P(EveryTransport, reads_many_at_once_and_again_and_again) {
  std::mt19937_64 random(1);
  for (std::size_t batch = 0; batch < 200; ++batch) {
    const std::size_t count = batch == 0 ? kMaxReads : 1 + random() % 200;
    Reads reads;
    for (std::size_t i = 0; i < count; ++i) {
      const bool of_slots = random() % 4 == 0;
      const std::uint64_t from = of_slots ? 0 : PeerMemory::kPatternFrom;
      const std::uint64_t size = of_slots ? PeerMemory::kSlotsBytes : memory_.index_bytes();
      const auto length = static_cast<std::uint32_t>(1 + random() % 1000);
      reads.add(of_slots ? kSlots : kIndex, from + random() % (size - from - length + 1), length);
    }
    ASSERT_EQ(read_all(*reader_, reads.ops()), Progress::kDone) << "batch " << batch;
    ASSERT_EQ(reads.wrong(), 0U) << "batch " << batch;
  }
}

TEST_P(EveryTransport, reads_large_slots) {
  Reads reads;
  add_large(reads);
  ASSERT_EQ(read_all(*reader_, reads.ops()), Progress::kDone);
  EXPECT_EQ(reads.wrong(), 0U);
}

TEST_P(EveryTransport, refuses_batches_beyond_the_limits_and_stays_usable) {
  std::byte byte{};
  const ReadOp good{kSlots, 0, 1, &byte};
  EXPECT_FALSE(reader_->post({}));
  const std::array zero{good, ReadOp{kSlots, 0, 0, &byte}};
  EXPECT_FALSE(reader_->post(zero));
  const ReadOp long_read{kSlots, 0, kMaxReadBytes + 1, &byte};
  EXPECT_FALSE(reader_->post({&long_read, 1}));
  EXPECT_FALSE(reader_->post(std::vector(kMaxReads + 1, good)));
  const ReadOp longest{kSlots, 0, kMaxReadBytes, &byte};
  EXPECT_FALSE(reader_->post(std::vector(kMaxReadBatchBytes / kMaxReadBytes + 1, longest)));
  EXPECT_TRUE(works(*reader_));
}

TEST_P(EveryTransport, fails_on_reads_outside_of_the_peer_readable_memory) {
  std::array<std::byte, 64> to{};
  const std::array bad{
      ReadOp{kIndex, memory_.index_bytes() - 1, 2, to.data()},
      ReadOp{kSlots, PeerMemory::kSlotsBytes, 1, to.data()},
      ReadOp{kIndex, ~std::uint64_t{0} - 7, 64, to.data()},  // wraps around
  };
  for (const ReadOp& op : bad) {
    const auto reader = &op == bad.data() ? std::move(reader_) : open();
    EXPECT_EQ(read_all(*reader, {&op, 1}), Progress::kFailed) << op.offset;
    EXPECT_TRUE(reader->broken());
    EXPECT_FALSE(works(*reader));
  }
  EXPECT_TRUE(works(*open())) << "others are not disturbed";
}

TEST_P(EveryTransport, writes_nothing_after_abandon) {
  Reads reads;
  add_large(reads);
  ASSERT_TRUE(reader_->post(reads.ops()));
  (void)reader_->poll();
  reader_->abandon();
  for (const ReadOp& op : reads.ops()) std::memset(op.to, 0x5a, op.length);
  EXPECT_TRUE(works(*open()));  // time in which the bytes could arrive
  (void)reader_->poll();
  for (const ReadOp& op : reads.ops()) {
    const std::vector same(op.length, std::byte{0x5a});
    EXPECT_EQ(std::memcmp(op.to, same.data(), op.length), 0);
  }
}

TEST_P(EveryTransport, serves_two_readers_at_once) {
  const auto second = open();
  std::atomic<int> good{0};
  const auto work = [&good](PeerReader& reader) {
    for (int i = 0; i < 200; ++i) good += works(reader) ? 1 : 0;
  };
  std::thread other([&] { work(*second); });
  work(*reader_);
  other.join();
  EXPECT_EQ(good, 400);
}

TEST_P(EveryTransport, waits_for_several_readers_together) {
  const auto second = open();
  const std::array<PeerReader*, 2> both{reader_.get(), second.get()};
  std::array<Reads, 2> reads;
  for (std::size_t i = 0; i < both.size(); ++i) {
    add_large(reads[i]);
    ASSERT_TRUE(both[i]->post(reads[i].ops()));
  }
  ASSERT_TRUE(wait_all(both, in_seconds(20)));
  for (std::size_t i = 0; i < both.size(); ++i) {
    EXPECT_EQ(both[i]->poll(), Progress::kDone);
    EXPECT_EQ(reads[i].wrong(), 0U);
  }
}

// Words are written with equal halves: a torn one has two different ones.
TEST_P(EveryTransport, never_tears_an_aligned_word_of_the_index) {
  constexpr std::uint64_t kWords = 120;
  auto* const words = reinterpret_cast<std::uint64_t*>(memory_.index() + PeerMemory::kPatternFrom);
  const auto write_all = [words](std::uint64_t value) {
    for (std::uint64_t i = 0; i < kWords; ++i) {
      std::atomic_ref(words[i]).store(value << 32 | value, std::memory_order_relaxed);
    }
  };
  write_all(1);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t value = 0; !stop; value = (value + 0x0101'0101) & 0xffff'ffff)
      write_all(value);
  });
  std::array<std::uint64_t, kWords> got{};
  const ReadOp op{kIndex, PeerMemory::kPatternFrom, sizeof got,
                  reinterpret_cast<std::byte*>(got.data())};
  std::size_t torn = 0;
  std::size_t failed = 0;
  std::size_t changes = 0;  // seen while the writer ran at the same time
  const Deadline deadline = in_seconds(20);
  for (std::uint64_t last = 0; changes < 200 && std::chrono::steady_clock::now() < deadline;) {
    failed += read_all(*reader_, {&op, 1}) == Progress::kDone ? 0U : 1U;
    for (const std::uint64_t word : got) torn += word >> 32 == (word & 0xffff'ffff) ? 0U : 1U;
    changes += got.front() != last && got.front() != got.back() ? 1U : 0U;
    last = got.front();
  }
  stop = true;
  writer.join();
  EXPECT_EQ(failed, 0U);
  EXPECT_EQ(torn, 0U);
  EXPECT_GT(changes, 0U);
}

TEST_P(EveryTransport, waits_for_a_stopped_peer_only_where_it_must) {
  process_.child().stop();
  Reads reads;
  reads.add(kIndex, PeerMemory::kPatternFrom, 1000);
  ASSERT_TRUE(reader_->post(reads.ops()));
  PeerReader* const one = reader_.get();
  const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  EXPECT_EQ(wait_all({&one, 1}, GetParam().one_sided ? in_seconds(20) : soon),
            GetParam().one_sided);
  process_.child().signal(SIGCONT);
  EXPECT_TRUE(wait_all({&one, 1}, in_seconds(20)));
  EXPECT_EQ(reader_->poll(), Progress::kDone);
  EXPECT_EQ(reads.wrong(), 0U);
}

TEST_P(EveryTransport, notices_a_dead_peer) {
  ASSERT_TRUE(works(*reader_));
  process_.child().kill_and_wait();
  EXPECT_EQ(works(*reader_), GetParam().outlives_peer);
  EXPECT_EQ(reader_->broken(), !GetParam().outlives_peer);
}

TEST_P(EveryTransport, ends_when_the_peer_dies_in_the_middle) {
  Reads reads;
  add_large(reads);
  process_.child().stop();  // so that it cannot have answered
  ASSERT_TRUE(reader_->post(reads.ops()));
  (void)reader_->poll();
  process_.child().kill_and_wait();
  PeerReader* const one = reader_.get();
  ASSERT_TRUE(wait_all({&one, 1}, in_seconds(20)));
  if (reader_->poll() == Progress::kDone) {
    EXPECT_EQ(reads.wrong(), 0U);
  }
}

}  // namespace
}  // namespace radixshmem
