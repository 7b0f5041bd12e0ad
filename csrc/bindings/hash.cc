// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "bindings/bind.h"
#include "bindings/buffers.h"
#include "bindings/errors.h"
#include "bindings/gil.h"
#include "hash/prefix_hash.h"

namespace radixshmem::bindings {
namespace {

namespace py = pybind11;

// A 1-D buffer of integers with any stride, locked while this lives.
class TokenBuffer final {
 public:
  explicit TokenBuffer(py::handle object) {
    if (!view_.take(object, PyBUF_RECORDS_RO)) {
      PyErr_Clear();
      refuse(Py_TYPE(object.ptr())->tp_name);
    }
    const char letter = view_.item_letter();
    is_signed_ = letter != '\0' && std::strchr("bhilqn", letter) != nullptr;
    const bool is_unsigned = letter != '\0' && std::strchr("BHILQN", letter) != nullptr;
    if (!is_signed_ && !is_unsigned) refuse(view_.description());
  }

  [[nodiscard]] TokenArray tokens() const noexcept {
    return {static_cast<const std::byte*>(view_->buf), static_cast<std::size_t>(view_->shape[0]),
            view_->strides[0], static_cast<std::size_t>(view_->itemsize), is_signed_};
  }

 private:
  [[noreturn]] static void refuse(const std::string& got) {
    throw py::value_error("token_ids must be a 1-D array of integers, got " + got);
  }

  BufferView view_;
  bool is_signed_ = false;
};

py::array_t<std::uint64_t> compute_hashes(const py::object& token_ids,
                                          std::int64_t tokens_per_block,
                                          const py::bytes& name_space,
                                          std::optional<std::uint64_t> parent) {
  if (tokens_per_block < 1) {
    throw py::value_error("tokens_per_block = " + std::to_string(tokens_per_block) +
                          " must be at least 1");
  }
  const TokenBuffer buffer(token_ids);
  const TokenArray tokens = buffer.tokens();
  const auto block = static_cast<std::size_t>(tokens_per_block);
  const BlockHash first = parent ? *parent : root_hash(std::string_view(name_space));
  py::array_t<std::uint64_t> hashes(static_cast<py::ssize_t>(tokens.count / block));
  const std::span<BlockHash> out(hashes.mutable_data(), tokens.count / block);
  unlocked([&] { return chain_hashes(tokens, block, first, out); });
  return hashes;
}

std::uint64_t hash_of(const py::object& data) {
  const Bytes bytes(data);
  const GilRelease release;
  return hash_bytes(bytes.span());
}

}  // namespace

void bind_hash(py::module_& module) {
  module.def("compute_hashes", &compute_hashes, py::arg("token_ids"), py::arg("tokens_per_block"),
             py::arg("namespace"), py::arg("parent").none(true));
  module.def("hash_bytes", &hash_of, py::arg("data"));
}

}  // namespace radixshmem::bindings
