// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// radix_simulation WORKLOAD NODES SLOTS LOOKUPS DIRECTORY_BYTES
//
// Simulates one cluster (simulate.h) on the requests of a WORKLOAD file, whose bytes
// benchmarks/workload.py defines, and prints its figures as one line of JSON. DIRECTORY_BYTES 0 is
// what a node has by default. benchmarks/cluster_simulation.py makes tables of it.
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>

#include "bench/simulation/simulate.h"

namespace radixshmem::bench {
namespace {

constexpr std::uint32_t kPublishingSlots = 1u << 18;

template <typename T>
bool number(std::string_view word, T least, T most, T& out) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), out);
  return error == std::errc() && end == word.data() + word.size() && out >= least && out <= most;
}

bool parse(int argc, char** argv, SimulationOptions& options) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
  return argc == 6 && number<std::size_t>(argv[2], 2, 65'000, options.nodes) &&
         number<std::uint32_t>(argv[3], kLeastSlots, 1u << 30, options.slots) &&
         number<std::uint32_t>(argv[4], 1, 1u << 20, options.lookups) &&
         number<std::uint64_t>(argv[5], 0, kMostBytes, options.directory_bytes);
}

void print(const Figures& figures) {
  const char* separator = "{";
  for (const auto& [name, value] : figures) {
    std::printf("%s\"%s\": %.9g", separator, name.c_str(), value);
    separator = ", ";
  }
  std::printf("}\n");
}

int run(int argc, char** argv) {
  SimulationOptions options;
  options.publishing_slots = kPublishingSlots;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: radix_simulation WORKLOAD NODES(2..65000) SLOTS(1024..) LOOKUPS(1..) "
                 "DIRECTORY_BYTES(0 = default)\n");
    return 2;
  }
  const auto file = WorkloadFile::read(argv[1]);
  if (!file.ok() || file.value().inserts.empty()) {
    std::fprintf(stderr, "radix_simulation: %s\n",
                 file.ok() ? "the workload has no inserts" : file.error().message.c_str());
    return 1;
  }
  print(simulate(options, file.value()));
  return 0;
}

}  // namespace
}  // namespace radixshmem::bench

int main(int argc, char** argv) {
  return radixshmem::bench::run(argc, argv);
}
