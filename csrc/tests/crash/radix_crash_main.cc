// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// radix_crash: kill processes at every step of the protocol, by the thousand, and look for wrong
// bytes, hangs and broken invariants. docs/recovery.md tells how to read the report.
//
//   radix_crash --suite SECONDS [--min-each 20] [--min-total N]    several configurations in turn
//   radix_crash [--config tiny|fan] [--seconds 10] ...             one configuration
//   radix_crash --threads ...                                      threads, no kills (sanitizers)
//
// With RADIX_TEST_FULL=1 in the environment everything runs ten times as long.
// Exit code: 0 good, 1 a violation, 2 too few kills, 3 bad arguments. With --expect-violation (for
// a mutant) 0 if there was one, 1 if not.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/crash/campaign.h"
#include "tests/crash/mutants.h"

namespace radixshmem::crash {
namespace {

struct Arguments {
  Options options = tiny_options();
  double suite_seconds = 0;
  std::uint64_t min_each = 0;
  std::uint64_t min_total = 0;
  bool quiet = false;
  bool expect_violation = false;
};

constexpr const char* kUsage =
    "radix_crash [--suite SECONDS] [--config tiny|fan] [--seconds N] [--seed N] [--workers N]\n"
    "            [--rate N] [--armed N] [--stop-owners] [--spoil-logs] [--damage] [--stress]\n"
    "            [--mutant NAME] [--threads] [--min-each N] [--min-total N] [--quiet]\n"
    "            [--expect-violation]\n";

// Returns: whether it is a flag without a value.
bool set_flag(std::string_view flag, Arguments& out) {
  Options& options = out.options;
  if (flag == "--stop-owners") {
    options.stop_owners = true;
    options.plan.lock_timeout_ms = 50;
    return true;
  }
  for (const auto& [name, target] : std::initializer_list<std::pair<std::string_view, bool*>>{
           {"--spoil-logs", &options.spoil_logs},
           {"--damage", &options.damage},
           {"--stress", &options.stress},
           {"--threads", &options.threads},
           {"--expect-violation", &out.expect_violation},
           {"--quiet", &out.quiet}}) {
    if (flag == name) return *target = true;
  }
  return false;
}

// Returns: whether it is a flag with such a value. --config was taken before.
bool set_value(std::string_view flag, const char* value, Arguments& out) {
  Options& options = out.options;
  const auto number = [&] { return std::strtoull(value, nullptr, 10); };
  const auto small = [&] { return static_cast<std::uint32_t>(std::atoi(value)); };
  if (flag == "--suite") {
    out.suite_seconds = std::atof(value);
  } else if (flag == "--seconds") {
    options.seconds = std::atof(value);
  } else if (flag == "--seed") {
    options.seed = number();
  } else if (flag == "--workers") {
    options.workers = small();
  } else if (flag == "--rate") {
    options.rate = small();
  } else if (flag == "--armed") {
    options.armed_at_once = small();
  } else if (flag == "--min-each") {
    out.min_each = number();
  } else if (flag == "--min-total") {
    out.min_total = number();
  } else if (flag == "--mutant") {
    const auto mutant = mutant_named(value);
    if (!mutant) return false;
    options.mutant = *mutant;
  } else {
    return flag == "--config";
  }
  return true;
}

bool parse(int argc, char** argv, Arguments& out) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--config") == 0 && std::strcmp(argv[i + 1], "fan") == 0) {
      out.options = fan_options();
    }
  }
  for (int i = 1; i < argc; ++i) {
    if (set_flag(argv[i], out)) continue;
    if (i + 1 == argc || !set_value(argv[i], argv[i + 1], out)) return false;
    ++i;
  }
  // RADIX_TEST_FULL=1: the long version of a test that is otherwise the same.
  const char* full = std::getenv("RADIX_TEST_FULL");
  if (full != nullptr && std::strcmp(full, "1") == 0) {
    out.suite_seconds *= 10;
    out.options.seconds *= 10;
    out.min_total *= 5;
  }
  return out.options.workers >= 1 && out.options.workers <= kMaxWorkers;
}

struct Stage {
  Options options;
  double share = 0;
};

