// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// How a mutant is judged: its scenario must go well without it and must show it.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/crash/mutants.h"

namespace radixshmem::crash {

struct MutantCase {
  Mutant mutant;
  std::string (*scenario)(Mutant);
};

inline std::string case_name(const testing::TestParamInfo<MutantCase>& info) {
  for (const auto& [mutant, name] : kMutants) {
    if (mutant == info.param.mutant) return name;
  }
  return "unknown";
}

inline void judge(const MutantCase& mutant_case) {
  EXPECT_EQ(mutant_case.scenario(Mutant::kNone), "") << "without any mutant";
  const std::string caught = mutant_case.scenario(mutant_case.mutant);
  EXPECT_NE(caught, "") << "the mutant survived";
  EXPECT_EQ(caught.find("the scenario did not happen"), std::string::npos) << caught;
}

}  // namespace radixshmem::crash
