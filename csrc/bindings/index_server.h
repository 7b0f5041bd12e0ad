// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#pragma once

#include <pybind11/pybind11.h>

namespace radixshmem::bindings {

void bind_index_server(pybind11::module_& module);  // IndexPlan, IndexServer

}  // namespace radixshmem::bindings