std::vector<Stage> suite(const Arguments& arguments) {
  const auto make = [&](Options base, const char* label, double share) {
    base.label = label;
    base.seed = arguments.options.seed * 1000 + static_cast<std::uint64_t>(share * 100) + label[0];
    base.seconds = arguments.suite_seconds * share;
    return Stage{base, share};
  };
  Options damaged = tiny_options();
  damaged.damage = true;
  Options stressed = tiny_options();
  stressed.stress = true;
  Options stopping = tiny_options();
  stopping.stop_owners = true;
  stopping.plan.lock_timeout_ms = 50;
  Options spoiled = tiny_options();
  spoiled.spoil_logs = true;
  return {make(tiny_options(), "tiny", 0.3),     make(fan_options(), "fan", 0.25),
          make(stressed, "stress", 0.15),        make(damaged, "damage", 0.1),
          make(stopping, "stopped owners", 0.1), make(spoiled, "spoiled logs", 0.1)};
}

void print(const Totals& totals, const std::string& violation, bool quiet) {
  if (!quiet) {
    std::printf("%-24s %10s %14s\n", "fault point", "kills", "passed");
    for (std::size_t i = 0; i < kFaultPoints; ++i) {
      std::printf("%-24s %10llu %14llu\n", fault_point_name(static_cast<FaultPoint>(i)),
                  static_cast<unsigned long long>(totals.killed[i]),
                  static_cast<unsigned long long>(totals.passed[i]));
    }
  }
  std::printf("{\"seconds\": %.1f, \"operations\": %llu, \"kills\": %llu", totals.seconds,
              static_cast<unsigned long long>(totals.operations),
              static_cast<unsigned long long>(totals.kills()));
  std::uint64_t least = ~std::uint64_t{0};
  for (const std::uint64_t kills : totals.killed) least = least < kills ? least : kills;
  std::printf(", \"fault_points\": %zu, \"least_killed\": %llu", kFaultPoints,
              static_cast<unsigned long long>(least));
  for (std::size_t i = 0; i < kTallies; ++i) {
    std::printf(", \"%s\": %llu", tally_name(static_cast<Tally>(i)),
                static_cast<unsigned long long>(totals.tallies[i]));
  }
  std::printf(", \"violation\": \"%s\"}\n", violation.c_str());
}

bool enough(const Arguments& arguments, const Totals& totals) {
  for (const std::uint64_t kills : totals.killed) {
    if (kills < arguments.min_each) return false;
  }
  return totals.kills() >= arguments.min_total;
}

int run(const Arguments& arguments) {
  Totals totals;
  std::string violation;
  if (arguments.options.threads) {
    violation = run_threads(arguments.options, totals);
  } else if (arguments.suite_seconds > 0) {
    std::vector<Stage> stages = suite(arguments);
    const std::size_t planned = stages.size();
    for (std::size_t i = 0; i < stages.size() && violation.empty(); ++i) {
      const Options& stage = stages[i].options;
      violation = run_campaign(stage, totals);
      std::printf("%-16s %6.1f s, kills so far %llu%s%s\n", stage.label.c_str(), stage.seconds,
                  static_cast<unsigned long long>(totals.kills()),
                  violation.empty() ? "" : ", VIOLATION: ", violation.c_str());
      std::fflush(stdout);
      // A busy machine kills slower: at most as many stages again.
      if (i + 1 == stages.size() && i + 1 < 2 * planned && !enough(arguments, totals)) {
        stages.push_back(stages[i + 1 - planned]);
        stages.back().options.seed += 1'000'000;
      }
    }
  } else {
    violation = run_campaign(arguments.options, totals);
  }
  print(totals, violation, arguments.quiet);
  if (arguments.expect_violation) {
    std::printf("%s\n", violation.empty() ? "the mutant survived" : "the mutant was caught");
    return violation.empty() ? 1 : 0;
  }
  if (!violation.empty()) {
    std::printf("VIOLATION: %s\n", violation.c_str());
    return 1;
  }
  int code = 0;
  for (std::size_t i = 0; i < kFaultPoints; ++i) {
    if (totals.killed[i] >= arguments.min_each) continue;
    std::printf("too few kills at %s: %llu of %llu\n", fault_point_name(static_cast<FaultPoint>(i)),
                static_cast<unsigned long long>(totals.killed[i]),
                static_cast<unsigned long long>(arguments.min_each));
    code = 2;
  }
  if (totals.kills() < arguments.min_total) {
    std::printf("too few kills: %llu of %llu\n", static_cast<unsigned long long>(totals.kills()),
                static_cast<unsigned long long>(arguments.min_total));
    code = 2;
  }
  return code;
}

}  // namespace
}  // namespace radixshmem::crash

int main(int argc, char** argv) {
  radixshmem::crash::Arguments arguments;
  if (!radixshmem::crash::parse(argc, argv, arguments)) {
    std::fputs(radixshmem::crash::kUsage, stderr);
    return 3;
  }
  return radixshmem::crash::run(arguments);
}
