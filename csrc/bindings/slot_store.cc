// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// SlotStore for Python. Each call takes its own reference to the mapping before it lets go of the
// GIL, so close() in another thread can never unmap memory that is being copied.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/buffers.h"
#include "bindings/errors.h"
#include "bindings/gil.h"
#include "slots/cuda_driver.h"
#include "slots/pinned_chunks.h"
#include "slots/slot_copy.h"
#include "slots/slot_store.h"

namespace radixshmem::bindings {
namespace {

namespace py = pybind11;
using Store = std::shared_ptr<const SlotStore>;

// A part of the mapping, exported as a buffer; what a memoryview keeps alive.
struct StoreBytes {
  Store store;
  std::span<std::byte> bytes;

  [[nodiscard]] py::buffer_info info() const {
    return {
        bytes.data(),      1, "B", 1, {static_cast<py::ssize_t>(bytes.size())}, {py::ssize_t{1}},
        store->read_only()};
  }
};

Error out_of_range(const SlotStore& store, std::int64_t offset, std::int64_t length) {
  return Error{ErrorCode::OUT_OF_RANGE, "offset " + std::to_string(offset) + ", length " +
                                            std::to_string(length) + ": SlotStore " + store.name() +
                                            " has " + std::to_string(store.data().size()) +
                                            " bytes of data"};
}

class PySlotStore final {
 public:
  explicit PySlotStore(Store store) : name_(store->name()), store_(std::move(store)) {}

  // Throws RadixError after close().
  [[nodiscard]] const Store& get() const {
    if (!store_) throw_error(Error{ErrorCode::CLOSED, "SlotStore " + name_ + " is closed"});
    return store_;
  }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  void close() {
    Store last = std::exchange(store_, nullptr);
    const GilRelease release;  // unmapping a large region takes a while
    last.reset();
  }

 private:
  std::string name_;
  Store store_;
};

using Sizes = std::vector<std::uint64_t>;

std::unique_ptr<PySlotStore> create(const std::string& name, const Sizes& num_slots,
                                    const Sizes& slot_bytes, std::uint64_t slot_align,
                                    std::string hugepage_path, std::uint64_t nonce, mode_t mode,
                                    std::int64_t gid) {
  if (num_slots.size() != kComponents || slot_bytes.size() != kComponents) {
    throw py::value_error("num_slots and slot_bytes need one entry per component: 3");
  }
  SlotStorePlan plan{name, {}, slot_align, nonce};
  for (std::size_t kind = 0; kind < kComponents; ++kind) {
    plan.pools[kind] = {num_slots[kind], slot_bytes[kind]};
  }
  const RegionOptions options{mode, gid, std::move(hugepage_path), {}};
  return std::make_unique<PySlotStore>(unlocked([&] { return SlotStore::create(plan, options); }));
}

std::unique_ptr<PySlotStore> attach(const std::string& name, const std::string& hugepage_path,
                                    std::uint32_t timeout_ms, bool read_only) {
  return std::make_unique<PySlotStore>(
      unlocked([&] { return SlotStore::attach(name, hugepage_path, timeout_ms, read_only); }));
}

void check_room(const std::string& need, std::uint64_t bytes, std::string hugepage_path) {
  RegionOptions options;
  options.hugepage_path = std::move(hugepage_path);
  unwrap(SharedRegion::check_room(need, bytes, options));
}

bool destroy(const std::string& name, const std::string& hugepage_path) {
  return unlocked([&] { return SlotStore::destroy(name, hugepage_path); });
}

py::memoryview view(const PySlotStore& self, std::int64_t offset, std::int64_t length) {
  const Store& store = self.get();
  const auto size = static_cast<std::int64_t>(store->data().size());
  if (offset < 0 || length < 0 || offset > size || length > size - offset) {
    throw_error(out_of_range(*store, offset, length));
  }
  return py::memoryview(
      py::cast(StoreBytes{store, store->data().subspan(static_cast<std::size_t>(offset),
                                                       static_cast<std::size_t>(length))}));
}

py::bytes read_slot(const PySlotStore& self, std::int64_t slot, std::int64_t kind) {
  const Store store = self.get();
  const std::span<const std::byte> from = unwrap(store->slot(slot, kind));
  PyObject* const raw = PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(from.size()));
  if (raw == nullptr) throw py::error_already_set();
  auto result = py::reinterpret_steal<py::bytes>(raw);
  char* const to = PyBytes_AS_STRING(raw);
  const GilRelease release;
  std::memcpy(to, from.data(), from.size());
  return result;
}

void write_slot(const PySlotStore& self, std::int64_t slot, py::handle data, std::int64_t kind) {
  const Store store = self.get();
  unwrap(store->require_writable("write_slot"));
  const std::span<std::byte> to = unwrap(store->slot(slot, kind));
  const Bytes bytes(data);
  const std::span<const std::byte> from = bytes.span();
  if (from.size() > to.size()) {
    throw py::value_error("write_slot: " + std::to_string(from.size()) +
                          " bytes of data do not fit a slot of " + std::to_string(to.size()));
  }
  const GilRelease release;
  std::memmove(to.data(), from.data(), from.size());
}

using CopyFunction = Result<std::uint64_t> (*)(const SlotStore&, const CopyRequest&);

template <CopyFunction copy>
std::uint64_t bulk_copy(const PySlotStore& self, py::handle slots, py::handle ptrs,
                        py::handle sizes, std::int64_t kind, std::int64_t offset) {
  const Store store = self.get();
  const Slots slot_ids(slots, "slots");
  const Words addresses(ptrs, "ptrs");
  const Words lengths(sizes, "sizes");
  return unlocked([&] {
    return copy(*store, {slot_ids.span(), addresses.span(), lengths.span(), kind, offset});
  });
}

void prefault(const PySlotStore& self, std::uint64_t begin, std::uint64_t end) {
  const Store store = self.get();
  unlocked([&] { return store->prefault(begin, end); });
}

// The last reference is let go without the GIL: unpinning a large region takes a while.
class PyPinnedChunks final {
 public:
  explicit PyPinnedChunks(std::unique_ptr<PinnedChunks> chunks) : chunks_(std::move(chunks)) {}
  PyPinnedChunks(const PyPinnedChunks&) = delete;
  PyPinnedChunks& operator=(const PyPinnedChunks&) = delete;
  ~PyPinnedChunks() {
    const GilRelease release;
    chunks_.reset();
  }
  [[nodiscard]] PinnedChunks& get() const noexcept { return *chunks_; }

