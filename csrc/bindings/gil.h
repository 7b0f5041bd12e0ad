// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Gives the GIL up for a scope, and survives the end of the interpreter in it.
//
// A daemon thread that wants the GIL back while the interpreter ends is ended by Python (before
// 3.14) with pthread_exit(). Its unwinding would meet a destructor that may not throw, and abort
// the process. So the thread stops here for good instead, as Python 3.14 does it: it holds nothing
// by then, and the process exits around it.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace radixshmem::bindings {

class GilRelease final {
 public:
  // Requires: the GIL.
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) ::pause();
    }
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace radixshmem::bindings
