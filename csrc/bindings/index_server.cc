// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// IndexPlan and IndexServer for Python. Whatever may wait for a lock, or makes or scans a region,
// releases the GIL.
#include "node/index_server.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "bindings/gil.h"

namespace radixshmem::bindings {
namespace {

namespace py = pybind11;

const char* found_name(const IndexServer& server) {
  switch (server.found()) {
    case Predecessor::kNone:
      return "none";
    case Predecessor::kAdoptable:
      return "adoptable";
    case Predecessor::kDead:
      return "dead";
    case Predecessor::kForeign:
      return "foreign";
  }
  return "foreign";
}

// A field of IndexPlan that is one element of its slots array.
void bind_slots(py::class_<IndexPlan>& plan, const char* name, std::size_t k) {
  plan.def_property(
      name, [k](const IndexPlan& p) { return p.slots[k]; },
      [k](IndexPlan& p, std::uint32_t slots) { p.slots[k] = slots; });
}

}  // namespace

void bind_index_server(py::module_& module) {
  py::class_<IndexPlan> plan(module, "IndexPlan");
  plan.def(py::init<>())
      .def_readwrite("block_size", &IndexPlan::block_size)
      .def_readwrite("segment_blocks", &IndexPlan::segment_blocks)
      .def_readwrite("swa_window_blocks", &IndexPlan::swa_window_blocks)
      .def_readwrite("max_clients", &IndexPlan::max_clients)
      .def_readwrite("max_pins", &IndexPlan::max_pins)
      .def_readwrite("ring_entries", &IndexPlan::ring_entries)
      .def_readwrite("lock_timeout_ms", &IndexPlan::lock_timeout_ms)
      .def_readwrite("directory_bytes", &IndexPlan::directory_bytes)
      .def_property(
          "identity", [](const IndexPlan& p) { return py::bytes(p.identity); },
          [](IndexPlan& p, const py::bytes& identity) { p.identity = std::string(identity); })
      .def("region_bytes",
           [](const IndexPlan& p) { return unwrap(IndexLayout::from_plan(p)).region_bytes; });
  bind_slots(plan, "full_slots", 0);
  bind_slots(plan, "swa_slots", 1);
  bind_slots(plan, "mamba_slots", 2);

  py::class_<IndexServer>(module, "IndexServer")
      .def_static(
          "claim",
          [](const std::string& name, std::uint32_t mode, std::int64_t gid) {
            return unwrap(IndexServer::claim(name, static_cast<mode_t>(mode), gid));
          },
          py::arg("name"), py::arg("mode"), py::arg("gid"))
      .def("found", &found_name)
      .def("reclaim", [](IndexServer& s) { unlocked([&] { return s.reclaim(); }); })
      .def(
          "create",
          [](IndexServer& s, const IndexPlan& p, bool prefault) {
            return unlocked([&] { return s.create(p, prefault); });
          },
          py::arg("plan"), py::arg("prefault"))
      .def("adopt", [](IndexServer& s) { return unlocked([&] { return s.adopt(); }); })
      .def(
          "client_alive", [](const IndexServer& s, std::uint32_t id) { return s.client_alive(id); },
          py::arg("client_id"))
      .def(
          "reap",
          [](IndexServer& s, std::uint32_t id, bool exited) {
            const auto reaped = unlocked([&] { return s.reap(id, exited); });
            return std::make_tuple(reaped.pins, reaped.slots);
          },
          py::arg("client_id"), py::arg("exited"))
      .def("release_quarantine",
           [](IndexServer& s) { return unlocked([&] { return s.release_quarantine(); }); })
      .def("close", [](IndexServer& s) {
        const GilRelease release;
        s.close();
      });
}

}  // namespace radixshmem::bindings
