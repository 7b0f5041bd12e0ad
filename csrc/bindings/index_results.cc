// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bindings/index_results.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <span>
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

py::tuple fragment(std::uint32_t rank, Position offset, std::span<const std::int32_t> from) {
  py::list slots(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) slots[i] = py::int_(from[i]);
  return py::make_tuple(rank, offset, slots);
}

py::list full_fragments(const QueryResult& result) {
  py::list fragments;
  const Hit& hit = result.hit;
  if (hit.full_count != 0) {
    fragments.append(fragment(hit.rank, 0, {hit.full_slots.get(), hit.full_count}));
  }
  if (result.remote && (hit.mask & kMaskFull) != 0) {
    for (const RemoteFragment& part : result.remote->full) {
      fragments.append(fragment(part.rank, part.offset, part.slots));
    }
  }
  return fragments;
}

SlotArray swa_slots(const py::object& self) {
  const auto& result = self.cast<const QueryResult&>();
  const auto& slots = result.remote ? result.remote->swa_slots : result.hit.window.swa_slots;
  return view_of(slots.data(), slots.size(), self);
}

Position swa_start(const QueryResult& result) {
  return result.remote ? result.remote->swa_start : result.hit.window.swa_start;
}

std::uint32_t swa_source_rank(const QueryResult& result) {
  const bool elsewhere = result.remote && !result.remote->swa_slots.empty();
  return elsewhere ? result.remote->swa_rank : result.hit.rank;
}

py::object mamba(const QueryResult& result) {
  if (result.remote) {
    const auto& found = result.remote->mamba;
    return found ? py::object(py::make_tuple(found->rank, found->slot)) : py::none();
  }
  if (!result.hit.window.mamba) return py::none();
  return py::make_tuple(result.hit.rank, *result.hit.window.mamba);
}

SlotArray aux_slots(const py::object& self) {
  const auto& slots = self.cast<const AuxResult&>().hit.window.aux_slots;
  return view_of(slots.data(), slots.size(), self);
}

SlotArray unused_slots(const py::object& self) {
  const auto& unused = self.cast<const InsertOutcome&>().unused;
  return view_of(unused.data(), unused.size(), self);
}

std::string repr_of_hit(const char* name, const Hit& hit, Position common_hit) {
  return std::string(name) + "(status=" + error_name(hit.status) +
         ", common_hit=" + std::to_string(common_hit) +
         ", pinned=" + (hit.pinned() ? "True" : "False") + ")";
}

void warn_if_pinned(const char* name, const Hit& hit) {
  if (!hit.pinned()) return;
  const py::error_scope saved;
  const std::string text = std::string(name) +
                           " with lock=True was dropped without finalize(): its blocks stay "
                           "pinned until the client closes";
  if (PyErr_WarnEx(PyExc_ResourceWarning, text.c_str(), 1) != 0) PyErr_WriteUnraisable(nullptr);
}

// What all results of queries have.
template <typename Result>
py::class_<Result> bind_hit(py::module_& module, const char* name) {
  return py::class_<Result>(module, name)
      .def("__repr__", [name](const Result& r) { return repr_of_hit(name, r.hit, r.common_hit()); })
      .def_property_readonly("status",
                             [](const Result& r) { return static_cast<int>(r.hit.status); })
      .def_property_readonly("common_hit", [](const Result& r) { return r.common_hit(); })
      .def("finalize", [](Result& r) { r.hit.finalize(); })
      .def("validate", [](const Result& r) { return r.hit.validate(); });
}

std::string repr_of_insert(const InsertOutcome& result) {
  return std::string("InsertResult(error=") + error_name(result.error) + ", landed=(" +
         std::to_string(result.first) + ", " + std::to_string(result.last) +
         "), len(unused_slots)=" + std::to_string(result.unused.size()) + ")";
}

}  // namespace

QueryResult::~QueryResult() {
  warn_if_pinned("a QueryResult", hit);
}

AuxResult::~AuxResult() {
  warn_if_pinned("an AuxResult", hit);
}

void bind_index_results(py::module_& module) {
  py::class_<CursorPoint>(module, "Cursor")
      .def_property_readonly("position", [](const CursorPoint& c) { return c.position; });
  bind_hit<QueryResult>(module, "QueryResult")
      .def_property_readonly("full_fragments", &full_fragments)
      .def_property_readonly("full_slots", &full_slots)
      .def_property_readonly("swa_start", &swa_start)
      .def_property_readonly("swa_slots", &swa_slots)
      .def_property_readonly("swa_source_rank", &swa_source_rank)
      .def_property_readonly("mamba", &mamba)
      .def_property_readonly("cursor", [](const QueryResult& r) { return r.hit.cursor; });
  bind_hit<AuxResult>(module, "AuxResult").def_property_readonly("slots", &aux_slots);
  py::class_<InsertOutcome>(module, "InsertResult")
      .def("__repr__", &repr_of_insert)
      .def_property_readonly("error",
                             [](const InsertOutcome& r) { return static_cast<int>(r.error); })
      .def_property_readonly("unused_slots", &unused_slots)
      .def_property_readonly(
          "landed", [](const InsertOutcome& r) { return std::make_tuple(r.first, r.last); });
}

}  // namespace radixshmem::bindings
