// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Random operations against the model. RADIX_MODEL_OPERATIONS sets how many in all,
// RADIX_MODEL_SEED where they begin; a failure prints both.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/node/model_driver.h"

namespace radixshmem {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kOperations = 120'000;
#else
constexpr std::uint64_t kOperations = 1'500'000;
#endif

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// So few operations need not show everything.
constexpr std::uint64_t kEnough = 100'000;

// Returns: a share of all operations, in per cent.
std::uint64_t operations(std::uint64_t share) {
  const bool full = std::getenv("RADIX_TEST_FULL") != nullptr;
  return from_environment("RADIX_MODEL_OPERATIONS", full ? 10 * kOperations : kOperations) * share /
         100;
}

ModelDriver::Seen run(const IndexPlan& plan, DriverOptions options, std::uint64_t count) {
  options.seed += from_environment("RADIX_MODEL_SEED", 1);
  std::printf("seed %llu, %llu operations\n", static_cast<unsigned long long>(options.seed),
              static_cast<unsigned long long>(count));
  ModelDriver driver(plan, options);
  EXPECT_TRUE(driver.run(count));
  const ModelDriver::Seen& seen = driver.seen();
#define RADIX_PRINT(name) \
  std::printf("%s " #name " %llu\n", "  ", static_cast<unsigned long long>(seen.name));
  RADIX_SEEN(RADIX_PRINT)
#undef RADIX_PRINT
  return seen;
}

TEST(ModelTest, AllComponentsInTinyPools) {
  DriverOptions options;
  IndexPlan plan = small_plan(220, 40, 12);
  const ModelDriver::Seen seen = run(plan, options, operations(50));
  if (operations(50) < kEnough) return;
  for (const std::uint64_t count :
       {seen.hits,         seen.misses,       seen.windows,           seen.aux_found,
        seen.pinned,       seen.pins_full,    seen.attached,          seen.unused,
        seen.path_missing, seen.bad_request,  seen.short_allocations, seen.evicted,
        seen.aux_evicted,  seen.aux_refused,  seen.extended,          seen.stale_cursors,
        seen.resets,       seen.zombie_calls, seen.reattached,        seen.still_valid,
        seen.invalid,      seen.checks}) {
    EXPECT_GT(count, 0u);
  }
}

TEST(ModelTest, WindowsLongerThanASegment) {
  DriverOptions options;
  options.seed = 1000;
  options.longest_path = 90;
  const ModelDriver::Seen seen = run(small_plan(300, 120, 0, 35), options, operations(15));
  EXPECT_GT(seen.windows, 0u);
  EXPECT_GT(seen.aux_evicted, 0u);
}

TEST(ModelTest, SideBlocksRunOutBeforeAuxSlots) {
  DriverOptions options;
  options.seed = 3000;
  options.longest_path = 40;
  const ModelDriver::Seen seen = run(small_plan(900, 60, 6, 20), options, operations(15));
  if (operations(15) < kEnough) return;
  EXPECT_GT(seen.side_evictions, 0u);
  EXPECT_GT(seen.mempool_full, 0u);
}

TEST(ModelTest, SegmentsRunOutBeforeSlots) {
  DriverOptions options;
  options.seed = 2000;
  options.wide = true;
  options.trunks = 2;
  options.longest_path = 100;
  IndexPlan plan = small_plan(3000);
  plan.segment_blocks = 64;
  plan.ring_entries = 8192;
  const ModelDriver::Seen seen = run(plan, options, operations(20));
  if (operations(20) < kEnough) return;
  EXPECT_GT(seen.segment_evictions, 0u);
}

}  // namespace
}  // namespace radixshmem
