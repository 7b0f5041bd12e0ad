// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bench/machine_rows.h"

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "shm/shared_region.h"

#define XXH_INLINE_ALL
#include "xxhash/xxhash.h"

namespace radixshmem::bench {
namespace {

constexpr std::uint64_t kAreaBytes = std::uint64_t{512} << 20;
constexpr std::uint64_t kLineBytes = 64;
constexpr std::uint64_t kWalkSteps = 20'000;
constexpr std::chrono::milliseconds kWallTime{300};
constexpr std::uint64_t kTokens = 128 * 1024;
constexpr std::uint64_t kBlockTokens = 16;
constexpr std::uint64_t kCopyBytes = 1'153'434;  // 1.1 MiB
constexpr std::uint64_t kCopies = 64;

// Lines of the area linked into one cycle in random order (Sattolo): each line holds the number of
// the next one.
void link_lines(std::byte* base) {
  const std::uint64_t lines = kAreaBytes / kLineBytes;
  std::vector<std::uint32_t> next(lines);
  for (std::uint64_t i = 0; i < lines; ++i) next[i] = static_cast<std::uint32_t>(i);
  std::mt19937_64 random(1);
  for (std::uint64_t i = lines - 1; i > 0; --i) std::swap(next[i], next[random() % i]);
  for (std::uint64_t i = 0; i < lines; ++i) {
    const std::uint64_t line = next[i];
    std::memcpy(base + i * kLineBytes, &line, sizeof(line));
  }
}

Result<std::shared_ptr<SharedRegion>> anonymous_region(const std::string& purpose,
                                                       std::uint64_t bytes) {
  const std::string name = "/radix_bench_" + purpose + "_" + std::to_string(getpid());
  Result<SharedRegion> region = SharedRegion::create(name, bytes);
  if (!region.ok()) return std::move(region).error();
  const Result<bool> unlinked = SharedRegion::unlink(name);
  if (!unlinked.ok()) return unlinked.error();
  const Result<> faulted = region.value().prefault(0, region.value().bytes());
  if (!faulted.ok()) return faulted.error();
  return std::make_shared<SharedRegion>(std::move(region).value());
}

Sample walk(const std::byte* base, std::uint64_t& line) {
  return measure(kWalkSteps, [&](std::uint64_t) {
    std::memcpy(&line, base + line * kLineBytes, sizeof(line));
  });
}

Sample walk_wall(const std::byte* base, std::uint64_t& line) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  std::uint64_t steps = 0;
  Clock::duration elapsed{};
  do {
    steps += walk(base, line).count;
    elapsed = Clock::now() - begin;
  } while (elapsed < kWallTime);
  const std::chrono::duration<double, std::nano> ns = elapsed;
  return {ns.count() / static_cast<double>(steps), steps};
}

Sample chained_xxh3(const std::vector<std::uint32_t>& tokens) {
  return measure(4, [&](std::uint64_t) {
    struct Message {
      std::uint64_t parent;
      std::array<std::uint32_t, kBlockTokens> tokens;
    } message{};
    for (std::uint64_t first = 0; first < kTokens; first += kBlockTokens) {
      std::memcpy(message.tokens.data(), &tokens[first], sizeof(message.tokens));
      message.parent = XXH3_64bits(&message, sizeof(message));
    }
    keep(message.parent);
  });
}

}  // namespace

Result<> add_machine_rows(Rows& rows) {
  auto area = anonymous_region("walk", kAreaBytes);
  if (!area.ok()) return area.error();
  link_lines(area.value()->base());
  rows["walk"] = [area = area.value(), line = std::uint64_t{0}]() mutable {
    return walk(area->base(), line);
  };
  rows["walk_wall"] = [area = area.value(), line = std::uint64_t{0}]() mutable {
    return walk_wall(area->base(), line);
  };

  std::vector<std::uint32_t> tokens(kTokens);
  std::mt19937 random(2);
  for (std::uint32_t& token : tokens) token = static_cast<std::uint32_t>(random() % 128'000);
  rows["chained_xxh3"] = [tokens = std::move(tokens)] { return chained_xxh3(tokens); };

  auto copies = anonymous_region("copy", 2 * kCopies * kCopyBytes);
  if (!copies.ok()) return copies.error();
  rows["memcpy"] = [copies = copies.value()] {
    return measure(kCopies, [&](std::uint64_t i) {
      std::byte* to = copies->base() + (kCopies + i) * kCopyBytes;
      std::memcpy(to, copies->base() + i * kCopyBytes, kCopyBytes);
      keep(to);
    });
  };
  return Unit{};
}

}  // namespace radixshmem::bench
