// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// An open RDMA device, for the bindings of what reads or is read through it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>
#include <vector>

#include "transport/verbs.h"

namespace radixshmem::bindings {

class PyVerbsDevice final {
 public:
  explicit PyVerbsDevice(std::shared_ptr<VerbsDevice> device) : device_(std::move(device)) {}
  ~PyVerbsDevice();
  PyVerbsDevice(const PyVerbsDevice&) = delete;
  PyVerbsDevice& operator=(const PyVerbsDevice&) = delete;

  [[nodiscard]] const std::shared_ptr<VerbsDevice>& get() const noexcept { return device_; }
  // Keeps `memory` mapped for as long as this object lives.
  void add_destination(const pybind11::object& memory);

 private:
  std::vector<pybind11::object> destinations_;
  std::shared_ptr<VerbsDevice> device_;
};

}  // namespace radixshmem::bindings
