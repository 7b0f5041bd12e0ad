// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// AnswerStream on hostile bytes: every answer is complete and right, or the stream is refused.
// Input: a chunk size, then requests {selector, bytes}; the selector says which fields are sound.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "transport/answer_stream.h"

namespace radixshmem {
namespace {

constexpr std::size_t kIndexBytes = 200'000;  // more than is staged at once
constexpr std::size_t kSlotsBytes = 600'000;  // more than is sent at once

std::vector<std::byte> pattern(std::size_t size, std::size_t factor) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * factor >> 8);
  return bytes;
}

// Hands out the input, zeros at its end.
class Bytes final {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  [[nodiscard]] bool empty() const { return at_ == size_; }
  std::uint64_t take(std::size_t count) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i) value = value << 8 | (empty() ? 0 : data_[at_++]);
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

void append(std::vector<std::byte>& wire, const void* from, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(from);
  wire.insert(wire.end(), begin, begin + bytes);
}

void append_request(std::vector<std::byte>& wire, Bytes& input) {
  const std::uint64_t selector = input.take(1);
  const auto count = static_cast<std::uint16_t>(1 + (selector & 3));
  RequestHeader header{kRequestMagic, 1, count, 9,
                       static_cast<std::uint32_t>(count * sizeof(ReadRequest))};
  if ((selector & 0xe0) == 0) {  // one field of the header is anything
    std::byte bytes[sizeof header];
    std::memcpy(bytes, &header, sizeof header);
    bytes[input.take(1) % sizeof header] = static_cast<std::byte>(input.take(1));
    std::memcpy(&header, bytes, sizeof header);
  }
  append(wire, &header, sizeof header);
  for (std::uint16_t i = 0; i < count; ++i) {
    ReadRequest read{input.take(8), static_cast<std::uint32_t>(input.take(4)),
                     static_cast<std::uint32_t>(input.take(1))};
    if ((selector & 0x1c) != 0) {  // a read within its region
      read.region %= 2;
      const std::uint64_t size = read.region == 0 ? kIndexBytes : kSlotsBytes;
      read.offset %= size;
      const std::uint64_t longest = 1 + ((size - read.offset - 1) >> (read.length >> 28));
      read.length = static_cast<std::uint32_t>(1 + read.length % longest);
    }
    append(wire, &read, sizeof read);
  }
}

// What the stream has to say to `wire`, made in the plainest way.
std::vector<std::byte> expected(std::span<const std::byte> wire, const PeerRanges& ranges) {
  std::vector<std::byte> all;
  while (wire.size() >= sizeof(RequestHeader)) {
    RequestHeader header{};
    std::memcpy(&header, wire.data(), sizeof header);
    Refusal status = check_header(header);
    std::vector<ReadRequest> reads(status == Refusal::kNone ? header.count : 0);
    if (status == Refusal::kNone) {
      if (wire.size() - sizeof header < header.body_bytes) return all;
      if (!reads.empty()) std::memcpy(reads.data(), &wire[sizeof header], header.body_bytes);
      status = header.kind == 1 ? check_reads(reads, ranges) : Refusal::kNotServed;
      wire = wire.subspan(sizeof header + header.body_bytes);
    }
    ReplyHeader reply{kReplyMagic, header.kind, static_cast<std::uint16_t>(status),
                      header.id,   0,           0};
    if (status != Refusal::kNone) reads.clear();
    for (const ReadRequest& read : reads) reply.body_bytes += read.length;
    append(all, &reply, sizeof reply);
    for (const ReadRequest& read : reads) {
      const auto range = ranges.of(static_cast<PeerRegion>(read.region));
      RADIX_CHECK(read.offset <= range.size() && read.length <= range.size() - read.offset,
                  read.offset);
      append(all, range.data() + read.offset, read.length);
    }
    if (status != Refusal::kNone) return all;
  }
  return all;
}

std::vector<std::byte> answers(std::span<const std::byte> wire, const PeerRanges& ranges,
                               std::size_t chunk) {
  AnswerStream stream(ranges);
  std::vector<std::byte> all;
  for (;;) {
    if (stream.answering()) {
      const std::span<const iovec> parts = stream.output();
      RADIX_CHECK(!parts.empty() && parts[0].iov_len != 0, parts.size());
      // Not more than a socket may take, and now and then all of it.
      std::size_t wanted = chunk % 2 == 0 ? ~std::size_t{0} : chunk * 97;
      std::size_t sent = 0;
      for (const iovec& part : parts) {
        const std::size_t bytes = std::min(wanted, part.iov_len);
        append(all, part.iov_base, bytes);
        sent += bytes;
        wanted -= bytes;
      }
      stream.sent(sent);
    } else if (stream.refused() != Refusal::kNone || wire.empty()) {
      return all;
    } else {
      const std::span<std::byte> room = stream.room();
      RADIX_CHECK(!room.empty(), 0);
      const std::size_t bytes = std::min({room.size(), wire.size(), chunk});
      std::memcpy(room.data(), wire.data(), bytes);
      wire = wire.subspan(bytes);
      stream.received(bytes);
    }
  }
}

}  // namespace
}  // namespace radixshmem

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace radixshmem;
  static const std::vector<std::byte> index = pattern(kIndexBytes, 57);
  static const std::vector<std::byte> slots = pattern(kSlotsBytes, 91);
  const PeerRanges ranges{index, slots};
  Bytes input(data, size);
  const std::size_t chunk = input.take(1) + 1;
  std::vector<std::byte> wire;
  while (!input.empty()) append_request(wire, input);
  const std::vector<std::byte> wanted = expected(wire, ranges);
  const std::vector<std::byte> got = answers(wire, ranges, chunk);
  RADIX_CHECK(got.size() == wanted.size(), got.size());
  RADIX_CHECK(got == wanted, got.size());
  return 0;
}
