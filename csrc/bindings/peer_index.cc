// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// PeerIndex for Python. The local part of a query keeps the GIL as Index.query does; a lookup waits
// for peers, so it gives the GIL up.
#include "node/peer_index.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <string>
#include <tuple>
#include <utility>

#include "bindings/bind.h"
#include "bindings/buffers.h"
#include "bindings/errors.h"
#include "bindings/gil.h"
#include "bindings/index_results.h"
#include "bindings/verbs.h"
#include "transport/shm_reader.h"
#include "transport/tcp_reader.h"

namespace radixshmem::bindings {
namespace {

namespace py = pybind11;

Deadline after(std::uint32_t timeout_ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
}

QueryResult query(PeerIndex& self, const py::object& hashes, int mask, bool lock,
                  bool update_meta) {
  const Words words(hashes, "hashes");
  const QueryOptions options = query_options(mask, lock, update_meta);
  QueryResult result(unwrap(self.session().query(words.span(), options)));
  const Hit& hit = result.hit;
  if (hit.status != ErrorCode::OK || hit.blocks == words.span().size()) return result;
  auto found = unlocked([&] { return self.lookup(words.span(), options.mask, hit.blocks, false); });
  if (found && found->common_hit > hit.blocks) result.remote = std::move(found);
  return result;
}

py::list candidates(PeerIndex& self, const py::object& hashes, int mask, std::uint32_t local_hit) {
  const Words words(hashes, "hashes");
  const auto found = unlocked(
      [&] { return self.lookup(words.span(), static_cast<std::uint32_t>(mask), local_hit, true); });
  py::list out;
  if (!found) return out;
  for (const PullCandidate& c : found->candidates) {
    if (c.blocks > local_hit) out.append(py::make_tuple(c.rank, c.blocks));
  }
  return out;
}

py::list living(const PeerIndex& self) {
  py::list out;
  for (const PeerIndex::Life& life : unwrap(self.living())) {
    out.append(py::make_tuple(life.rank, life.incarnation));
  }
  return out;
}

py::list connections(const PeerIndex& self) {
  py::list out;
  for (const PeerConnection& c : self.connections()) {
    py::dict row;
    row["rank"] = c.rank;
    row["incarnation"] = c.incarnation;
    row["transport"] = transport_name(c.kind);
    row["suspect"] = c.suspect;
    row["reads"] = c.reads;
    row["bytes"] = c.bytes;
    out.append(row);
  }
  return out;
}

py::dict figures(const PeerIndex& self) {
  const LookupTotals totals = self.totals();
  py::dict out;
  out["lookups"] = totals.lookups;
  out["deeper"] = totals.deeper;
  out["rounds"] = totals.sums.rounds;
  out["lookups_by_rounds"] = totals.rounds;
  out["retries"] = totals.sums.retries;
  out["retry_rounds"] = totals.sums.retry_rounds;
  out["reads"] = totals.sums.reads;
  out["read_bytes"] = totals.sums.bytes;
  out["most_reads_to_one_peer"] = totals.sums.most_reads_to_one_peer;
  out["stale_entries"] = totals.sums.stale_entries;
  out["skipped_peers"] = totals.sums.skipped_peers;
  out["timeouts"] = totals.sums.timeouts;
  out["failures"] = totals.sums.failures;
  out["timeout_us"] = self.timeout().count();
  return out;
}

void bind_readers(py::class_<PeerIndex>& type) {
  type.def(
          "adopt_own",
          [](PeerIndex& self, Rank rank, std::uint64_t incarnation, std::uint32_t timeout_ms) {
            return unlocked([&] { return self.adopt_own({rank, incarnation}, after(timeout_ms)); });
          },
          py::arg("rank"), py::arg("incarnation"), py::arg("timeout_ms"))
      .def(
          "adopt_shm",
          [](PeerIndex& self, Rank rank, std::uint64_t incarnation, const std::string& index_name,
             std::uint32_t timeout_ms) {
            unlocked([&]() -> Result<> {
              auto reader = ShmReader::open({index_name, incarnation, "", "", 0});
              if (!reader) return reader.error();
              return self.adopt({rank, incarnation}, std::move(reader).value(), after(timeout_ms));
            });
          },
          py::arg("rank"), py::arg("incarnation"), py::arg("index_name"), py::arg("timeout_ms"))
      .def(
          "adopt_tcp",
          [](PeerIndex& self, Rank rank, std::uint64_t incarnation, int fd,
             std::uint32_t timeout_ms) {
            unlocked([&]() -> Result<> {
              auto reader = TcpReader::make(fd);
              if (!reader) return reader.error();
              return self.adopt({rank, incarnation}, std::move(reader).value(), after(timeout_ms));
            });
          },
          py::arg("rank"), py::arg("incarnation"), py::arg("fd"), py::arg("timeout_ms"))
      .def(
          "adopt_verbs",
          [](PeerIndex& self, Rank rank, std::uint64_t incarnation, int fd,
             const PyVerbsDevice& device, std::uint32_t timeout_ms) {
            unlocked([&]() -> Result<> {
              const Deadline deadline = after(timeout_ms);
              auto reader = VerbsReader::make(fd, device.get(), deadline);
              if (!reader) return reader.error();
              return self.adopt({rank, incarnation}, std::move(reader).value(), deadline);
            });
          },
          py::arg("rank"), py::arg("incarnation"), py::arg("fd"), py::arg("device"),
          py::arg("timeout_ms"))
      .def(
          "take_back",
          [](PeerIndex& self, Rank rank, std::uint64_t incarnation, std::uint32_t timeout_ms) {
            return unlocked([&] { return self.take_back({rank, incarnation}, after(timeout_ms)); });
          },
          py::arg("rank"), py::arg("incarnation"), py::arg("timeout_ms"))
      .def("drop", &PeerIndex::drop, py::arg("rank"));
}

}  // namespace

void bind_peer_index(py::module_& module) {
  py::class_<PeerIndex> type(module, "PeerIndex");
  type.def(py::init<std::shared_ptr<Session>, std::uint32_t>(), py::arg("index"),
           py::arg("timeout_us"))
      .def("query", &query, py::arg("hashes"), py::arg("mask") = 1, py::arg("lock") = false,
           py::arg("update_meta") = true)
      .def("candidates", &candidates, py::arg("hashes"), py::arg("mask"), py::arg("local_hit"))
      .def("living", &living)
      .def("connections", &connections)
      .def("wanted", &PeerIndex::wanted)
      .def("figures", &figures);
  bind_readers(type);
}

}  // namespace radixshmem::bindings
