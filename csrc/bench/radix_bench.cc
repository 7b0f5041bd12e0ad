// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// radix_bench [WORKLOAD] [--all N]
//
// Takes samples of rows. Without --all it reads row names from standard input, one a line, and
// answers each with one line of JSON, so that a driver (benchmarks/bench.py) can interleave them
// with measurements of its own; its first line lists the rows. With --all it takes N samples of
// every row in turn and prints the medians. Rows of the index need a WORKLOAD file, which
// benchmarks/workload.py writes.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "bench/index_rows.h"
#include "bench/loopback_row.h"
#include "bench/machine_rows.h"
#include "bench/row.h"

namespace radixshmem::bench {
namespace {

struct Arguments {
  std::string workload;  // empty: machine rows only
  int samples = 0;       // 0: serve standard input
};

bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--all") {
      if (++i == argc) return false;
      const std::string_view number = argv[i];
      const auto [end, error] =
          std::from_chars(number.data(), number.data() + number.size(), arguments.samples);
      if (error != std::errc() || end != number.data() + number.size() || arguments.samples < 1) {
        return false;
      }
    } else if (word.starts_with("-") || !arguments.workload.empty()) {
      return false;
    } else {
      arguments.workload = word;
    }
  }
  return true;
}

void print(const std::string& row, const Sample& sample) {
  std::printf("{\"row\": \"%s\", \"ns\": %.3f, \"count\": %llu}\n", row.c_str(), sample.ns,
              static_cast<unsigned long long>(sample.count));
  std::fflush(stdout);
}

void list_rows(const Rows& rows) {
  std::string names;
  for (const auto& [name, take] : rows) names += (names.empty() ? "\"" : ", \"") + name + "\"";
  std::printf("{\"rows\": [%s]}\n", names.c_str());
  std::fflush(stdout);
}

int failed(const Error& error) {
  std::fprintf(stderr, "radix_bench: %s\n", error.message.c_str());
  return 1;
}

int serve(Rows& rows) {
  list_rows(rows);
  for (std::string name; std::getline(std::cin, name);) {
    const auto row = rows.find(name);
    if (row == rows.end()) {
      std::fprintf(stderr, "radix_bench: no row \"%s\"; the first line lists them\n", name.c_str());
      return 2;
    }
    const Result<Sample> sample = row->second();
    if (!sample.ok()) return failed(sample.error());
    print(name, sample.value());
  }
  return 0;
}

int take_all(Rows& rows, int samples) {
  std::map<std::string, std::vector<Sample>> taken;
  for (int i = 0; i < samples; ++i) {
    for (auto& [name, take] : rows) {
      const Result<Sample> sample = take();
      if (!sample.ok()) return failed(sample.error());
      taken[name].push_back(sample.value());
    }
  }
  for (auto& [name, all] : taken) {
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::nth_element(all.begin(), middle, all.end(),
                     [](const Sample& a, const Sample& b) { return a.ns < b.ns; });
    print(name, *middle);
  }
  return 0;
}

int run(int argc, char** argv) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fprintf(stderr, "usage: radix_bench [WORKLOAD] [--all SAMPLES]\n");
    return 2;
  }
  Rows rows;
  Result<> added = add_machine_rows(rows);
  if (added.ok() && !arguments.workload.empty()) {
    added = add_index_rows(arguments.workload, rows);
  }
  if (!added.ok()) return failed(added.error());
  add_loopback_row(rows);
  return arguments.samples == 0 ? serve(rows) : take_all(rows, arguments.samples);
}

}  // namespace
}  // namespace radixshmem::bench

int main(int argc, char** argv) {
  return radixshmem::bench::run(argc, argv);
}
