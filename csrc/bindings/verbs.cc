// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// VerbsDevice for Python: opening an RDMA device, and memory that slots are read to.
#include "bindings/verbs.h"

#include <cstdint>
#include <memory>
#include <string>

#include "bindings/bind.h"
#include "bindings/buffers.h"
#include "bindings/errors.h"
#include "bindings/gil.h"

namespace radixshmem::bindings {

namespace py = pybind11;

PyVerbsDevice::~PyVerbsDevice() {
  const GilRelease release;  // ending the registration of large memory takes a while
  device_.reset();
}

void PyVerbsDevice::add_destination(const py::object& memory) {
  BufferView view;
  if (!view.take(memory, PyBUF_WRITABLE)) throw py::error_already_set();
  destinations_.push_back(memory);
  const std::span bytes(static_cast<std::byte*>(view->buf), static_cast<std::size_t>(view->len));
  unlocked([&] { return register_destination(*device_, bytes); });
}

namespace {

std::unique_ptr<PyVerbsDevice> open(const std::string& device, int gid_index, std::uint8_t port) {
  VerbsOptions options;
  options.device = device;
  options.gid_index = gid_index;
  options.port = port;
  return std::make_unique<PyVerbsDevice>(unlocked([&] { return open_verbs(options); }));
}

}  // namespace

void bind_verbs(py::module_& module) {
  py::class_<PyVerbsDevice>(module, "VerbsDevice")
      .def_static("open", &open, py::arg("device"), py::arg("gid_index"), py::arg("port"))
      .def("add_destination", &PyVerbsDevice::add_destination, py::arg("memory"))
      .def("describe", [](const PyVerbsDevice& self) {
        const GilRelease release;
        return radixshmem::describe(*self.get());
      });
}

}  // namespace radixshmem::bindings