 private:
  std::unique_ptr<PinnedChunks> chunks_;
};

std::unique_ptr<PyPinnedChunks> cuda_chunks(const PySlotStore& self, const std::string& library,
                                            std::uint64_t chunk_bytes) {
  const Store store = self.get();
  std::shared_ptr<HostPinner> driver = unlocked([&] { return load_cuda_driver(library); });
  return std::make_unique<PyPinnedChunks>(
      std::make_unique<PinnedChunks>(store, std::move(driver), chunk_bytes));
}

void bind_pinned_chunks(py::module_& module) {
  py::class_<PyPinnedChunks>(module, "PinnedChunks", py::is_final())
      .def("pin_next",
           [](const PyPinnedChunks& self) {
             return unlocked([&] { return self.get().pin_next(); });
           })
      .def_property_readonly("pinned_bytes",
                             [](const PyPinnedChunks& self) { return self.get().pinned_bytes(); })
      .def_property_readonly("total_bytes",
                             [](const PyPinnedChunks& self) { return self.get().total_bytes(); });
}

void bind_properties(py::class_<PySlotStore>& type) {
  type.def_property_readonly("name", &PySlotStore::name)
      .def_property_readonly("nonce", [](const PySlotStore& self) { return self.get()->nonce(); })
      .def_property_readonly("pool_mask",
                             [](const PySlotStore& self) { return self.get()->pool_mask(); })
      .def_property_readonly("is_hugepage",
                             [](const PySlotStore& self) { return self.get()->is_hugepage(); })
      .def_property_readonly("read_only",
                             [](const PySlotStore& self) { return self.get()->read_only(); })
      .def_property_readonly("data_bytes",
                             [](const PySlotStore& self) { return self.get()->data().size(); });
}

}  // namespace

void bind_slot_store(py::module_& module) {
  module.def("check_room", &check_room, py::arg("need"), py::arg("bytes"),
             py::arg("hugepage_path"));
  py::class_<StoreBytes>(module, "_StoreBytes", py::buffer_protocol())
      .def_buffer([](StoreBytes& self) { return self.info(); });

  bind_pinned_chunks(module);
  py::class_<PySlotStore> type(module, "SlotStore", py::is_final());
  bind_properties(type);
  type.def_static("create", &create, py::arg("name"), py::arg("num_slots"), py::arg("slot_bytes"),
                  py::arg("slot_align"), py::arg("hugepage_path"), py::arg("nonce"),
                  py::arg("mode"), py::arg("gid"))
      .def_static("attach", &attach, py::arg("name"), py::arg("hugepage_path"),
                  py::arg("timeout_ms"), py::arg("read_only"))
      .def_static("destroy", &destroy, py::arg("name"), py::arg("hugepage_path"))
      .def(
          "num_slots",
          [](const PySlotStore& self, std::int64_t kind) {
            return unwrap(self.get()->pool(kind)).num_slots;
          },
          py::arg("kind"))
      .def(
          "slot_bytes",
          [](const PySlotStore& self, std::int64_t kind) {
            return unwrap(self.get()->pool(kind)).stride;
          },
          py::arg("kind"))
      .def(
          "slot_offset",
          [](const PySlotStore& self, std::int64_t slot, std::int64_t kind) {
            return unwrap(self.get()->slot_offset(slot, kind));
          },
          py::arg("slot"), py::arg("kind"))
      .def("view", &view, py::arg("offset"), py::arg("length"))
      .def("read_slot", &read_slot, py::arg("slot"), py::arg("kind"))
      .def("write_slot", &write_slot, py::arg("slot"), py::arg("data"), py::arg("kind"))
      .def("copy_in", &bulk_copy<copy_in>, py::arg("slots"), py::arg("ptrs"), py::arg("sizes"),
           py::arg("kind"), py::arg("offset"))
      .def("copy_out", &bulk_copy<copy_out>, py::arg("slots"), py::arg("ptrs"), py::arg("sizes"),
           py::arg("kind"), py::arg("offset"))
      .def("prefault", &prefault, py::arg("begin"), py::arg("end"))
      .def("cuda_chunks", &cuda_chunks, py::arg("library"), py::arg("chunk_bytes"))
      .def("close", &PySlotStore::close);
}

}  // namespace radixshmem::bindings
