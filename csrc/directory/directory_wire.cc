// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/directory_wire.h"

#include <bit>
#include <cstring>
#include <string>

#include "base/check.h"

namespace radixshmem {
namespace {

static_assert(std::endian::native == std::endian::little);

template <typename T>
T load(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
void store(std::byte* to, T value) noexcept {
  std::memcpy(to, &value, sizeof value);
}

Error malformed(const char* what, std::uint64_t value, const std::string& wanted) {
  return invalid_argument(std::string("publication batch: ") + what + " is " +
                          std::to_string(value) + ", not " + wanted);
}

}  // namespace

Result<BatchView> BatchView::parse(std::span<const std::byte> bytes) {
  if (bytes.size() < kBatchHeaderBytes || bytes.size() > kMaxBatchBytes) {
    return malformed("length", bytes.size(),
                     std::to_string(kBatchHeaderBytes) + " to " + std::to_string(kMaxBatchBytes));
  }
  const std::byte* at = bytes.data();
  if (const auto magic = load<std::uint32_t>(at); magic != kBatchMagic) {
    return malformed("magic", magic, std::to_string(kBatchMagic));
  }
  if (const auto version = load<std::uint16_t>(at + 4); version != kBatchVersion) {
    return malformed("version", version, std::to_string(kBatchVersion));
  }
  BatchView batch;
  BatchHeader& header = batch.header_;
  header.flags = load<std::uint8_t>(at + 6);
  header.generation = load<std::uint8_t>(at + 7);
  header.publishes = load<std::uint32_t>(at + 8);
  header.retracts = load<std::uint32_t>(at + 12);
  header.rank = load<std::uint16_t>(at + 16);
  header.incarnation = load<std::uint64_t>(at + 24);
  header.digest = load<std::uint64_t>(at + 32);
  header.sequence = load<std::uint64_t>(at + 40);
  const std::uint64_t keys = std::uint64_t{header.publishes} + header.retracts;
  if (keys > kMaxBatchKeys) {
    return malformed("number of keys", keys, std::to_string(kMaxBatchKeys) + " at most");
  }
  const std::size_t expected =
      kBatchHeaderBytes + header.publishes * kPublishBytes + header.retracts * kRetractBytes;
  if (bytes.size() != expected) return malformed("length", bytes.size(), std::to_string(expected));
  batch.publishes_ = at + kBatchHeaderBytes;
  batch.retracts_ = batch.publishes_ + header.publishes * kPublishBytes;
  return batch;
}

PublishRecord BatchView::publish(std::uint32_t i) const noexcept {
  const std::byte* at = publishes_ + i * kPublishBytes;
  return {load<std::uint64_t>(at), load<std::uint64_t>(at + 8), load<std::uint32_t>(at + 16)};
}

BlockHash BatchView::retract(std::uint32_t i) const noexcept {
  return load<std::uint64_t>(retracts_ + i * kRetractBytes);
}

std::vector<std::byte> pack_batch(BatchHeader header, std::span<const PublishRecord> publishes,
                                  std::span<const BlockHash> retracts) {
  RADIX_CHECK(publishes.size() + retracts.size() <= kMaxBatchKeys,
              publishes.size() + retracts.size());
  std::vector<std::byte> bytes(kBatchHeaderBytes + publishes.size() * kPublishBytes +
                               retracts.size() * kRetractBytes);
  std::byte* at = bytes.data();
  store(at, kBatchMagic);
  store(at + 4, kBatchVersion);
  store(at + 6, header.flags);
  store(at + 7, header.generation);
  store(at + 8, static_cast<std::uint32_t>(publishes.size()));
  store(at + 12, static_cast<std::uint32_t>(retracts.size()));
  store(at + 16, header.rank);
  store(at + 24, header.incarnation);
  store(at + 32, header.digest);
  store(at + 40, header.sequence);
  at += kBatchHeaderBytes;
  for (const PublishRecord& record : publishes) {
    store(at, record.key);
    store(at + 8, record.word1);
    store(at + 16, record.flags);
    at += kPublishBytes;
  }
  for (const BlockHash key : retracts) {
    store(at, key);
    at += kRetractBytes;
  }
  return bytes;
}

}  // namespace radixshmem
