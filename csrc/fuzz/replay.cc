// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Runs a fuzz target without a fuzzer: on the files (or folders of files) named, and on random
// inputs. Usage: <target> [--random COUNT SEED] [PATH...]. A finding is an abort or a sanitizer
// report; the number of inputs run is printed. With clang the targets can be linked to libFuzzer
// instead of this file.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::size_t kMaxRandomBytes = 512;

std::size_t run_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::exit(2);
  }
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  return 1;
}

std::size_t run_path(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return run_file(path);
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) count += run_file(entry.path());
  }
  return count;
}

void run_random(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::uint8_t> bytes(random() % kMaxRandomBytes);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t inputs = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--random") == 0 && i + 2 < argc) {
      const std::size_t count = std::strtoull(argv[i + 1], nullptr, 10);
      run_random(count, std::strtoull(argv[i + 2], nullptr, 10));
      inputs += count;
      i += 2;
    } else {
      inputs += run_path(argv[i]);
    }
  }
  std::printf("%zu inputs\n", inputs);
  return inputs > 0 ? 0 : 2;
}
