// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "slots/pinned_chunks.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/slots/slot_store_fixture.h"

namespace radixshmem {
namespace {

using Ends = std::vector<std::uint64_t>;

// Notes what is pinned, and fails at one pin.
class FakePinner final : public HostPinner {
 public:
  Result<> pin(std::byte* begin, std::uint64_t bytes, bool /*read_only*/) override {
    if (pins++ == fail_at) return Error{ErrorCode::SYSTEM, "no more"};
    EXPECT_EQ(address(begin) % 4096, 0U);
    pinned[begin] = bytes;
    return Unit{};
  }
  Result<> unpin(std::byte* begin) override {
    EXPECT_EQ(*begin, std::byte{0}) << "still mapped";
    EXPECT_EQ(begin, pinned.rbegin()->first) << "last one first";
    EXPECT_EQ(pinned.erase(begin), 1U);
    return Unit{};
  }

  std::map<std::byte*, std::uint64_t> pinned;
  int pins = 0;
  int fail_at = -1;
};

class PinnedChunksTest : public SlotStoreFixture {
 protected:
  // FULL slots of `stride` bytes, then MAMBA slots of 5,120.
  Store sized(std::uint64_t slots, std::uint64_t stride, std::uint64_t align) {
    return make({name_, {{{slots, stride}, {}, {3, 5000}}}, align, 1});
  }
};

TEST_F(PinnedChunksTest, chunks_end_on_borders_of_slots) {
  const Store store = sized(10, 8192, 4096);  // the MAMBA slots are 8,192 bytes too
  EXPECT_EQ(chunk_ends(*store, 20000), (Ends{3 * 8192, 6 * 8192, 9 * 8192, 12 * 8192, 13 * 8192}));
  EXPECT_EQ(chunk_ends(*store, 3 * 8192),
            (Ends{3 * 8192, 6 * 8192, 9 * 8192, 12 * 8192, 13 * 8192}));
  EXPECT_EQ(chunk_ends(*store, 13 * 8192), Ends{13 * 8192});
  EXPECT_EQ(chunk_ends(*store, 1U << 30), Ends{13 * 8192});
  EXPECT_EQ(chunk_ends(*store, 0).size(), 13U);
}

TEST_F(PinnedChunksTest, chunks_end_on_borders_of_pages_too) {
  // Slots of 1,536 bytes: their borders are those of pages at each eighth slot.
  const Store store = sized(40, 1536, 512);
  const std::uint64_t total = 40 * 1536 + 3 * 5120;
  EXPECT_EQ(chunk_ends(*store, 1), (Ends{12288, 24576, 36864, 49152, 61440, total}));
  EXPECT_EQ(chunk_ends(*store, 12289), (Ends{24576, 49152, total}));
}

TEST_F(PinnedChunksTest, a_pool_without_common_borders_is_in_one_chunk) {
  // Borders of odd slots are never those of pages within 100 slots; MAMBA begins off a page.
  const Store store = sized(100, 1001, 1);
  EXPECT_EQ(chunk_ends(*store, 4096), Ends{100 * 1001 + 3 * 5000});
}

TEST_F(PinnedChunksTest, pins_in_order_and_unpins_when_it_goes) {
  const Store store = sized(10, 8192, 4096);
  const auto pinner = std::make_shared<FakePinner>();
  {
    PinnedChunks chunks(store, pinner, 4 * 8192);
    EXPECT_EQ(chunks.pinned_bytes(), 0U);
    EXPECT_EQ(chunks.total_bytes(), 13U * 8192);
    EXPECT_EQ(chunks.pin_next().value(), 4U * 8192);
    EXPECT_EQ(chunks.pinned_bytes(), 4U * 8192);
    EXPECT_EQ(chunks.pin_next().value(), 8U * 8192);
    EXPECT_EQ(pinner->pinned,
              (std::map<std::byte*, std::uint64_t>{{store->data().data(), 4 * 8192},
                                                   {store->data().data() + 4 * 8192, 4 * 8192}}));
  }
  EXPECT_TRUE(pinner->pinned.empty());
}

TEST_F(PinnedChunksTest, the_last_chunk_is_of_whole_pages) {
  const Store store = sized(40, 1536, 512);
  const auto pinner = std::make_shared<FakePinner>();
  PinnedChunks chunks(store, pinner, 1U << 30);
  EXPECT_EQ(chunks.pin_next().value(), 40U * 1536 + 3 * 5120);
  EXPECT_EQ(pinner->pinned.begin()->second, 77824U);  // 76,800 rounded up
}

TEST_F(PinnedChunksTest, an_error_says_which_bytes_and_leaves_the_rest_pinned) {
  const Store store = sized(10, 8192, 4096);
  const auto pinner = std::make_shared<FakePinner>();
  pinner->fail_at = 1;
  {
    PinnedChunks chunks(store, pinner, 4 * 8192);
    ASSERT_TRUE(chunks.pin_next().ok());
    const Result<std::uint64_t> failed = chunks.pin_next();
    ASSERT_FALSE(failed.ok());
    EXPECT_TRUE(mentions(failed.error(), "bytes 32768 to 65536 of SlotStore " + name_))
        << failed.error().message;
    EXPECT_TRUE(mentions(failed.error(), "no more"));
    EXPECT_EQ(chunks.pinned_bytes(), 4U * 8192);
    EXPECT_EQ(chunks.pin_next().value(), 8U * 8192) << "may be tried again";
  }
  EXPECT_TRUE(pinner->pinned.empty());
}

TEST_F(PinnedChunksTest, keeps_the_mapping_until_all_is_unpinned) {
  Store store = sized(10, 8192, 4096);
  const std::weak_ptr<const SlotStore> watched = store;
  const auto pinner = std::make_shared<FakePinner>();
  auto chunks = std::make_unique<PinnedChunks>(std::move(store), pinner, 1U << 30);
  ASSERT_TRUE(chunks->pin_next().ok());
  EXPECT_FALSE(watched.expired());
  chunks.reset();  // FakePinner reads the memory that it unpins
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(pinner->pinned.empty());
}

TEST(CudaDriverTest, a_process_without_a_driver_is_told_so) {
  const auto driver = load_cuda_driver("libno_such_driver.so.1");
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::SYSTEM);
  EXPECT_TRUE(mentions(driver.error(), "needs an NVIDIA driver")) << driver.error().message;
  EXPECT_TRUE(mentions(driver.error(), "libno_such_driver.so.1"));
}

TEST(CudaDriverTest, a_library_without_the_calls_is_no_driver) {
  const auto driver = load_cuda_driver("libc.so.6");
  ASSERT_FALSE(driver.ok());
  EXPECT_TRUE(mentions(driver.error(), "libc.so.6 has no cuInit")) << driver.error().message;
}

}  // namespace
}  // namespace radixshmem
