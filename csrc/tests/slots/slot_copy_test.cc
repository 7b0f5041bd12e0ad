// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "slots/slot_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "shm/stream_copy.h"
#include "tests/slots/slot_store_fixture.h"

namespace radixshmem {
namespace {

using SlotCopyTest = SlotStoreFixture;

TEST_F(SlotCopyTest, copies_fragments_row_by_row) {
  const Store store = make();
  const std::array<std::int32_t, 2> slots{7, 2};
  std::array<std::array<char, 20>, 6> parts{};
  std::vector<std::uint64_t> ptrs;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].fill(static_cast<char>('a' + i));
    ptrs.push_back(address(parts[i].data()));
  }
  const std::array<std::uint64_t, 3> sizes{20, 1, 5};  // k = 3, the same for both slots
  const CopyRequest request{slots, ptrs, sizes, kFull, 10};
  const Result<std::uint64_t> copied = copy_in(*store, request);
  ASSERT_TRUE(copied.ok()) << copied.error().message;
  EXPECT_EQ(copied.value(), 52U);
  const auto text = [&](std::int32_t slot) {
    const auto bytes = store->slot(slot, kFull).value();
    return std::string(reinterpret_cast<const char*>(bytes.data()), 37);
  };
  EXPECT_EQ(text(7), std::string(10, '\0') + std::string(20, 'a') + "bccccc" + '\0');
  EXPECT_EQ(text(2), std::string(10, '\0') + std::string(20, 'd') + "efffff" + '\0');

  const auto before = parts;
  for (auto& part : parts) part.fill('?');
  EXPECT_EQ(copy_out(*store, request).value(), 52U);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t size = sizes[i % 3];
    EXPECT_EQ(std::memcmp(parts[i].data(), before[i].data(), size), 0) << i;
    for (std::size_t byte = size; byte < parts[i].size(); ++byte) EXPECT_EQ(parts[i][byte], '?');
  }
}

TEST_F(SlotCopyTest, copies_with_a_size_per_fragment_like_a_simple_model) {
  SlotStorePlan planned = plan();
  planned.pools = {{{16, 512}, {4, 64}, {}}};
  planned.slot_align = 1;
  const Store store = make(planned);
  std::vector<std::byte> model(store->data().begin(), store->data().end());
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::vector<std::byte> source(1 << 16);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t kind = static_cast<std::int64_t>(random() % 2);
    const PoolHeader pool = store->pool(kind).value();
    const std::size_t k = random() % 5;
    const std::uint64_t offset = random() % (pool.stride + 1);
    std::vector<std::int32_t> slots;
    std::vector<std::uint64_t> ptrs;
    std::vector<std::uint64_t> sizes;
    std::uint64_t total = 0;
    for (std::size_t i = random() % 4; i > 0; --i) {
      slots.push_back(static_cast<std::int32_t>(random() % pool.num_slots));
      std::uint64_t at = offset;
      for (std::size_t j = 0; j < k; ++j) {
        const std::uint64_t size = random() % (pool.stride - at + 1);
        const std::uint64_t from = random() % (source.size() - 512);
        ptrs.push_back(size == 0 ? 0 : address(source.data() + from));
        sizes.push_back(size);
        std::memcpy(model.data() + pool.offset +
                        static_cast<std::uint64_t>(slots.back()) * pool.stride + at,
                    source.data() + from, size);
        at += size;
        total += size;
      }
    }
    const Result<std::uint64_t> copied =
        copy_in(*store, {slots, ptrs, sizes, kind, static_cast<std::int64_t>(offset)});
    ASSERT_TRUE(copied.ok()) << copied.error().message;
    ASSERT_EQ(copied.value(), total);
    ASSERT_EQ(std::memcmp(model.data(), store->data().data(), model.size()), 0) << round;
  }
}

TEST_F(SlotCopyTest, copies_nothing_of_nothing) {
  const Store store = make();
  const std::array<std::int32_t, 2> slots{0, 1};
  EXPECT_EQ(copy_in(*store, {}).value(), 0U);
  EXPECT_EQ(copy_in(*store, {slots, {}, {}, kFull, 256}).value(), 0U);  // k = 0
  const std::array<std::uint64_t, 2> nowhere{0, 0};
  const std::array<std::uint64_t, 1> empty{0};
  EXPECT_EQ(copy_out(*store, {slots, nowhere, empty, kFull, 256}).value(), 0U);
}

