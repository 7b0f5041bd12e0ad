// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Directory::apply on hostile bytes: whatever they are, the directory holds entries of the sender
// alone, no more than it has room for, and each names a segment.
// Input: a selector, then a batch; by the selector its header is made good first.
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "directory/directory.h"
#include "directory/directory_wire.h"

namespace radixshmem {
namespace {

constexpr std::uint16_t kSender = 3;
constexpr std::uint16_t kLife = 9;
constexpr std::uint64_t kDigest = 77;
constexpr std::uint32_t kLines = 4;

// The header of a batch with as many records as fit into `bytes`.
void make_good(std::vector<std::byte>& bytes, std::uint8_t selector) {
  if (bytes.size() < kBatchHeaderBytes) return;
  const std::size_t body = bytes.size() - kBatchHeaderBytes;
  const std::size_t publishes = (selector & 2) != 0 ? body / kPublishBytes : 0;
  const std::size_t retracts = (body - publishes * kPublishBytes) / kRetractBytes;
  bytes.resize(kBatchHeaderBytes + publishes * kPublishBytes + retracts * kRetractBytes);
  BatchHeader header;
  header.flags = static_cast<std::uint8_t>(selector >> 2);
  header.generation = static_cast<std::uint8_t>(selector >> 5);
  header.rank = kSender;
  header.incarnation = kLife;
  header.digest = kDigest;
  const std::vector<std::byte> good =
      pack_batch(header, std::vector<PublishRecord>(publishes), std::vector<BlockHash>(retracts));
  std::memcpy(bytes.data(), good.data(), kBatchHeaderBytes);
}

void check_entries(const Directory& directory) {
  std::uint64_t entries = 0;
  for (std::uint32_t l = 0; l < directory.lines(); ++l) {
    const DirectoryLine line = directory.line(l);
    for (std::size_t e = 0; e < kEntriesPerLine; ++e) {
      if (line.words[2 * e] == 0) continue;
      ++entries;
      const auto entry = DirectoryEntry::unpack(line.words[2 * e], line.words[2 * e + 1]);
      RADIX_CHECK(entry.rank == kSender && entry.incarnation == kLife, entry.rank);
      RADIX_CHECK(entry.segment.id != 0, l);
    }
  }
  RADIX_CHECK(entries == directory.entries(), entries);
  RADIX_CHECK(directory.waiting() <= directory.lines(), directory.waiting());
}

}  // namespace
}  // namespace radixshmem

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace radixshmem;
  if (size == 0) return 0;
  alignas(kCacheLine) static std::array<DirectoryLine, kLines> lines;
  static Directory directory(reinterpret_cast<std::byte*>(lines.data()), kLines);
  if (directory.digest() != kDigest) {
    directory.clear(kDigest);
    directory.admit(kSender, kLife);
    directory.admit(kSender + 1, kLife);
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> batch(bytes + 1, bytes + size);
  if ((data[0] & 1) != 0) make_good(batch, data[0]);
  (void)directory.apply(batch, kSender, kLife);
  check_entries(directory);
  return 0;
}
