// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What a server of a cluster does with its index region, for Python: the peer table, the own part
// of the directory, the shard map, and the responder that answers index streams. One thread at a
// time, but for Responder.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/buffers.h"
#include "bindings/errors.h"
#include "bindings/gil.h"
#include "bindings/verbs.h"
#include "directory/directory.h"
#include "directory/peer_info.h"
#include "directory/publisher.h"
#include "directory/shard_map.h"
#include "node/call.h"
#include "node/peer_index.h"
#include "transport/responder.h"

namespace radixshmem::bindings {
namespace {

namespace py = pybind11;
using SessionPtr = std::shared_ptr<Session>;

// A part of the region of `session` for one call, which close() waits for. Throws RadixError once
// the region is unmapped.
template <typename Part>
class Use final {
 public:
  Use(const Session& session, Part& part) : call_(session), part_(part) {
    if (!call_.mapped()) throw_error(session.refusal(call_.code()));
  }
  [[nodiscard]] Part* operator->() const noexcept { return &part_; }

 private:
  Session::Call call_;
  Part& part_;
};

PeerState state_of(const std::string& name) {
  if (name == "live") return PeerState::kLive;
  if (name == "other") return PeerState::kOther;
  if (name == "gone") return PeerState::kGone;
  throw py::value_error("peer state " + name + " is not live, other or gone");
}

// X(field): of PeerInfo, as both sides of the peer protocol name them.
#define RADIX_PEER_FIELDS(X) \
  X(peer_readable_bytes)     \
  X(directory_offset)        \
  X(arena_offset)            \
  X(side_offset)             \
  X(table_offset)            \
  X(directory_lines) X(arena_units) X(side_blocks) X(side_bytes) X(table_lines) X(table_lines_max)

py::dict layout_of(const PeerInfo& info) {
  py::dict out;
#define RADIX_PUT(field) out[#field] = info.field;
  RADIX_PEER_FIELDS(RADIX_PUT)
#undef RADIX_PUT
  return out;
}

PeerInfo info_of(const py::dict& layout) {
  PeerInfo info;
#define RADIX_TAKE(field) \
  info.field = layout.contains(#field) ? layout[#field].cast<decltype(info.field)>() : 0;
  RADIX_PEER_FIELDS(RADIX_TAKE)
#undef RADIX_TAKE
  return info;
}
#undef RADIX_PEER_FIELDS

ShardMap shard_map_of(const py::object& map) {
  const Bytes bytes(map);
  ShardMap out(kShards);
  if (bytes.span().size() != out.size() * sizeof(ShardRanks)) {
    throw py::value_error("a shard map has 65536 x 2 uint16");
  }
  std::memcpy(out.data(), bytes.span().data(), bytes.span().size());
  return out;
}

// The peer table of a server's own region, which it keeps mapped.
class PyPeerTable final {
 public:
  explicit PyPeerTable(SessionPtr session)
      : session_(std::move(session)), table_(session_->peer_table()) {}

  [[nodiscard]] Use<PeerTable> get() { return {*session_, table_}; }
  [[nodiscard]] py::dict own_layout() {
    const auto mapped = get();
    return layout_of(peer_info_of(session_->tree()));
  }

  void set(Rank rank, const std::string& state, bool warming, std::uint64_t incarnation,
           const py::dict& layout) {
    PeerInfo info = info_of(layout);
    info.rank = rank;
    info.state = state_of(state);
    info.warming = warming;
    info.incarnation = incarnation;
    unwrap(get()->set(info));
  }

  void set_shard_map(const py::object& map) { get()->set_shard_map(shard_map_of(map)); }

  [[nodiscard]] std::uint64_t own_digest() {
    const auto own = get()->own();
    return own ? own->digest : 0;
  }

 private:
  SessionPtr session_;
  PeerTable table_;
};

py::bytes shard_map(const std::vector<std::pair<std::uint16_t, std::uint32_t>>& weights,
                    std::uint32_t replicas) {
  std::vector<ShardMember> members;
  for (const auto& [rank, weight] : weights) members.push_back({rank, weight});
  ShardMap map;
  {
    const GilRelease release;
    map = make_shard_map(members, replicas);
  }
  return py::bytes(reinterpret_cast<const char*>(map.data()), map.size() * sizeof(ShardRanks));
}

void bind_peer_table(py::module_& module) {
  py::class_<PyPeerTable>(module, "PeerTable")
      .def(py::init<SessionPtr>(), py::arg("index"))
      .def("set", &PyPeerTable::set, py::arg("rank"), py::arg("state"), py::arg("warming"),
           py::arg("incarnation"), py::arg("layout"))
      .def(
          "forget", [](PyPeerTable& self, Rank rank) { self.get()->forget(rank); }, py::arg("rank"))
      .def(
          "set_own",
          [](PyPeerTable& self, Rank rank, std::uint64_t digest, bool draining) {
            self.get()->set_own({rank, draining, digest});
          },
          py::arg("rank"), py::arg("digest"), py::arg("draining"))
      .def("set_shard_map", &PyPeerTable::set_shard_map, py::arg("map"))
      .def("own_layout", &PyPeerTable::own_layout)
      .def("own_digest", &PyPeerTable::own_digest);
  module.def("shard_map", &shard_map, py::arg("weights"), py::arg("replicas"));
}

class PyDirectory final {
 public:
  explicit PyDirectory(SessionPtr session)
      : session_(std::move(session)),
        directory_(session_->tree().area(AreaKind::kDirectory),
                   session_->tree().layout().directory_lines) {}
  [[nodiscard]] Use<Directory> get() { return {*session_, directory_}; }

 private:
  SessionPtr session_;
  Directory directory_;
};

py::dict directory_figures(PyDirectory& self) {
  const auto directory = self.get();
  const DirectoryCounters& c = directory->counters();
  py::dict out;
  out["entries"] = directory->entries();
  out["entries_max"] = std::uint64_t{directory->lines()} * kEntriesPerLine;
  out["waiting"] = directory->waiting();
  out["received"] = c.published;
  out["retracted"] = c.retracted;
  out["dropped"] = c.dropped;
  out["displaced"] = c.displaced;
  out["capped"] = c.capped;
  out["promoted"] = c.promoted;
  out["refused"] = c.refused;
  out["swept"] = c.swept;
  out["batches"] = c.batches;
  out["foreign_batches"] = c.foreign;
  out["malformed_batches"] = c.malformed;
  return out;
}

void bind_directory(py::module_& module) {
  py::class_<PyDirectory>(module, "Directory")
      .def(py::init<SessionPtr>(), py::arg("index"))
      .def(
          "clear", [](PyDirectory& self, std::uint64_t digest) { self.get()->clear(digest); },
          py::arg("digest"))
      .def(
          "admit",
          [](PyDirectory& self, Rank rank, std::uint64_t incarnation) {
            self.get()->admit(rank, static_cast<std::uint16_t>(incarnation));
          },
          py::arg("rank"), py::arg("incarnation"))
      .def(
          "expel", [](PyDirectory& self, Rank rank) { self.get()->expel(rank); }, py::arg("rank"))
      .def(
          "apply",
          [](PyDirectory& self, const py::object& batch, Rank rank, std::uint64_t incarnation) {
            const Bytes bytes(batch);
            unwrap(self.get()->apply(bytes.span(), rank, static_cast<std::uint16_t>(incarnation)));
          },
          py::arg("batch"), py::arg("rank"), py::arg("incarnation"))
      .def("figures", &directory_figures);
}

class PyPublisher final {
 public:
  PyPublisher(SessionPtr session, Rank rank, std::uint64_t digest, std::uint32_t chunk_blocks)
      : session_(std::move(session)),
        publisher_(session_->tree(), Publishing{rank, session_->incarnation(), digest},
                   options_of(chunk_blocks)) {}
  [[nodiscard]] Use<Publisher> get() { return {*session_, publisher_}; }

  // Steady milliseconds, the clock of all calls.
  [[nodiscard]] static std::uint64_t now() noexcept {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
  }

 private:
  static PublisherOptions options_of(std::uint32_t chunk_blocks) {
    PublisherOptions options;
    options.chunk_blocks = chunk_blocks;
    return options;
  }

  SessionPtr session_;
  Publisher publisher_;
};

constexpr std::size_t kKeysPerCollect = 65536;

py::list to_batches(const std::vector<AddressedBatch>& batches) {
  py::list out;
  for (const AddressedBatch& batch : batches) {
    const auto* data = reinterpret_cast<const char*>(batch.bytes.data());
    out.append(py::make_tuple(batch.to, py::bytes(data, batch.bytes.size())));
  }
  return out;
}

py::tuple collect(PyPublisher& self, bool everything) {
  const auto publisher = self.get();
  std::vector<AddressedBatch> out;
  {
    const GilRelease release;
    const std::uint64_t now = PyPublisher::now();
    out = everything ? publisher->flush(now) : publisher->collect(now, kKeysPerCollect);
  }
  return py::make_tuple(to_batches(out), !everything && publisher->more());
}

void bind_publisher(py::module_& module) {
  py::class_<PyPublisher>(module, "Publisher")
      .def(py::init<SessionPtr, Rank, std::uint64_t, std::uint32_t>(), py::arg("index"),
           py::arg("rank"), py::arg("digest"), py::arg("chunk_blocks"))
      .def(
          "set_maps",
          [](PyPublisher& self, const std::vector<py::object>& maps, std::uint32_t rate,
             std::uint64_t delay_ms) {
            if (maps.size() > kMaxShardMaps)
              throw py::value_error("more than " + std::to_string(kMaxShardMaps) + " shard maps");
            ShardMaps all;
            for (const py::object& map : maps) all.push_back(shard_map_of(map));
            self.get()->set_maps(std::move(all), rate, PyPublisher::now(), delay_ms);
          },
          py::arg("maps"), py::arg("rate"), py::arg("delay_ms"))
      .def(
          "resend",
          [](PyPublisher& self, Rank to, std::uint32_t rate) {
            self.get()->resend(to, rate, PyPublisher::now());
          },
          py::arg("to"), py::arg("rate"))
      .def(
          "republish_all",
          [](PyPublisher& self, std::uint32_t rate) {
            self.get()->republish_all(rate, PyPublisher::now());
          },
          py::arg("rate"))
      .def("collect", &collect, py::arg("everything"))
      .def("stop", [](PyPublisher& self) { self.get()->stop(); })
      .def("republishing", [](PyPublisher& self) { return self.get()->republishing(); })
      .def("figures", [](PyPublisher& self) {
        const PublisherCounters& c = self.get()->counters();
        py::dict out;
        out["events"] = c.events;
        out["resyncs"] = c.resyncs;
        out["published"] = c.published;
        out["withdrawn"] = c.retracted;
        out["given_up"] = c.given_up;
        out["republished"] = c.republished;
        out["batches"] = c.batches;
        out["batch_bytes"] = c.bytes;
        out["pending"] = self.get()->pending();
        return out;
      });
}

// The responder, and what it reads from for as long as it runs.
class PyResponder final {
 public:
  PyResponder(SessionPtr session, py::object store, std::unique_ptr<Responder> responder)
      : session_(std::move(session)), store_(std::move(store)), responder_(std::move(responder)) {}
  [[nodiscard]] Responder& get() const noexcept { return *responder_; }
  void serve_verbs(const std::vector<const PyVerbsDevice*>& devices) {
    std::vector<std::shared_ptr<VerbsDevice>> all;
    for (const PyVerbsDevice* const device : devices) all.push_back(device->get());
    if (all.empty()) throw py::value_error("no device to serve verbs through");
    unlocked([&] { return responder_->serve_verbs(all); });
  }

 private:
  SessionPtr session_;
  py::object store_;  // a view of the slots
  std::unique_ptr<Responder> responder_;
};

std::unique_ptr<PyResponder> start_responder(const SessionPtr& session, py::object slots) {
  const Tree& tree = session->tree();
  PeerRanges ranges;
  ranges.index = {reinterpret_cast<const std::byte*>(&tree.header()),
                  tree.layout().peer_readable_bytes};
  if (!slots.is_none()) {
    const Bytes bytes(slots);
    ranges.slots = bytes.span();
  }
  auto started = unlocked([&] { return Responder::start(ranges); });
  return std::make_unique<PyResponder>(session, std::move(slots), std::move(started));
}

py::dict responder_figures(const PyResponder& self) {
  const ResponderFigures f = self.get().figures();
  py::dict out;
  out["streams"] = f.streams;
  out["accepted"] = f.accepted;
  out["reads"] = f.reads;
  out["read_bytes"] = f.read_bytes;
  out["refused_malformed"] = f.refused_malformed;
  out["refused_out_of_range"] = f.refused_out_of_range;
  out["refused_not_served"] = f.refused_not_served;
  out["refused_full"] = f.refused_full;
  out["dropped_stalled"] = f.dropped_stalled;
  return out;
}

}  // namespace

void bind_cluster(py::module_& module) {
  bind_peer_table(module);
  bind_directory(module);
  bind_publisher(module);
  py::class_<PyResponder>(module, "Responder")
      .def_static("start", &start_responder, py::arg("index"), py::arg("slots"))
      .def(
          "add",
          [](const PyResponder& self, int fd) { unlocked([&] { return self.get().add(fd); }); },
          py::arg("fd"))
      .def("serve_verbs", &PyResponder::serve_verbs, py::arg("devices"))
      .def("figures", &responder_figures)
      .def("stop", [](const PyResponder& self) {
        const GilRelease release;
        self.get().stop();
      });
}

}  // namespace radixshmem::bindings
