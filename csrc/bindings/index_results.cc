// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bindings/index_results.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <string>
#include <tuple>

#include "bindings/bind.h"

namespace radixshmem::bindings {
namespace {

namespace py = pybind11;
using SlotArray = py::array_t<std::int32_t>;

// An array over memory that `owner` keeps alive.
SlotArray view_of(const std::int32_t* data, std::size_t count, py::handle owner) {
  return SlotArray(static_cast<py::ssize_t>(count), data, owner);
}

SlotArray full_slots(const py::object& self) {
  const Hit& hit = self.cast<const QueryResult&>().hit;
  return view_of(hit.full_slots.get(), hit.full_count, self);
}

py::list full_fragments(const QueryResult& result) {
  py::list fragments;
  if (result.hit.full_count == 0) return fragments;
  py::list slots(result.hit.full_count);
  for (std::uint32_t i = 0; i < result.hit.full_count; ++i) {
    slots[i] = py::int_(result.hit.full_slots[i]);
  }
  fragments.append(py::make_tuple(result.rank, 0, slots));
  return fragments;
}

SlotArray swa_slots(const py::object& self) {
  const Hit& hit = self.cast<const QueryResult&>().hit;
  return view_of(hit.window.swa_slots.data(), hit.window.swa_slots.size(), self);
}

py::object mamba(const QueryResult& result) {
  if (!result.hit.window.mamba) return py::none();
  return py::make_tuple(result.rank, *result.hit.window.mamba);
}

SlotArray unused_slots(const py::object& self) {
  const auto& unused = self.cast<const InsertOutcome&>().unused;
  return view_of(unused.data(), unused.size(), self);
}

std::string repr_of_query(const QueryResult& result) {
  return std::string("QueryResult(status=") + error_name(result.hit.status) +
         ", common_hit=" + std::to_string(result.hit.blocks) +
         ", pinned=" + (result.hit.pinned() ? "True" : "False") + ")";
}

std::string repr_of_insert(const InsertOutcome& result) {
  return std::string("InsertResult(error=") + error_name(result.error) + ", landed=(" +
         std::to_string(result.first) + ", " + std::to_string(result.last) +
         "), len(unused_slots)=" + std::to_string(result.unused.size()) + ")";
}

}  // namespace

QueryResult::~QueryResult() {
  if (!hit.pinned()) return;
  const py::error_scope saved;
  if (PyErr_WarnEx(PyExc_ResourceWarning,
                   "a QueryResult with lock=True was dropped without finalize(): its blocks stay "
                   "pinned until the client closes",
                   1) != 0) {
    PyErr_WriteUnraisable(nullptr);
  }
}

void bind_index_results(py::module_& module) {
  py::class_<CursorPoint>(module, "Cursor")
      .def_property_readonly("position", [](const CursorPoint& c) { return c.position; });
  py::class_<QueryResult>(module, "QueryResult")
      .def("__repr__", &repr_of_query)
      .def_property_readonly("status",
                             [](const QueryResult& r) { return static_cast<int>(r.hit.status); })
      .def_property_readonly("common_hit", [](const QueryResult& r) { return r.hit.blocks; })
      .def_property_readonly("full_fragments", &full_fragments)
      .def_property_readonly("full_slots", &full_slots)
      .def_property_readonly("swa_start",
                             [](const QueryResult& r) { return r.hit.window.swa_start; })
      .def_property_readonly("swa_slots", &swa_slots)
      .def_property_readonly("swa_source_rank", [](const QueryResult& r) { return r.rank; })
      .def_property_readonly("mamba", &mamba)
      .def_property_readonly("cursor", [](const QueryResult& r) { return r.hit.cursor; })
      .def("finalize", [](QueryResult& r) { r.hit.finalize(); })
      .def("validate", [](const QueryResult& r) { return r.hit.validate(); });
  py::class_<InsertOutcome>(module, "InsertResult")
      .def("__repr__", &repr_of_insert)
      .def_property_readonly("error",
                             [](const InsertOutcome& r) { return static_cast<int>(r.error); })
      .def_property_readonly("unused_slots", &unused_slots)
      .def_property_readonly(
          "landed", [](const InsertOutcome& r) { return std::make_tuple(r.first, r.last); });
}

}  // namespace radixshmem::bindings