TEST_F(SlotCopyTest, copies_from_one_slot_to_an_overlapping_place_in_it) {
  const Store store = make();
  const auto slot = store->slot(4, kFull).value();
  for (std::size_t i = 0; i < slot.size(); ++i) slot[i] = static_cast<std::byte>(i);
  const std::array<std::int32_t, 1> slots{4};
  const std::array<std::uint64_t, 1> ptrs{address(slot.data())};
  const std::array<std::uint64_t, 1> sizes{200};
  ASSERT_TRUE(copy_in(*store, {slots, ptrs, sizes, kFull, 50}).ok());
  for (std::size_t i = 0; i < 200; ++i) ASSERT_EQ(slot[50 + i], static_cast<std::byte>(i));
}

TEST_F(SlotCopyTest, a_slot_may_be_filled_to_its_last_byte) {
  const Store store = make();
  const std::vector<std::byte> bytes(256, std::byte{1});
  const std::array<std::int32_t, 1> slots{9};
  const std::array<std::uint64_t, 1> ptrs{address(bytes.data())};
  EXPECT_EQ(copy_in(*store, {slots, ptrs, std::array<std::uint64_t, 1>{256}, kFull, 0}).value(),
            256U);
  EXPECT_EQ(store->slot(0, kMamba).value()[0], std::byte{0});
}

TEST(StreamCopy, copies_exactly_its_bytes_at_any_alignment) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::vector<std::byte> source(10000);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 1500; ++round) {
    std::vector<std::byte> target(10000, std::byte{0x55});
    std::vector<std::byte> expected = target;
    const std::size_t size = random() % 9000;
    const std::size_t from = random() % (source.size() - size);
    const std::size_t to = random() % (target.size() - size);
    std::memcpy(expected.data() + to, source.data() + from, size);
    stream_copy(target.data() + to, source.data() + from, size);
    ASSERT_EQ(target, expected) << size << " bytes from " << from << " to " << to;
    const std::size_t shift = random() % (target.size() - size);  // overlapping, both directions
    std::memmove(expected.data() + shift, expected.data() + to, size);
    stream_copy(target.data() + shift, target.data() + to, size);
    ASSERT_EQ(target, expected) << size << " bytes from " << to << " to " << shift;
  }
}

TEST_F(SlotCopyTest, copies_large_requests_past_the_caches) {
  SlotStorePlan planned = plan();
  planned.pools = {{{9, (1 << 20) + 40}, {}, {}}};
  planned.slot_align = 8;
  const Store store = make(planned);
  std::vector<std::uint64_t> source(planned.pools[0].num_slots * planned.pools[0].slot_bytes / 8);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = i * 0x9e3779b97f4a7c15;
  std::vector<std::int32_t> slots;
  std::vector<std::uint64_t> ptrs;
  const std::array<std::uint64_t, 3> sizes{1 << 20, 33, 7};
  for (std::int32_t slot = 0; slot < 9; ++slot) {
    slots.push_back(slot);
    std::uint64_t at =
        address(source.data()) + static_cast<std::uint64_t>(slot) * planned.pools[0].slot_bytes;
    for (const std::uint64_t size : sizes) {
      ptrs.push_back(at);
      at += size;
    }
  }
  ASSERT_GE(source.size() * 8, kStreamTotalBytes);
  ASSERT_EQ(copy_in(*store, {slots, ptrs, sizes, kFull, 0}).value(), source.size() * 8);
  ASSERT_EQ(std::memcmp(store->data().data(), source.data(), source.size() * 8), 0);
  const std::vector<std::uint64_t> expected = source;
  std::fill(source.begin(), source.end(), 0);
  ASSERT_EQ(copy_out(*store, {slots, ptrs, sizes, kFull, 0}).value(), source.size() * 8);
  ASSERT_EQ(source, expected);
}

// ---- misuse

