// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// PeerSlots for Python: reads of a peer's slots into own memory, the transport of the built-in data
// plane.
#include <pybind11/pybind11.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/buffers.h"
#include "bindings/errors.h"
#include "bindings/gil.h"
#include "bindings/verbs.h"
#include "transport/shm_reader.h"
#include "transport/tcp_reader.h"

namespace radixshmem::bindings {
namespace {

namespace py = pybind11;

constexpr std::uint64_t kBytesPerBatch = std::uint64_t{256} << 20;

Deadline after(std::uint32_t timeout_ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
}

class PeerSlots final {
 public:
  explicit PeerSlots(std::unique_ptr<PeerReader> reader) : reader_(std::move(reader)) {}

  // Reads all of `ops`, in batches that a responder accepts.
  Result<> read(std::span<const ReadOp> ops, Deadline deadline) {
    for (std::size_t at = 0; at < ops.size();) {
      std::size_t count = 0;
      std::uint64_t bytes = 0;
      while (at + count < ops.size() && count < kMaxReads &&
             (count == 0 || bytes + ops[at + count].length <= kBytesPerBatch)) {
        bytes += ops[at + count++].length;
      }
      if (!reader_->post(ops.subspan(at, count))) return failed("refused the reads");
      std::array<PeerReader*, 1> one{reader_.get()};
      if (!wait_all(one, deadline)) {
        reader_->abandon();
        return Error{ErrorCode::TIMEOUT, "the peer did not send its slots in time"};
      }
      if (reader_->poll() == PeerReader::Progress::kFailed) return failed("broke off");
      at += count;
    }
    return Unit{};
  }

 private:
  static Error failed(const char* what) {
    return Error{ErrorCode::SYSTEM, std::string("reading a peer's slots: it ") + what};
  }

  std::unique_ptr<PeerReader> reader_;
};

void read(PeerSlots& self, const py::object& memory, const py::object& remote,
          const py::object& local, const py::object& lengths, std::uint32_t timeout_ms) {
  BufferView view;
  if (!view.take(memory, PyBUF_WRITABLE)) throw py::error_already_set();
  const Words from(remote, "remote");
  const Words to(local, "local");
  const Words sizes(lengths, "lengths");
  const std::size_t count = from.span().size();
  if (to.span().size() != count || sizes.span().size() != count) {
    throw py::value_error("remote, local and lengths must be of one length");
  }
  const auto room = static_cast<std::uint64_t>(view->len);
  std::vector<ReadOp> ops(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t offset = to.span()[i];
    const std::uint64_t length = sizes.span()[i];
    if (length > 0xffffffffu || offset > room || length > room - offset) {
      throw_error(Error{ErrorCode::OUT_OF_RANGE, "a read to offset " + std::to_string(offset) +
                                                     " of " + std::to_string(length) +
                                                     " bytes leaves the own slots"});
    }
    ops[i] = {PeerRegion::kSlots, from.span()[i], static_cast<std::uint32_t>(length),
              static_cast<std::byte*>(view->buf) + offset};
  }
  unlocked([&, deadline = after(timeout_ms)] { return self.read(ops, deadline); });
}

}  // namespace

void bind_peer_slots(py::module_& module) {
  py::class_<PeerSlots>(module, "PeerSlots")
      .def_static(
          "shm",
          [](const std::string& index_name, std::uint64_t incarnation, const std::string& data_name,
             const std::string& hugepage_path, std::uint64_t nonce) {
            return std::make_unique<PeerSlots>(unlocked([&] {
              return ShmReader::open({index_name, incarnation, data_name, hugepage_path, nonce});
            }));
          },
          py::arg("index_name"), py::arg("incarnation"), py::arg("data_name"),
          py::arg("hugepage_path"), py::arg("nonce"))
      .def_static(
          "tcp",
          [](int fd) {
            return std::make_unique<PeerSlots>(unlocked([&] { return TcpReader::make(fd); }));
          },
          py::arg("fd"))
      .def_static(
          "verbs",
          [](int fd, const PyVerbsDevice& device, std::uint8_t rail, std::uint32_t timeout_ms) {
            const Deadline deadline = after(timeout_ms);
            return std::make_unique<PeerSlots>(
                unlocked([&] { return VerbsReader::make(fd, device.get(), deadline, rail); }));
          },
          py::arg("fd"), py::arg("device"), py::arg("rail"), py::arg("timeout_ms"))
      .def("read", &read, py::arg("memory"), py::arg("remote"), py::arg("local"),
           py::arg("lengths"), py::arg("timeout_ms"));
}

}  // namespace radixshmem::bindings
