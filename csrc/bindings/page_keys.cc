// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Lists of page keys, read in place: a str of ASCII digits lies in memory as it is written.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>

#include "bindings/bind.h"
#include "hash/page_key.h"

namespace radixshmem::bindings {
namespace {

namespace py = pybind11;

// The items of a sequence of keys; a list or tuple is used in place.
class Keys final {
 public:
  // Throws ValueError for what is no sequence, or text itself.
  Keys(py::handle keys, const char* what) : what_(what) {
    if (PySequence_Check(keys.ptr()) == 0 || PyUnicode_Check(keys.ptr()) != 0) {
      throw py::value_error(std::string(what) + " must be a sequence of page keys, got " +
                            Py_TYPE(keys.ptr())->tp_name);
    }
    items_ = py::reinterpret_steal<py::object>(PySequence_Fast(keys.ptr(), what));
    if (!items_) throw py::error_already_set();
    size_ = PySequence_Fast_GET_SIZE(items_.ptr());
  }
  [[nodiscard]] py::ssize_t size() const noexcept { return size_; }

  // Throws ValueError with the place and value of the first item that is no key.
  void fold(std::uint64_t salt, std::uint64_t* out) const {
    for (py::ssize_t i = 0; i < size_; ++i) {
      PyObject* const item = PySequence_Fast_GET_ITEM(items_.ptr(), i);
      if (!read(item, out[i])) refuse(i, item);
      out[i] ^= salt;
    }
  }

 private:
  static bool read(PyObject* item, std::uint64_t& out) noexcept {
    if (PyUnicode_Check(item) == 0) return false;
    Py_ssize_t length = 0;
    const char* digits = nullptr;
    if (PyUnicode_IS_COMPACT_ASCII(item)) {
      length = PyUnicode_GET_LENGTH(item);
      digits = reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(item));
    } else {  // a subclass, or no key: no digit of it is outside of ASCII
      digits = PyUnicode_AsUTF8AndSize(item, &length);
      if (digits == nullptr) PyErr_Clear();
    }
    return digits != nullptr && length >= Py_ssize_t{kPageKeyDigits} && read_page_key(digits, out);
  }
  [[noreturn]] void refuse(py::ssize_t position, PyObject* item) const {
    constexpr std::size_t kShown = 100;
    const auto held = py::reinterpret_borrow<py::object>(item);  // its repr may change the list
    const auto shown = py::reinterpret_steal<py::object>(PyObject_ASCII(item));
    if (!shown) throw py::error_already_set();
    auto value = shown.cast<std::string>();
    if (value.size() > kShown) value = value.substr(0, kShown) + "...";
    throw py::value_error(std::string(what_) + "[" + std::to_string(position) + "] = " + value +
                          " is no page key: it must be a str that begins with " +
                          std::to_string(kPageKeyDigits) + " hex digits");
  }

  const char* what_;
  py::object items_;
  py::ssize_t size_ = 0;
};

py::array_t<std::uint64_t> fold_page_keys(const py::object& keys, const py::object& prefix,
                                          std::uint64_t salt) {
  const Keys before(prefix.is_none() ? py::tuple() : prefix, "prefix");
  const Keys own(keys, "keys");
  py::array_t<std::uint64_t> hashes(before.size() + own.size());
  before.fold(salt, hashes.mutable_data());
  own.fold(salt, hashes.mutable_data() + before.size());
  return hashes;
}

}  // namespace

void bind_page_keys(py::module_& module) {
  module.def("fold_page_keys", &fold_page_keys, py::arg("keys"), py::arg("prefix").none(true),
             py::arg("salt"));
}

}  // namespace radixshmem::bindings
