// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Each scenario must go well without its mutant and must show it.
#include <gtest/gtest.h>

#include <string>

#include "tests/crash/mutant_test.h"
#include "tests/crash/mutants.h"

namespace radixshmem::crash {
namespace {

std::string case_name(const testing::TestParamInfo<MutantCase>& info) {
  for (const auto& [mutant, name] : kMutants) {
    if (mutant == info.param.mutant) return name;
  }
  return "unknown";
}

class Mutants : public testing::TestWithParam<MutantCase> {};

TEST_P(Mutants, the_protocol_is_right_and_its_mutant_is_caught) {
  const auto& [mutant, scenario] = GetParam();
  EXPECT_EQ(scenario(Mutant::kNone), "") << "without any mutant";
  const std::string caught = scenario(mutant);
  EXPECT_NE(caught, "") << "the mutant survived";
  EXPECT_EQ(caught.find("the scenario did not happen"), std::string::npos) << caught;
}

INSTANTIATE_TEST_SUITE_P(Readers, Mutants, testing::ValuesIn(reader_mutants()), case_name);
INSTANTIATE_TEST_SUITE_P(AuxReaders, Mutants, testing::ValuesIn(aux_reader_mutants()), case_name);
INSTANTIATE_TEST_SUITE_P(Writers, Mutants, testing::ValuesIn(writer_mutants()), case_name);

}  // namespace
}  // namespace radixshmem::crash
