// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A CUDA driver of which nothing is real: it notes which memory is registered, fails where a test
// wants it to, and waits at a gate until the test lets it go on. See tests/fake_cuda.py.
#include <sys/mman.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;
constexpr int kAlreadyRegistered = 712;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureGlobal = 0;
constexpr int kCaptureRelaxed = 2;
constexpr auto kDeadline = std::chrono::seconds(60);

struct Call {
  std::int64_t kind;  // 0: register, 1: unregister
  std::uint64_t address;
  std::uint64_t bytes;
  std::int64_t code;
};

struct State {
  std::map<std::uint64_t, std::uint64_t> registered;
  std::vector<Call> calls;
  std::int64_t registrations = 0;
  std::int64_t fail_at = -1;  // that registration fails
  int fail_code = 0;
  int init_code = 0;
  std::int64_t allowed = -1;  // registrations that may pass the gate; -1: all
  std::int64_t retained = 0;
};

std::mutex mutex;
std::condition_variable changed;
State state;
thread_local void* current = nullptr;
thread_local int capture_mode = kCaptureGlobal;
int primary_context = 0;

bool mapped(std::uint64_t address) {
  unsigned char resident = 0;
  return ::mincore(reinterpret_cast<void*>(address / 4096 * 4096), 1, &resident) == 0;
}

// What the driver refuses before it looks further; another thread might be capturing a graph.
int refused() {
  if (current == nullptr) return kInvalidContext;
  return capture_mode == kCaptureRelaxed ? kSuccess : kCaptureUnsupported;
}

bool overlaps(std::uint64_t begin, std::uint64_t end) {
  for (const auto& [other, bytes] : state.registered) {
    // As the real one, by pages.
    if (begin / 4096 < (other + bytes + 4095) / 4096 && other / 4096 < (end + 4095) / 4096) {
      return true;
    }
  }
  return false;
}

int register_locked(std::uint64_t begin, std::uint64_t bytes) {
  if (const int code = refused(); code != kSuccess) return code;
  if (state.registrations++ == state.fail_at) return state.fail_code;
  if (overlaps(begin, begin + bytes)) return kAlreadyRegistered;
  if (!mapped(begin) || !mapped(begin + bytes - 1)) return kInvalidValue;
  state.registered[begin] = bytes;
  return kSuccess;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return state.init_code;
}
int cuGetErrorName(int code, const char** name) {
  *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return kSuccess;
}
int cuGetErrorString(int, const char** text) {
  *text = "a fake error";
  return kSuccess;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  const std::lock_guard lock(mutex);
  ++state.retained;
  *context = &primary_context;
  return kSuccess;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  const std::lock_guard lock(mutex);
  --state.retained;
  return kSuccess;
}
int cuCtxGetCurrent(void** context) {
  *context = current;
  return kSuccess;
}
int cuCtxSetCurrent(void* context) {
  current = context;
  return kSuccess;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}

int cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned) {
  const auto begin = reinterpret_cast<std::uint64_t>(pointer);
  std::unique_lock lock(mutex);
  changed.wait_for(lock, kDeadline,
                   [] { return state.allowed < 0 || state.registrations < state.allowed; });
  const int code = register_locked(begin, bytes);
  state.calls.push_back({0, begin, bytes, code});
  changed.notify_all();
  return code;
}

int cuMemHostUnregister(void* pointer) {
  const auto begin = reinterpret_cast<std::uint64_t>(pointer);
  const std::lock_guard lock(mutex);
  int code = refused();
  if (!mapped(begin) || state.registered.erase(begin) == 0) code = kInvalidValue;
  state.calls.push_back({1, begin, 0, code});
  changed.notify_all();
  return code;
}

void fake_reset(std::int64_t fail_at, int fail_code, int init_code, std::int64_t allowed) {
  const std::lock_guard lock(mutex);
  state = State{};
  state.fail_at = fail_at;
  state.fail_code = fail_code;
  state.init_code = init_code;
  state.allowed = allowed;
}
void fake_allow(std::int64_t registrations) {
  const std::lock_guard lock(mutex);
  state.allowed = registrations;
  changed.notify_all();
}
// Waits until that many calls were made. Returns: whether they were.
int fake_await_calls(std::int64_t count) {
  std::unique_lock lock(mutex);
  return changed.wait_for(
      lock, kDeadline, [count] { return static_cast<std::int64_t>(state.calls.size()) >= count; });
}
std::int64_t fake_call_count() {
  const std::lock_guard lock(mutex);
  return static_cast<std::int64_t>(state.calls.size());
}
void fake_call(std::int64_t index, Call* call) {
  const std::lock_guard lock(mutex);
  *call = state.calls[static_cast<std::size_t>(index)];
}
std::uint64_t fake_registered_bytes() {
  const std::lock_guard lock(mutex);
  std::uint64_t sum = 0;
  for (const auto& [begin, bytes] : state.registered) sum += bytes;
  return sum;
}
// Returns: whether one registration covers all of it.
int fake_covers(std::uint64_t begin, std::uint64_t bytes) {
  const std::lock_guard lock(mutex);
  auto after = state.registered.upper_bound(begin);
  if (after == state.registered.begin()) return 0;
  --after;
  return begin + bytes <= after->first + after->second;
}
// Returns: whether the calling thread is as it was: no context, and not relaxed.
int fake_thread_is_clean() {
  return current == nullptr && capture_mode == kCaptureGlobal;
}
std::int64_t fake_retained() {
  const std::lock_guard lock(mutex);
  return state.retained;
}
}
