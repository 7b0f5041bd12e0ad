// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bench/index_rows.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <unistd.h>

#include "base/check.h"
#include "bench/workload_file.h"
#include "node/index_server.h"

namespace radixshmem::bench {
namespace {

constexpr std::uint64_t kQueries = 1000;  // per sample
constexpr std::uint32_t kSingleBlocks = 1'000'000;
constexpr std::uint32_t kBlockTokens = 16;

// An index of our own, for as long as the object lives, and a client of it.
class BenchIndex final {
 public:
  static Result<std::shared_ptr<BenchIndex>> make(const std::string& purpose, std::uint32_t slots) {
    const std::string name = "/radix_bench_" + purpose + "_" + std::to_string(getpid());
    auto index = std::make_shared<BenchIndex>();
    auto server = IndexServer::claim(name, 0600, -1);
    if (!server.ok()) return server.error();
    index->server_ = std::move(server).value();
    IndexPlan plan;
    plan.block_size = kBlockTokens;
    plan.slots[static_cast<std::size_t>(Component::kFull)] = slots;
    const auto created = index->server_->create(plan, true);
    if (!created.ok()) return created.error();
    auto client = Session::attach(name, "", false);
    if (!client.ok()) return client.error();
    index->client_ = std::move(client).value();
    return index;
  }

  ~BenchIndex() {
    if (client_) client_->close();
    if (server_) server_->close();
  }

  [[nodiscard]] Session& client() const noexcept { return *client_; }

  // Stores the blocks of `path` that are not there yet.
  Result<> insert(std::span<const BlockHash> path) const {
    const auto hit = client_->query(path, {});
    if (!hit.ok()) return hit.error();
    const Position missing = static_cast<Position>(path.size()) - hit.value().blocks;
    if (missing == 0) return Unit{};
    const auto slots = client_->allocate(missing, Component::kFull);
    if (!slots.ok()) return slots.error();
    const auto outcome =
        client_->insert(path, slots.value(), hit.value().blocks, true, Component::kFull);
    if (!outcome.ok()) return outcome.error();
    if (outcome.value().last != path.size()) {
      return Error{ErrorCode::MEMPOOL_FULL, "the index is too small for the benchmark's blocks"};
    }
    return Unit{};
  }

 private:
  std::unique_ptr<IndexServer> server_;
  std::shared_ptr<Session> client_;
};

std::uint32_t distinct_blocks(const WorkloadFile& workload) {
  std::vector<BlockHash> hashes = workload.hashes;
  std::sort(hashes.begin(), hashes.end());
  return static_cast<std::uint32_t>(std::unique(hashes.begin(), hashes.end()) - hashes.begin());
}

Result<std::shared_ptr<BenchIndex>> filled_index(const WorkloadFile& workload) {
  auto index = BenchIndex::make("workload", distinct_blocks(workload));
  if (!index.ok()) return index;
  for (const Insert& step : workload.inserts) {
    const auto path = workload.path(step.conversation).first(step.blocks);
    if (const Result<> inserted = index.value()->insert(path); !inserted.ok()) {
      return inserted.error();
    }
  }
  return index;
}

Result<std::shared_ptr<BenchIndex>> single_block_index() {
  auto index = BenchIndex::make("single", kSingleBlocks);
  if (!index.ok()) return index;
  std::mt19937_64 random(3);
  for (std::uint32_t i = 0; i < kSingleBlocks; ++i) {
    const BlockHash hash = random();
    if (const Result<> inserted = index.value()->insert({&hash, 1}); !inserted.ok()) {
      return inserted.error();
    }
  }
  return index;
}

// Queries whole conversations in random order.
class Queries final {
 public:
  Queries(std::shared_ptr<BenchIndex> index, std::shared_ptr<const WorkloadFile> workload,
          std::uint64_t first, std::uint64_t last, bool lock)
      : index_(std::move(index)),
        workload_(std::move(workload)),
        lock_(lock),
        choose_(first, last - 1) {}

  Sample operator()() {
    std::vector<std::span<const BlockHash>> paths;
    for (std::uint64_t i = 0; i < kQueries; ++i) {
      paths.push_back(workload_->path(choose_(random_)));
    }
    // A caller has just computed its hashes: they are warm, the index is not.
    for (const auto& path : paths) keep(std::accumulate(path.begin(), path.end(), BlockHash{0}));
    QueryOptions options;
    options.lock = lock_;
    return measure(kQueries, [&](std::uint64_t i) {
      auto hit = index_->client().query(paths[i], options);
      RADIX_CHECK(hit.ok() && hit.value().blocks == paths[i].size(),
                  hit.ok() ? hit.value().blocks : 0);
      keep(hit.value().full_slots[hit.value().blocks - 1]);
      hit.value().finalize();
    });
  }

 private:
  std::shared_ptr<BenchIndex> index_;
  std::shared_ptr<const WorkloadFile> workload_;
  bool lock_;
  std::mt19937_64 random_{4};
  std::uniform_int_distribution<std::uint64_t> choose_;
};

Result<Sample> rebuild(const BenchIndex& index) {
  Sample sample;
  const bool done = index.client().locked(
      [&] { sample = measure(1, [&](std::uint64_t) { index.client().tree().repair(); }); });
  if (!done) return Error{ErrorCode::BUSY, "the index lock is busy"};
  return sample;
}

}  // namespace

Result<> add_index_rows(const std::string& workload_path, Rows& rows) {
  auto read = WorkloadFile::read(workload_path);
  if (!read.ok()) return read.error();
  const auto workload = std::make_shared<const WorkloadFile>(std::move(read).value());
  const auto filled = filled_index(*workload);
  if (!filled.ok()) return filled.error();
  const auto& index = filled.value();
  const std::uint64_t shorts = workload->short_conversations;
  rows["query_512"] = Queries(index, workload, 0, shorts, false);
  rows["query_512_pinned"] = Queries(index, workload, 0, shorts, true);
  rows["query_4096"] = Queries(index, workload, shorts, workload->conversations(), false);
  rows["rebuild"] = [index] { return rebuild(*index); };
  rows["rebuild_single"] = [single = std::shared_ptr<BenchIndex>()]() mutable -> Result<Sample> {
    if (!single) {
      auto made = single_block_index();
      if (!made.ok()) return made.error();
      single = std::move(made).value();
    }
    return rebuild(*single);
  };
  return Unit{};
}

}  // namespace radixshmem::bench
