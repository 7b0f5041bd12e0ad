// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bindings/buffers.h"

#include <pybind11/numpy.h>

#include <cstring>
#include <limits>
#include <string>

namespace radixshmem::bindings {

char BufferView::item_letter() const noexcept {
  if (view_.ndim != 1) return '\0';
  const char* format = view_.format;
  if (format == nullptr) return 'B';
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  return format[0] != '\0' && format[1] == '\0' ? format[0] : '\0';
}

std::string BufferView::description() const {
  return std::to_string(view_.ndim) + "-D of format '" +
         (view_.format != nullptr ? view_.format : "B") + "'";
}

Bytes::Bytes(py::handle object) {
  if (!view_.take(object, PyBUF_SIMPLE)) throw py::error_already_set();
}

bool ContiguousBuffer::take_array(py::handle object) {
  if (!py::isinstance<py::array>(object)) return false;
  const auto array = py::reinterpret_borrow<py::array>(object);
  const py::dtype type = array.dtype();
  const char kind = type.kind();
  const char order = type.byteorder();
  if (array.ndim() != 1 || (array.flags() & py::array::c_style) == 0 ||
      (kind != 'i' && kind != 'u') || (order != '=' && order != '|')) {
    return false;
  }
  data_ = array.data();
  size_ = static_cast<std::size_t>(array.size());
  item_bytes_ = static_cast<std::size_t>(array.itemsize());
  is_signed_ = kind == 'i';
  array_ = array;
  return true;
}

ContiguousBuffer::ContiguousBuffer(py::handle object, const char* what) {
  if (take_array(object)) return;
  if (!view_.take(object, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)) {
    PyErr_Clear();
    throw py::value_error(std::string(what) + " must be a contiguous 1-D integer array, got " +
                          Py_TYPE(object.ptr())->tp_name);
  }
  const char letter = view_.item_letter();
  if (letter == '\0' || std::strchr("bBhHiIlLqQnN", letter) == nullptr) {
    throw py::value_error(std::string(what) + " must be a 1-D integer array, got " +
                          view_.description());
  }
  data_ = view_->buf;
  item_bytes_ = static_cast<std::size_t>(view_->itemsize);
  is_signed_ = std::strchr("bhilqn", letter) != nullptr;
  size_ = static_cast<std::size_t>(view_->len) / item_bytes_;
}

Words::Words(py::handle object, const char* what) : buffer_(object, what) {
  if (buffer_.item_bytes() != sizeof(std::uint64_t)) {
    throw py::value_error(std::string(what) + " must be uint64 (or int64), got items of " +
                          std::to_string(buffer_.item_bytes()) + " bytes");
  }
}

Slots::Slots(py::handle object, const char* what) : buffer_(object, what) {
  if (!buffer_.is_signed()) {
    throw py::value_error(std::string(what) + " must be int32 or int64, got unsigned items of " +
                          std::to_string(buffer_.item_bytes()) + " bytes");
  }
  if (buffer_.item_bytes() == sizeof(std::int32_t)) {
    span_ = {static_cast<const std::int32_t*>(buffer_.data()), buffer_.size()};
    return;
  }
  if (buffer_.item_bytes() != sizeof(std::int64_t)) {
    throw py::value_error(std::string(what) + " must be int32 or int64, got items of " +
                          std::to_string(buffer_.item_bytes()) + " bytes");
  }
  const auto* wide = static_cast<const std::int64_t*>(buffer_.data());
  narrowed_.reserve(buffer_.size());
  for (std::size_t i = 0; i < buffer_.size(); ++i) {
    if (wide[i] < std::numeric_limits<std::int32_t>::min() ||
        wide[i] > std::numeric_limits<std::int32_t>::max()) {
      throw py::value_error(std::string(what) + "[" + std::to_string(i) +
                            "] = " + std::to_string(wide[i]) + " is not a slot id");
    }
    narrowed_.push_back(static_cast<std::int32_t>(wide[i]));
  }
  span_ = narrowed_;
}

}  // namespace radixshmem::bindings
