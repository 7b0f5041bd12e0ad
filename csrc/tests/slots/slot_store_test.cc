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

#include "slots/slot_copy.h"
#include "slots/stream_copy.h"

namespace radixshmem {
namespace {

using Store = std::shared_ptr<const SlotStore>;

constexpr std::int64_t kFull = 0;
constexpr std::int64_t kSwa = 1;
constexpr std::int64_t kMamba = 2;

class SlotStoreTest : public ::testing::Test {
 protected:
  SlotStoreTest() : name_("/radixshmem_store_test_" + std::to_string(::getpid())) {}
  ~SlotStoreTest() override { (void)SlotStore::destroy(name_); }

  [[nodiscard]] std::string path() const { return "/dev/shm" + name_; }
  [[nodiscard]] SlotStorePlan plan() const { return {name_, {{{10, 100}, {}, {3, 5000}}}, 256, 77}; }
  Store make(const SlotStorePlan& plan) {
    Result<Store> store = SlotStore::create(plan);
    EXPECT_TRUE(store.ok()) << store.error().message;
    return store.value();
  }
  Store make() { return make(plan()); }
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

  std::string name_;
};

std::uint64_t address(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

bool mentions(const Error& error, const std::string& part) {
  return error.message.find(part) != std::string::npos;
}

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

TEST_F(SlotStoreTest, copies_fragments_row_by_row) {
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

TEST_F(SlotStoreTest, copies_with_a_size_per_fragment_like_a_simple_model) {
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

TEST_F(SlotStoreTest, copies_nothing_of_nothing) {
  const Store store = make();
  const std::array<std::int32_t, 2> slots{0, 1};
  EXPECT_EQ(copy_in(*store, {}).value(), 0U);
  EXPECT_EQ(copy_in(*store, {slots, {}, {}, kFull, 256}).value(), 0U);  // k = 0
  const std::array<std::uint64_t, 2> nowhere{0, 0};
  const std::array<std::uint64_t, 1> empty{0};
  EXPECT_EQ(copy_out(*store, {slots, nowhere, empty, kFull, 256}).value(), 0U);
}

TEST_F(SlotStoreTest, copies_from_one_slot_to_an_overlapping_place_in_it) {
  const Store store = make();
  const auto slot = store->slot(4, kFull).value();
  for (std::size_t i = 0; i < slot.size(); ++i) slot[i] = static_cast<std::byte>(i);
  const std::array<std::int32_t, 1> slots{4};
  const std::array<std::uint64_t, 1> ptrs{address(slot.data())};
  const std::array<std::uint64_t, 1> sizes{200};
  ASSERT_TRUE(copy_in(*store, {slots, ptrs, sizes, kFull, 50}).ok());
  for (std::size_t i = 0; i < 200; ++i) ASSERT_EQ(slot[50 + i], static_cast<std::byte>(i));
}

TEST_F(SlotStoreTest, a_slot_may_be_filled_to_its_last_byte) {
  const Store store = make();
  const std::vector<std::byte> bytes(256, std::byte{1});
  const std::array<std::int32_t, 1> slots{9};
  const std::array<std::uint64_t, 1> ptrs{address(bytes.data())};
  EXPECT_EQ(copy_in(*store, {slots, ptrs, std::array<std::uint64_t, 1>{256}, kFull, 0}).value(),
            256U);
  EXPECT_EQ(store->slot(0, kMamba).value()[0], std::byte{0});
}

TEST_F(SlotStoreTest, prefaults_around_writers) {
  const Store store = make();
  store->slot(0, kFull).value()[0] = std::byte{7};
  EXPECT_TRUE(store->prefault(0, store->data().size()).ok());
  EXPECT_EQ(store->slot(0, kFull).value()[0], std::byte{7});
  EXPECT_EQ(store->prefault(0, store->data().size() + 1).error().code, ErrorCode::OUT_OF_RANGE);
}

TEST(StreamCopy, copies_exactly_its_bytes_at_any_alignment) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::vector<std::byte> source(10000);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 5000; ++round) {
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

TEST_F(SlotStoreTest, copies_large_requests_past_the_caches) {
  SlotStorePlan planned = plan();
  planned.pools = {{{40, (1 << 20) + 40}, {}, {}}};
  planned.slot_align = 8;
  const Store store = make(planned);
  std::vector<std::uint64_t> source(planned.pools[0].num_slots * planned.pools[0].slot_bytes / 8);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = i * 0x9e3779b97f4a7c15;
  std::vector<std::int32_t> slots;
  std::vector<std::uint64_t> ptrs;
  const std::array<std::uint64_t, 3> sizes{1 << 20, 33, 7};
  for (std::int32_t slot = 0; slot < 40; ++slot) {
    slots.push_back(slot);
    std::uint64_t at = address(source.data()) +
                       static_cast<std::uint64_t>(slot) * planned.pools[0].slot_bytes;
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

TEST_F(SlotStoreTest, refuses_slots_and_pools_that_are_not_there) {
  const Store store = make();
  for (const std::int64_t slot : {std::int64_t{-1}, std::int64_t{10},
                                  std::numeric_limits<std::int64_t>::max(),
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

TEST_F(SlotStoreTest, checks_a_copy_completely_before_its_first_byte) {
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

TEST_F(SlotStoreTest, a_read_only_store_is_copied_out_of_but_not_into) {
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
  for (const off_t size : {static_cast<off_t>(needed) - 1, off_t{8192}, off_t{4096}, off_t{4095},
                           off_t{1}}) {
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
  for (int round = 0; round < 50000; ++round) {
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
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace radixshmem
