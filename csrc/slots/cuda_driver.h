// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The few calls of the CUDA driver that register ("pin") host memory, so that a GPU copies from and
// to it by itself. The driver is found with dlopen: nothing here is built against CUDA, and a
// process without a GPU only gets an error when it asks for one.
//
// Memory is pinned for all contexts of the process. Its calls run in the context that was current
// in the thread that loaded the driver, else in the primary context of device 0.
//
// Thread safety: every call from any thread; the thread's own current context stays as it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"

namespace radixshmem {

// What pins memory: the driver below, or a fake of it in tests.
class HostPinner {
 public:
  virtual ~HostPinner() = default;
  virtual Result<> pin(std::byte* begin, std::uint64_t bytes, bool read_only) = 0;
  virtual Result<> unpin(std::byte* begin) = 0;
};

// Loads the driver. Returns: SYSTEM, saying what is missing, where there is no usable one.
Result<std::shared_ptr<HostPinner>> load_cuda_driver(const std::string& library);

}  // namespace radixshmem
