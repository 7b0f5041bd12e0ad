// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Python buffers as spans. A buffer of the right item size is used in place; int64 slots are
// narrowed into a small vector. Nothing is ever converted through a Python list here.
// Thread safety: construct and destroy with the GIL; the spans may be read without it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace radixshmem::bindings {

namespace py = pybind11;

// A buffer; its exporter stays locked until destruction.
class BufferView final {
 public:
  BufferView() = default;
  ~BufferView() { PyBuffer_Release(&view_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;

  // Returns: false, with the exporter's exception set, when `object` has no such buffer. Once.
  [[nodiscard]] bool take(py::handle object, int flags) {
    return PyObject_GetBuffer(object.ptr(), &view_, flags) == 0;
  }
  [[nodiscard]] const Py_buffer* operator->() const noexcept { return &view_; }
  // Returns: the item type of a 1-D buffer: its one struct letter, a byte-order mark skipped; '\0'
  // for any other format. A buffer without a format holds bytes.
  [[nodiscard]] char item_letter() const noexcept;
  // Returns: dimensions and format, for an error message.
  [[nodiscard]] std::string description() const;

 private:
  Py_buffer view_{};  // all zeros: none
};

// The bytes of any contiguous buffer, whatever its format.
class Bytes final {
 public:
  // Throws what the exporter raises, TypeError for an object without a buffer.
  explicit Bytes(py::handle object);
  [[nodiscard]] std::span<const std::byte> span() const noexcept {
    return {static_cast<const std::byte*>(view_->buf), static_cast<std::size_t>(view_->len)};
  }

 private:
  BufferView view_;
};

// A read-only view of a 1-D C-contiguous buffer, kept alive until destruction.
class ContiguousBuffer final {
 public:
  // Throws ValueError naming `what` unless the buffer is 1-D, contiguous and of an integer format.
  ContiguousBuffer(py::handle object, const char* what);

  [[nodiscard]] std::size_t item_bytes() const noexcept { return item_bytes_; }
  [[nodiscard]] bool is_signed() const noexcept { return is_signed_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] const void* data() const noexcept { return data_; }

 private:
  // NumPy describes a new array to the buffer protocol in 0.2 us; its fields are read in 10 ns.
  // Returns: whether `object` is an array as wanted.
  [[nodiscard]] bool take_array(py::handle object);

  BufferView view_;  // unused for an array, which does not lock itself either
  py::object array_;
  const void* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t item_bytes_ = 0;
  bool is_signed_ = false;
};

// 8-byte integers (hashes, addresses, sizes), used in place.
class Words final {
 public:
  Words(py::handle object, const char* what);
  [[nodiscard]] std::span<const std::uint64_t> span() const noexcept {
    return {static_cast<const std::uint64_t*>(buffer_.data()), buffer_.size()};
  }

 private:
  ContiguousBuffer buffer_;
};

// Slot ids: int32 in place, int64 narrowed (ValueError outside int32, and for unsigned items: the
// largest would read as -1, "keep").
class Slots final {
 public:
  Slots(py::handle object, const char* what);
  [[nodiscard]] std::span<const std::int32_t> span() const noexcept { return span_; }

 private:
  ContiguousBuffer buffer_;
  std::vector<std::int32_t> narrowed_;
  std::span<const std::int32_t> span_;
};

}  // namespace radixshmem::bindings