TEST_F(SlotCopyTest, checks_a_copy_completely_before_its_first_byte) {
  const Store store = make();
  const std::vector<std::byte> source(1024, std::byte{0xee});
  const std::uint64_t p = address(source.data());
  struct Case {
    std::vector<std::int32_t> slots;
    std::vector<std::uint64_t> ptrs;
    std::vector<std::uint64_t> sizes;
    std::int64_t kind;
    std::int64_t offset;
    ErrorCode code;
  };
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
  const std::vector<Case> cases{
      {{0, 10}, {p, p}, {1}, kFull, 0, ErrorCode::OUT_OF_RANGE},
      {{0, -1}, {p, p}, {1}, kFull, 0, ErrorCode::OUT_OF_RANGE},
      {{0}, {p}, {1}, kSwa, 0, ErrorCode::INVALID_ARGUMENT},
      {{0}, {p}, {1}, 9, 0, ErrorCode::INVALID_ARGUMENT},
      {{0}, {p}, {257}, kFull, 0, ErrorCode::INVALID_ARGUMENT},
      {{0}, {p}, {1}, kFull, 256, ErrorCode::INVALID_ARGUMENT},
      {{0}, {p}, {1}, kFull, 257, ErrorCode::INVALID_ARGUMENT},
      {{0}, {p}, {1}, kFull, -1, ErrorCode::INVALID_ARGUMENT},
      {{0}, {p}, {1}, kFull, std::numeric_limits<std::int64_t>::min(), ErrorCode::INVALID_ARGUMENT},
      {{0}, {p, p}, {200, 57}, kFull, 0, ErrorCode::INVALID_ARGUMENT},
      {{0}, {p, p}, {200, kHuge - 100}, kFull, 0, ErrorCode::INVALID_ARGUMENT},
      {{0}, {p, 0}, {1, 1}, kFull, 0, ErrorCode::INVALID_ARGUMENT},
      {{0, 1}, {p, p, p}, {1, 1, 1}, kFull, 0, ErrorCode::INVALID_ARGUMENT},
      {{0, 1}, {p}, {1}, kFull, 0, ErrorCode::INVALID_ARGUMENT},
      {{0, 1}, {p, p, p, p}, {1, 1, 1}, kFull, 0, ErrorCode::INVALID_ARGUMENT},
      {{0, 1}, {p, p, p, p}, {1}, kFull, 0, ErrorCode::INVALID_ARGUMENT},
      {{}, {p}, {1}, kFull, 0, ErrorCode::INVALID_ARGUMENT},
      {{0, 1}, {p, p}, {}, kFull, 0, ErrorCode::INVALID_ARGUMENT},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    for (const auto copy : {&copy_in, &copy_out}) {
      const Result<std::uint64_t> copied =
          copy(*store, {c.slots, c.ptrs, c.sizes, c.kind, c.offset});
      ASSERT_FALSE(copied.ok()) << "case " << i;
      EXPECT_EQ(copied.error().code, c.code) << "case " << i << ": " << copied.error().message;
    }
  }
  for (const std::byte byte : store->data()) ASSERT_EQ(byte, std::byte{0});
  for (const std::byte byte : source) ASSERT_EQ(byte, std::byte{0xee});
}

TEST_F(SlotCopyTest, a_read_only_store_is_copied_out_of_but_not_into) {
  const Store store = make();
  store->slot(1, kFull).value()[0] = std::byte{4};
  const Store reader = SlotStore::attach(name_, "", 0, true).value();
  std::byte byte{};
  const std::array<std::int32_t, 1> slots{1};
  const std::array<std::uint64_t, 1> ptrs{address(&byte)};
  const std::array<std::uint64_t, 1> sizes{1};
  EXPECT_EQ(copy_out(*reader, {slots, ptrs, sizes, kFull, 0}).value(), 1U);
  EXPECT_EQ(byte, std::byte{4});
  const Result<std::uint64_t> refused = copy_in(*reader, {slots, ptrs, sizes, kFull, 0});
  EXPECT_EQ(refused.error().code, ErrorCode::INVALID_ARGUMENT);
  EXPECT_TRUE(mentions(refused.error(), "read-only"));
}

}  // namespace
}  // namespace radixshmem
