// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bench/workload_file.h"

#include <bit>
#include <cstring>
#include <fstream>

namespace radixshmem::bench {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's words are read as they are");

// The words of the file one after another; once one is missing, all further reads fail.
class Words final {
 public:
  explicit Words(const std::string& path) : stream_(path, std::ios::binary) {}

  [[nodiscard]] bool read(std::span<std::uint64_t> out) {
    stream_.read(reinterpret_cast<char*>(out.data()),
                 static_cast<std::streamsize>(out.size_bytes()));
    return stream_.good();
  }

 private:
  std::ifstream stream_;
};

std::uint64_t magic() noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, "radixwl2", sizeof(word));
  return word;
}

constexpr std::uint64_t kMaxWords = std::uint64_t{1} << 32;  // of a sane header

}  // namespace

Result<WorkloadFile> WorkloadFile::read(const std::string& path) {
  const auto refused = [&](const char* why) {
    return Error{ErrorCode::INVALID_ARGUMENT,
                 path + ": " + why + "; make one with benchmarks/workload.py"};
  };
  Words words(path);
  std::uint64_t head[4] = {};  // magic, conversations, short, inserts
  if (!words.read(head)) return refused("not readable, or shorter than a header");
  if (head[0] != magic()) return refused("not a workload file");
  if (head[1] == 0 || head[1] > kMaxWords || head[2] > head[1] || head[3] > kMaxWords) {
    return refused("its header has impossible counts");
  }

  WorkloadFile file;
  file.short_conversations = head[2];
  file.offsets.resize(head[1] + 1);
  if (!words.read(file.offsets)) return refused("ends inside the offsets");
  if (file.offsets[0] != 0 || file.offsets.back() > kMaxWords) {
    return refused("its offsets are impossible");
  }
  for (std::size_t i = 1; i < file.offsets.size(); ++i) {
    if (file.offsets[i] < file.offsets[i - 1]) return refused("its offsets are not ascending");
  }
  file.hashes.resize(file.offsets.back());
  if (!words.read(file.hashes)) return refused("ends inside the hashes");

  std::vector<std::uint64_t> pairs(2 * head[3]);
  if (!words.read(pairs)) return refused("ends inside the inserts");
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    if (pairs[i] >= head[1] || pairs[i + 1] > file.path(pairs[i]).size()) {
      return refused("it inserts blocks that no conversation has");
    }
    file.inserts.push_back({pairs[i], pairs[i + 1]});
  }
  return file;
}

}  // namespace radixshmem::bench
