// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A mutant and the scenario that shows it. mutants_test.cc judges them.
#pragma once

#include <string>
#include <vector>

#include "sync/fault_point.h"

namespace radixshmem::crash {

struct MutantCase {
  Mutant mutant;
  std::string (*scenario)(Mutant);  // returns what went wrong, empty if nothing
};

[[nodiscard]] std::vector<MutantCase> reader_mutants();
[[nodiscard]] std::vector<MutantCase> aux_reader_mutants();
[[nodiscard]] std::vector<MutantCase> writer_mutants();

}  // namespace radixshmem::crash
