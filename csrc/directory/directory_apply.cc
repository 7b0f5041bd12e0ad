// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What a peer tells this directory.
#include <string>

#include "directory/directory.h"
#include "directory/directory_wire.h"

namespace radixshmem {
namespace {

Error stranger(const char* what, std::uint64_t said, std::uint64_t known) {
  return invalid_argument(std::string("publication batch: it is of ") + what + " " +
                          std::to_string(said) + ", its sender is " + std::to_string(known));
}

}  // namespace

Result<> Directory::apply(std::span<const std::byte> bytes, std::uint16_t rank,
                          std::uint16_t incarnation) {
  const auto refuse = [&](Error error) {
    ++counters_.malformed;
    return error;
  };
  auto parsed = BatchView::parse(bytes);
  if (!parsed) return refuse(parsed.error());
  const BatchView& batch = parsed.value();
  const BatchHeader& header = batch.header();
  if (header.rank != rank) return refuse(stranger("rank", header.rank, rank));
  const auto life = static_cast<std::uint16_t>(header.incarnation);
  if (life != incarnation) return refuse(stranger("incarnation", life, incarnation));
  if (header.digest != digest_) {
    ++counters_.foreign;
    return Error{ErrorCode::MISMATCH, "publication batch of rank " + std::to_string(rank) +
                                          ": its digest is " + std::to_string(header.digest) +
                                          ", this directory's is " + std::to_string(digest_)};
  }
  if (!admitted(rank, incarnation)) {
    counters_.refused += header.publishes + header.retracts;
    return Error{ErrorCode::MISMATCH, "publication batch: rank " + std::to_string(rank) +
                                          ", incarnation " + std::to_string(incarnation) +
                                          " is no member: admit it first"};
  }
  ++counters_.batches;
  if ((header.flags & kDropFirst) != 0) drop_rank(rank);
  for (std::uint32_t i = 0; i < header.retracts; ++i) retract(batch.retract(i), rank, incarnation);
  for (std::uint32_t i = 0; i < header.publishes; ++i) {
    const PublishRecord record = batch.publish(i);
    const auto words = DirectoryEntry::unpack(0, record.word1);
    if (words.segment.id == 0) continue;  // names nothing
    publish(record.key, {rank, incarnation, record.flags & kAuxMask, words.segment, words.parent,
                         header.generation,
                         static_cast<std::uint8_t>((record.flags >> kAuxClearShift) & kAuxMask)});
  }
  if ((header.flags & kSweepAfter) != 0) drop_rank(rank, header.generation);
  return Unit{};
}

}  // namespace radixshmem
