// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "slots/cuda_driver.h"

#include <dlfcn.h>
#include <sys/resource.h>

#include "shm/memory_limits.h"

namespace radixshmem {
namespace {

// Of the driver's binary interface, which never changes what a name with its version suffix means.
using Context = void*;
constexpr int kSuccess = 0;
constexpr int kDeinitialized = 4;  // the process ends, and the driver went first
constexpr unsigned kPortable = 0x01;
constexpr unsigned kReadOnly = 0x08;
constexpr int kCaptureRelaxed = 2;

struct Functions {
  int (*init)(unsigned) = nullptr;
  int (*error_name)(int, const char**) = nullptr;
  int (*error_text)(int, const char**) = nullptr;
  int (*device)(int*, int) = nullptr;
  int (*retain)(Context*, int) = nullptr;
  int (*release)(int) = nullptr;
  int (*current)(Context*) = nullptr;
  int (*set_current)(Context) = nullptr;
  int (*exchange_capture_mode)(int*) = nullptr;
  int (*register_memory)(void*, std::size_t, unsigned) = nullptr;
  int (*unregister_memory)(void*) = nullptr;
};

// Returns: whether the library has it.
template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

Error no_driver(const std::string& why) {
  return Error{ErrorCode::SYSTEM,
               "registering memory with CUDA needs an NVIDIA driver, and " + why +
                   "; in a container start it with its GPUs (`--gpus all`), else do without "
                   "register_cuda"};
}

Result<Functions> find_functions(void* library, const std::string& path) {
  Functions f;
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto& function) {
    if (!find(library, name, function) && missing == nullptr) missing = name;
  };
  need("cuInit", f.init);
  need("cuGetErrorName", f.error_name);
  need("cuGetErrorString", f.error_text);
  need("cuDeviceGet", f.device);
  need("cuDevicePrimaryCtxRetain", f.retain);
  need("cuDevicePrimaryCtxRelease_v2", f.release);
  need("cuCtxGetCurrent", f.current);
  need("cuCtxSetCurrent", f.set_current);
  need("cuThreadExchangeStreamCaptureMode", f.exchange_capture_mode);
  need("cuMemHostRegister_v2", f.register_memory);
  need("cuMemHostUnregister", f.unregister_memory);
  if (missing != nullptr) return no_driver(path + " has no " + missing);
  return f;
}

std::string memlock_text() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "the memlock limit is unlimited, so see the kernel log and the container's memory limit";
  }
  return "the memlock limit of this process is " + size_text(limit.rlim_cur) +
         ": raise it (`ulimit -l unlimited`, LimitMEMLOCK=infinity of a service, `--ulimit "
         "memlock=-1` of a container)";
}

class CudaDriver final : public HostPinner {
 public:
  explicit CudaDriver(const Functions& functions) : f_(functions) {}
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;
  ~CudaDriver() override {
    if (retained_) f_.release(device_);
  }

  Result<> start() {
    if (const int code = f_.init(0); code != kSuccess) return no_driver(failed("cuInit", code));
    if (f_.current(&context_) == kSuccess && context_ != nullptr) return Unit{};
    if (const int code = f_.device(&device_, 0); code != kSuccess) {
      return no_driver(failed("cuDeviceGet", code));
    }
    if (const int code = f_.retain(&context_, device_); code != kSuccess) {
      return no_driver(failed("cuDevicePrimaryCtxRetain", code));
    }
    retained_ = true;
    return Unit{};
  }

  Result<> pin(std::byte* begin, std::uint64_t bytes, bool read_only) override {
    const unsigned flags = read_only ? kPortable | kReadOnly : kPortable;
    const int code = in_context([&] { return f_.register_memory(begin, bytes, flags); });
    if (code == kSuccess) return Unit{};
    return Error{ErrorCode::SYSTEM, failed("cuMemHostRegister", code) + " for " + size_text(bytes) +
                                        "; " + memlock_text()};
  }

  Result<> unpin(std::byte* begin) override {
    const int code = in_context([&] { return f_.unregister_memory(begin); });
    if (code == kSuccess || code == kDeinitialized) return Unit{};
    return Error{ErrorCode::SYSTEM, failed("cuMemHostUnregister", code)};
  }

 private:
  // An engine may be capturing a CUDA graph in another thread. Unless this thread says that it does
  // not care, the call would be refused, and the capture spoilt.
  template <typename Call>
  int in_context(Call call) {
    int mode = kCaptureRelaxed;
    if (const int code = f_.exchange_capture_mode(&mode); code != kSuccess) return code;
    Context before = nullptr;
    int code = f_.current(&before);
    if (code == kSuccess && before != context_) code = f_.set_current(context_);
    if (code == kSuccess) {
      code = call();
      if (before != context_) f_.set_current(before);
    }
    f_.exchange_capture_mode(&mode);
    return code;
  }

  [[nodiscard]] std::string failed(const char* call, int code) const {
    const char* name = nullptr;
    const char* text = nullptr;
    f_.error_name(code, &name);
    f_.error_text(code, &text);
    return std::string(call) + " failed with " + std::to_string(code) + " " +
           (name != nullptr ? name : "(unknown)") + (text != nullptr ? ": " : "") +
           (text != nullptr ? text : "");
  }

  const Functions f_;
  Context context_ = nullptr;
  int device_ = 0;
  bool retained_ = false;
};

}  // namespace

Result<std::shared_ptr<HostPinner>> load_cuda_driver(const std::string& library) {
  // Never closed: a driver does not survive it.
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return no_driver("there is none (" + std::string(why != nullptr ? why : library) + ")");
  }
  Result<Functions> functions = find_functions(handle, library);
  if (!functions) return std::move(functions).error();
  auto driver = std::make_shared<CudaDriver>(functions.value());
  if (Result<> started = driver->start(); !started) return std::move(started).error();
  return std::shared_ptr<HostPinner>(std::move(driver));
}

}  // namespace radixshmem
