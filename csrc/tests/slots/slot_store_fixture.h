// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// SlotStores of a name of this test process alone; the region goes with the fixture.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "slots/slot_store.h"

namespace radixshmem {

using Store = std::shared_ptr<const SlotStore>;

inline constexpr std::int64_t kFull = 0;
inline constexpr std::int64_t kSwa = 1;
inline constexpr std::int64_t kMamba = 2;

[[nodiscard]] inline std::uint64_t address(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

[[nodiscard]] inline bool mentions(const Error& error, const std::string& part) {
  return error.message.find(part) != std::string::npos;
}

class SlotStoreFixture : public ::testing::Test {
 protected:
  SlotStoreFixture() : name_("/radixshmem_store_test_" + std::to_string(::getpid())) {}
  ~SlotStoreFixture() override { (void)SlotStore::destroy(name_); }

  // 10 full slots of 256 bytes, no SWA slots, 3 MAMBA slots of 5120 bytes.
  [[nodiscard]] SlotStorePlan plan() const {
    return {name_, {{{10, 100}, {}, {3, 5000}}}, 256, 77};
  }
  Store make(const SlotStorePlan& plan) const {
    Result<Store> store = SlotStore::create(plan);
    EXPECT_TRUE(store.ok()) << store.error().message;
    return store.value();
  }
  Store make() const { return make(plan()); }

  std::string name_;
};

}  // namespace radixshmem
