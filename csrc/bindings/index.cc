// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Index for Python. A query takes no lock and does not wait, so it keeps the GIL (to give it up
// would cost more than the query, and milliseconds to get back beside a busy thread). Whatever
// may wait for the writer lock or scans the region releases it.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>

#include "bindings/bind.h"
#include "bindings/buffers.h"
#include "bindings/errors.h"
#include "bindings/gil.h"
#include "bindings/index_results.h"
#include "layout/region_header.h"
#include "node/inspect.h"
#include "node/session.h"

namespace radixshmem::bindings {
namespace {

namespace py = pybind11;

Component component_of(int kind) {
  if (kind < 0 || kind >= static_cast<int>(kComponents)) {
    throw_error(Error{ErrorCode::INVALID_ARGUMENT, "component " + std::to_string(kind) +
                                                       " is not FULL (0), SWA (1), MAMBA (2)"});
  }
  return static_cast<Component>(kind);
}

py::array_t<std::int32_t> to_array(const std::vector<std::int32_t>& slots) {
  // Given the data at once, pybind11 makes two arrays: a view of it, and a copy of that.
  py::array_t<std::int32_t> array(static_cast<py::ssize_t>(slots.size()));
  std::ranges::copy(slots, array.mutable_data());
  return array;
}

QueryResult query(Session& session, const py::object& hashes, int mask, bool /*local_only*/,
                  bool lock, bool update_meta) {
  const Words words(hashes, "hashes");
  return QueryResult(unwrap(session.query(words.span(), query_options(mask, lock, update_meta))));
}

AuxResult query_aux(Session& session, const py::object& hashes, int component, std::int64_t start,
                    bool lock, bool update_meta) {
  const Words words(hashes, "hashes");
  QueryOptions options =
      query_options(1 << static_cast<int>(component_of(component)), lock, update_meta);
  if (start < 0) options.mask = 0;  // refused
  constexpr std::int64_t kLast = std::numeric_limits<Position>::max();
  options.aux_from = static_cast<Position>(std::clamp<std::int64_t>(start, 0, kLast));
  return AuxResult(unwrap(session.query(words.span(), options)));
}

QueryResult extend(Session& session, const CursorPoint& cursor, const py::object& more_hashes,
                   int mask, bool /*local_only*/, bool lock, bool update_meta) {
  const Words words(more_hashes, "more_hashes");
  return QueryResult(
      unwrap(session.extend(cursor, words.span(), query_options(mask, lock, update_meta))));
}

InsertOutcome insert(Session& session, const py::object& hashes, const py::object& slots,
                     std::int64_t start, bool auto_recycle, int component) {
  const Words words(hashes, "hashes");
  const Slots ids(slots, "slots");
  const Component kind = component_of(component);
  if (start < 0 || start > 0x7fffffff) {
    InsertOutcome refused;
    refused.error = ErrorCode::BAD_REQUEST;
    return refused;
  }
  return unlocked([&] {
    return session.insert(words.span(), ids.span(), static_cast<Position>(start), auto_recycle,
                          kind);
  });
}

py::dict to_dict(const std::vector<Figure>& values) {
  py::dict out;
  for (const auto& [name, value] : values) out[name] = value;
  return out;
}

py::list dump_segments(Session& session, std::size_t most) {
  py::list out;
  for (const SegmentInfo& s : unlocked([&] { return dump(session, most); })) {
    py::dict row;
    row["id"] = s.id;
    row["class"] = s.size_class;
    row["state"] = s.state == SegmentState::kLive ? "live" : "zombie";
    row["start"] = s.start;
    row["count"] = s.count;
    row["parent"] = s.parent;
    row["children"] = s.children;
    row["touch"] = s.touch;
    row["first_hash"] = s.first_hash;
    row["slots"] = s.slots;
    out.append(row);
  }
  return out;
}

py::list pins(const Session& session) {
  py::list out;
  for (const PinInfo& p : unwrap(list_pins(session))) {
    py::dict row;
    row["client"] = p.client;
    row["segment"] = p.segment;
    row["depth"] = p.depth;
    row["mask"] = p.mask;
    row["start"] = p.start;
    out.append(row);
  }
  return out;
}

py::list clients(const Session& session) {
  py::list out;
  for (const ClientInfo& c : unlocked([&] { return list_clients(session); })) {
    py::dict row = to_dict(c.counters);
    row["client"] = c.id;
    row["state"] = static_cast<int>(c.state);
    row["generation"] = c.generation;
    row["group"] = c.group;
    row["pid"] = c.pid;
    row["alive"] = c.alive ? 1 : 0;
    row["exited"] = c.exited ? 1 : 0;
    row["pins"] = c.pins;
    row["slots"] = c.slots;
    out.append(row);
  }
  return out;
}

std::tuple<py::array_t<std::uint64_t>, bool> drain(Session& session, std::int64_t most) {
  bool overflow = false;
  const auto removed =
      unwrap(session.drain_removed(most < 0 ? 0 : static_cast<std::size_t>(most), overflow));
  return {py::array_t<std::uint64_t>(static_cast<py::ssize_t>(removed.size()), removed.data()),
          overflow};
}

void bind_queries(py::class_<Session, std::shared_ptr<Session>>& index) {
  index
      .def("query", &query, py::arg("hashes"), py::arg("mask") = 1, py::arg("local_only") = false,
           py::arg("lock") = false, py::arg("update_meta") = true)
      .def("query_aux", &query_aux, py::arg("hashes"), py::arg("component"), py::arg("start") = 0,
           py::arg("lock") = false, py::arg("update_meta") = true)
      .def("extend", &extend, py::arg("cursor"), py::arg("more_hashes"), py::arg("mask") = 1,
           py::arg("local_only") = false, py::arg("lock") = false, py::arg("update_meta") = true)
      .def(
          "slots_total",
          [](const Session& s, int c) { return unwrap(s.slots_total(component_of(c))); },
          py::arg("component") = 0)
      .def(
          "slots_free",
          [](Session& s, int c) {
            const Component kind = component_of(c);
            return unlocked([&] { return s.slots_free(kind); });
          },
          py::arg("component") = 0)
      .def("total_blocks", [](const Session& s) { return unwrap(s.total_blocks()); })
      .def("total_radix_nodes", [](const Session& s) { return unwrap(s.total_segments()); })
      .def("stats", [](const Session& s) { return to_dict(unwrap(figures(s))); })
      .def("kvevent_seek_to_head", [](Session& s) { unwrap(s.seek_events_to_head()); })
      .def("kvevent_drain", &drain, py::arg("max_hashes"))
      .def("dump", &dump_segments, py::arg("max_segments"))
      .def("pins", &pins)
      .def("clients", &clients);
}

void bind_mutations(py::class_<Session, std::shared_ptr<Session>>& index) {
  index
      .def("insert", &insert, py::arg("hashes"), py::arg("slots"), py::arg("start") = 0,
           py::arg("auto_recycle") = true, py::arg("component") = 0)
      .def(
          "allocate_slots",
          [](Session& s, std::int64_t n, int c) {
            const Component kind = component_of(c);
            return to_array(unlocked([&] { return s.allocate(n, kind); }));
          },
          py::arg("n"), py::arg("component") = 0)
      .def(
          "recycle_slots",
          [](Session& s, const py::object& slots, int c) {
            const Slots ids(slots, "slots");
            const Component kind = component_of(c);
            unlocked([&] { return s.recycle(ids.span(), kind); });
          },
          py::arg("slots"), py::arg("component") = 0)
      .def(
          "evict",
          [](Session& s, std::uint32_t n, int c) {
            const Component kind = component_of(c);
            return unlocked([&] { return s.evict(n, kind); });
          },
          py::arg("n"), py::arg("component") = 0)
      .def("reset", [](Session& s) { unlocked([&] { return s.reset(); }); })
      .def(
          "check",
          [](Session& s, bool repair) { return unlocked([&] { return s.check(repair); }); },
          py::arg("repair") = false)
      .def("close", [](Session& s) {
        const GilRelease release;
        s.close();
      });
}

}  // namespace

void bind_index(py::module_& module) {
  module.attr("LAYOUT_VERSION") = layout_version();
  py::class_<Session, std::shared_ptr<Session>> index(module, "Index");
  index
      .def_static(
          "attach",
          [](const std::string& name, const std::string& group, bool read_only) {
            return unlocked([&] { return Session::attach(name, group, read_only); });
          },
          py::arg("name"), py::arg("group"), py::arg("read_only"))
      .def_static(
          "inspect",
          [](const std::string& name) { return unlocked([&] { return Session::inspect(name); }); },
          py::arg("name"))
      .def_property_readonly(
          "client_id",
          [](const Session& s) { return s.read_only() ? -1 : static_cast<int>(s.client_id()); })
      .def_property_readonly("generation", &Session::generation)
      .def_property_readonly("incarnation", &Session::incarnation)
      .def_property_readonly("identity",
                             [](const Session& s) { return py::bytes(s.plan().identity); })
      .def_property_readonly("rank", &Session::rank)
      .def_property_readonly("world_size", &Session::world_size)
      .def_property_readonly("usable", [](const Session& s) { return s.usable(); });
  bind_queries(index);
  bind_mutations(index);
}

}  // namespace radixshmem::bindings
