// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The private extension radixshmem_core._core: the enums, the error table, and the parts of bind.h.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "bindings/bind.h"

namespace radixshmem::bindings {
namespace {

namespace py = pybind11;

constexpr std::int32_t kFirstControlCode = 16;  // see base/error.h

using ErrorRow = std::tuple<std::string, int, std::string, std::string>;

std::vector<ErrorRow> error_table() {
  return {
#define RADIX_ROW(name, value, exception, meaning) ErrorRow{#name, value, exception, meaning},
      RADIX_ERROR_CODES(RADIX_ROW)
#undef RADIX_ROW
  };
}

void bind_enums(py::module_& module) {
  py::native_enum<Component> components(module, "ComponentType", "enum.IntEnum");
  for (const Component c : kAllComponents) components.value(component_name(c), c);
  components.finalize();
  py::native_enum<ErrorCode> statuses(module, "InsertError", "enum.IntEnum");
#define RADIX_STATUS(name, number, exception, meaning) \
  if (number < kFirstControlCode) statuses.value(#name, ErrorCode::name);
  RADIX_ERROR_CODES(RADIX_STATUS)
#undef RADIX_STATUS
  statuses.finalize();
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  bind_enums(module);
  module.def("error_table", &error_table);
#ifdef RADIX_FAULT_POINTS
  module.attr("FAULT_POINTS") = true;
#else
  module.attr("FAULT_POINTS") = false;
#endif
  bind_hash(module);
  bind_page_keys(module);
  bind_slot_store(module);
  bind_index_results(module);
  bind_index(module);
  bind_index_server(module);
  bind_verbs(module);
  bind_peer_index(module);
  bind_peer_slots(module);
  bind_cluster(module);
}

}  // namespace radixshmem::bindings
