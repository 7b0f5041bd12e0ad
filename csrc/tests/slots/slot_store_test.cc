// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "slots/slot_store.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "tests/slots/slot_store_fixture.h"

namespace radixshmem {
namespace {

class SlotStoreTest : public SlotStoreFixture {
 protected:
  [[nodiscard]] std::string path() const { return "/dev/shm" + name_; }
  Error attach_error(std::uint32_t timeout_ms = 0) {
    const Result<Store> store = SlotStore::attach(name_, "", timeout_ms, false);
    EXPECT_FALSE(store.ok());
    return store.ok() ? Error{ErrorCode::OK, ""} : store.error();
  }
  // Makes a store, lets `change` spoil its header, attaches again.
  Error error_with(const std::function<void(StoreHeader&)>& change) {
    make();
    {
      Result<SharedRegion> region = SharedRegion::open(name_, false);
      EXPECT_TRUE(region.ok());
      change(*reinterpret_cast<StoreHeader*>(region.value().base()));
    }
    Error error = attach_error();
    EXPECT_TRUE(SlotStore::destroy(name_).value());
    return error;
  }
};

TEST_F(SlotStoreTest, lays_pools_out_in_order_with_rounded_strides) {
  const Store store = make();
  EXPECT_EQ(store->pool_mask(), kMaskFull | kMaskMamba);
  EXPECT_EQ(store->nonce(), 77U);
  EXPECT_FALSE(store->is_hugepage());
  EXPECT_TRUE(store->pool(kFull).value() == (PoolHeader{10, 100, 256, 0}));
  EXPECT_TRUE(store->pool(kMamba).value() == (PoolHeader{3, 5000, 5120, 2560}));
  EXPECT_EQ(store->data().size(), 2560U + 3 * 5120U);
  EXPECT_EQ(store->slot_offset(9, kFull).value(), 2304U);
  EXPECT_EQ(store->slot_offset(2, kMamba).value(), 2560U + 2 * 5120U);
  EXPECT_EQ(address(store->data().data()) % 4096, 0U);
  for (const std::byte byte : store->data()) ASSERT_EQ(byte, std::byte{0});
}

TEST_F(SlotStoreTest, attaches_to_the_same_bytes) {
  const Store store = make();
  const Result<Store> other = SlotStore::attach(name_, "", 0, true);
  ASSERT_TRUE(other.ok()) << other.error().message;
  EXPECT_TRUE(other.value()->read_only());
  EXPECT_EQ(other.value()->nonce(), 77U);
  EXPECT_TRUE(other.value()->pool(kMamba).value() == store->pool(kMamba).value());
  store->slot(2, kMamba).value()[5119] = std::byte{8};
  EXPECT_EQ(other.value()->slot(2, kMamba).value()[5119], std::byte{8});
}

TEST_F(SlotStoreTest, attach_waits_for_the_maker) {
  std::atomic<bool> trying{false};
  Result<Store> attached = Error{};
  std::thread waiter([&] {
    trying = true;
    attached = SlotStore::attach(name_, "", 30000, false);
  });
  while (!trying) std::this_thread::yield();
  const Store store = make();
  waiter.join();
  ASSERT_TRUE(attached.ok()) << attached.error().message;
}

TEST_F(SlotStoreTest, prefaults_around_writers) {
  const Store store = make();
  store->slot(0, kFull).value()[0] = std::byte{7};
  EXPECT_TRUE(store->prefault(0, store->data().size()).ok());
  EXPECT_EQ(store->slot(0, kFull).value()[0], std::byte{7});
  EXPECT_EQ(store->prefault(0, store->data().size() + 1).error().code, ErrorCode::OUT_OF_RANGE);
}

// ---- misuse

TEST_F(SlotStoreTest, refuses_slots_and_pools_that_are_not_there) {
  const Store store = make();
  for (const std::int64_t slot :
       {std::int64_t{-1}, std::int64_t{10}, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_EQ(store->slot(slot, kFull).error().code, ErrorCode::OUT_OF_RANGE) << slot;
  }
  EXPECT_EQ(store->slot(0, kSwa).error().code, ErrorCode::INVALID_ARGUMENT);
  EXPECT_TRUE(mentions(store->slot(0, kSwa).error(), "no SWA pool"));
  for (const std::int64_t kind : {-1, 3, 255}) {
    EXPECT_EQ(store->pool(kind).error().code, ErrorCode::INVALID_ARGUMENT);
  }
}

TEST_F(SlotStoreTest, refuses_impossible_plans) {
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
  const std::vector<std::pair<std::array<PoolSize, 3>, std::uint64_t>> plans{
      {{{{}, {}, {}}}, 1},
      {{{{1, 0}, {}, {}}}, 1},
      {{{{0, 1}, {}, {}}}, 1},
      {{{{1, 1}, {}, {}}}, 0},
      {{{{1, 1}, {}, {}}}, kHuge},
      {{{{1, kHuge}, {}, {}}}, 4096},
      {{{{kHuge, 1}, {}, {}}}, 1},
      {{{{kMaxPoolSlots + 1, 1}, {}, {}}}, 1},
      {{{{kMaxPoolSlots, std::uint64_t{1} << 40}, {}, {}}}, 1},
      {{{{1, std::uint64_t{1} << 40}, {64, std::uint64_t{1} << 40}, {}}}, 1},
  };
  for (const auto& [pools, align] : plans) {
    const Result<Store> store = SlotStore::create({name_, pools, align, 0});
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.error().code, ErrorCode::INVALID_ARGUMENT) << store.error().message;
  }
  EXPECT_NE(::access(path().c_str(), F_OK), 0);
}

TEST_F(SlotStoreTest, refuses_more_than_there_is_before_it_makes_a_file) {
  RegionOptions options;
  options.limits = MemoryLimits{10000, kUnlimited, ""};
  const Result<Store> store = SlotStore::create(plan(), options);
  ASSERT_FALSE(store.ok());
  EXPECT_TRUE(mentions(store.error(), "--shm-size")) << store.error().message;
  EXPECT_NE(::access(path().c_str(), F_OK), 0);
}

TEST_F(SlotStoreTest, attach_gives_up_at_its_deadline) {
  const Error none = attach_error(5);
  EXPECT_EQ(none.code, ErrorCode::NOT_READY);
  EXPECT_TRUE(mentions(none, "waited 5 ms")) << none.message;
  EXPECT_EQ(error_with([](StoreHeader& h) { h.magic = 0; }).code, ErrorCode::NOT_READY);
}

TEST_F(SlotStoreTest, attach_refuses_garbage) {
  const int fd = ::open(path().c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::write(fd, "garbage", 7), 7);
  EXPECT_EQ(attach_error().code, ErrorCode::CORRUPT);  // shorter than a header
  ASSERT_EQ(::ftruncate(fd, 1 << 20), 0);
  EXPECT_EQ(attach_error().code, ErrorCode::CORRUPT);
  ::close(fd);
}

TEST_F(SlotStoreTest, attach_refuses_a_truncated_file) {
  const std::uint64_t needed = kStoreHeaderBytes + make()->data().size();
  ASSERT_EQ(::truncate(path().c_str(), static_cast<off_t>(needed)), 0);
  EXPECT_TRUE(SlotStore::attach(name_, "", 0, false).ok());
  for (const off_t size :
       {static_cast<off_t>(needed) - 1, off_t{8192}, off_t{4096}, off_t{4095}, off_t{1}}) {
    ASSERT_EQ(::truncate(path().c_str(), size), 0);
    const Error error = attach_error();
    EXPECT_EQ(error.code, ErrorCode::CORRUPT) << size << ": " << error.message;
  }
}

TEST_F(SlotStoreTest, attach_says_both_layout_versions) {
  const Error error = error_with([](StoreHeader& h) { h.layout_version = 12345; });
  EXPECT_EQ(error.code, ErrorCode::MISMATCH);
  EXPECT_TRUE(mentions(error, "12345")) << error.message;
  EXPECT_TRUE(mentions(error, std::to_string(kStoreLayoutVersion))) << error.message;
}

TEST_F(SlotStoreTest, attach_refuses_every_wrong_field) {
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
  const std::vector<std::function<void(StoreHeader&)>> changes{
      [](StoreHeader& h) { h.magic = 1; },
      [](StoreHeader& h) { h.slot_align = 0; },
      [](StoreHeader& h) { h.slot_align = kHuge; },
      [](StoreHeader& h) { h.slot_align = 512; },
      [](StoreHeader& h) { h.data_offset = 0; },
      [](StoreHeader& h) { h.data_offset = 4097; },
      [](StoreHeader& h) { h.data_offset = 8192; },
      [](StoreHeader& h) { h.data_offset = kHuge - 4095; },
      [](StoreHeader& h) { h.data_bytes = 0; },
      [](StoreHeader& h) { h.data_bytes += 1; },
      [](StoreHeader& h) { h.pools[0].num_slots = 1000; },
      [](StoreHeader& h) { h.pools[0].num_slots = kHuge; },
      [](StoreHeader& h) { h.pools[0].num_slots = 0; },
      [](StoreHeader& h) { h.pools[0].slot_bytes = 0; },
      [](StoreHeader& h) { h.pools[0].slot_bytes = kHuge; },
      [](StoreHeader& h) { h.pools[0].stride = 0; },
      [](StoreHeader& h) { h.pools[0].stride = 512; },
      [](StoreHeader& h) { h.pools[0].offset = 64; },
      [](StoreHeader& h) { h.pools[1].stride = 1; },
      [](StoreHeader& h) { h.pools[1].offset = kHuge; },
      [](StoreHeader& h) { h.pools[1] = {1, 1, 256, 2560}; },
      [](StoreHeader& h) { h.pools[2].offset = 0; },
      [](StoreHeader& h) { h.pools[2] = {}; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const Error error = error_with(changes[i]);
    EXPECT_EQ(error.code, ErrorCode::CORRUPT) << "change " << i << ": " << error.message;
    EXPECT_TRUE(mentions(error, name_)) << error.message;
  }
}

TEST(StoreHeader, any_random_header_is_an_error_or_lies_within_its_region) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  alignas(8) std::array<std::byte, 16384> page{};
  const StoreLayout planned = plan_store({{{10, 100}, {2, 8}, {3, 500}}}, 64, 5, 4096).value();
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    write_store_header(page.data(), planned);
    auto* const words = reinterpret_cast<std::uint64_t*>(page.data());
    for (std::uint64_t change = random() % 3; change > 0; --change) {
      const std::uint64_t value = random() >> (random() % 64);
      words[random() % (sizeof(StoreHeader) / 8)] = random() % 8 == 0 ? 0 - value : value;
    }
    const Result<StoreLayout> read = read_store_header("/x", page);
    if (!read) continue;
    ++accepted;
    ASSERT_LE(read.value().region_bytes(), page.size());
    for (const PoolHeader& pool : read.value().pools) {
      ASSERT_LE(pool.offset, read.value().data_bytes);
      if (pool.num_slots != 0) {
        ASSERT_GE(pool.stride, pool.slot_bytes);
        ASSERT_LE(pool.num_slots, (read.value().data_bytes - pool.offset) / pool.stride);
      }
    }
  }
  EXPECT_GT(accepted, 500);
}

}  // namespace
}  // namespace radixshmem
