// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Errors of the core: one table of codes, and Result<T> to carry them.
//
// Codes below 16 are the public statuses of index calls (docs/api.md, `InsertError`); the rest are
// control-path errors that bindings/ turns into the Python exception named in the table. No
// exception is thrown below bindings/, and none ever crosses a lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace radixshmem {

// X(name, value, Python exception, meaning). The exception of a status is used only where a call
// cannot return the status.
#define RADIX_ERROR_CODES(X)                                                                      \
  X(OK, 0, "", "done")                                                                            \
  X(BAD_REQUEST, 1, "ValueError", "the request breaks a rule of the call; nothing was changed")   \
  X(MEMPOOL_FULL, 2, "RadixError", "no segment, side block or table entry could be freed")        \
  X(BUSY, 3, "TimeoutError", "a living but stopped process holds the writer lock")                \
  X(PINS_FULL, 4, "RadixError", "this client's pin table is full")                                \
  X(CURSOR_STALE, 5, "RadixError", "the cursor's segment has changed; walk again from the root")  \
  X(FULL_PATH_MISSING, 7, "ValueError", "the path before the inserted blocks is not in the tree") \
  X(INVALID_ARGUMENT, 16, "ValueError", "an argument is out of its range")                        \
  X(NOT_READY, 17, "ServerNotReady", "no living server, or its region was closed or replaced")    \
  X(TIMEOUT, 18, "TimeoutError", "a deadline passed")                                             \
  X(SYSTEM, 19, "RadixError", "a system call failed")                                             \
  X(OUT_OF_RANGE, 20, "IndexError", "a slot or offset lies outside its pool")                     \
  X(MISMATCH, 21, "GeometryMismatch", "two sides disagree on layout, geometry or fingerprint")    \
  X(CORRUPT, 22, "RadixError", "a region does not hold what its header promises")                 \
  X(CLOSED, 23, "RadixError", "the object was closed")

enum class ErrorCode : std::int32_t {
#define RADIX_ENUMERATOR(name, value, exception, meaning) name = (value),
  RADIX_ERROR_CODES(RADIX_ENUMERATOR)
#undef RADIX_ENUMERATOR
};

// Returns: the enumerator's own name, "OK" for ErrorCode::OK.
[[nodiscard]] const char* error_name(ErrorCode code) noexcept;

// What failed, with which value, and what the caller can do.
struct Error {
  ErrorCode code = ErrorCode::SYSTEM;
  std::string message;
};

// Returns: an Error with code SYSTEM whose message ends in the text of `error_number` (an errno).
[[nodiscard]] Error system_error(std::string what, int error_number);

// Returns: an Error with code INVALID_ARGUMENT.
[[nodiscard]] Error invalid_argument(std::string message);

struct Unit {};

// A value or an Error. `Result<>` carries success alone.
template <typename T = Unit>
class [[nodiscard]] Result final {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  // Requires: ok().
  [[nodiscard]] T& value() & { return std::get<0>(state_); }
  [[nodiscard]] const T& value() const& { return std::get<0>(state_); }
  [[nodiscard]] T&& value() && { return std::get<0>(std::move(state_)); }
  // Requires: !ok().
  [[nodiscard]] const Error& error() const& { return std::get<1>(state_); }
  [[nodiscard]] Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

}  // namespace radixshmem
