// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/verbs_library.h"

#if RADIX_HAVE_VERBS

#include <string>

#include <dlfcn.h>

// The header has macros of these names.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

namespace radixshmem {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

// Returns: false, and the name in `missing`, when the library has no such function.
template <typename Function>
bool find(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) missing = name;
  return function != nullptr;
}

bool find_all(void* from, VerbsLibrary& to, std::string& missing) {
  return find(from, "ibv_get_device_list", to.get_device_list, missing) &&
         find(from, "ibv_free_device_list", to.free_device_list, missing) &&
         find(from, "ibv_get_device_name", to.get_device_name, missing) &&
         find(from, "ibv_open_device", to.open_device, missing) &&
         find(from, "ibv_close_device", to.close_device, missing) &&
         find(from, "ibv_query_device", to.query_device, missing) &&
         find(from, "ibv_query_port", to.query_port, missing) &&
         find(from, "ibv_query_gid", to.query_gid, missing) &&
         find(from, "ibv_alloc_pd", to.alloc_pd, missing) &&
         find(from, "ibv_dealloc_pd", to.dealloc_pd, missing) &&
         find(from, "ibv_reg_mr", to.reg_mr, missing) &&
         find(from, "ibv_dereg_mr", to.dereg_mr, missing) &&
         find(from, "ibv_create_cq", to.create_cq, missing) &&
         find(from, "ibv_destroy_cq", to.destroy_cq, missing) &&
         find(from, "ibv_create_qp", to.create_qp, missing) &&
         find(from, "ibv_modify_qp", to.modify_qp, missing) &&
         find(from, "ibv_destroy_qp", to.destroy_qp, missing) &&
         find(from, "ibv_wc_status_str", to.wc_status_str, missing);
}

struct Loaded {
  VerbsLibrary library{};
  std::string problem;
};

Loaded load() {
  Loaded loaded;
  void* const from = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // for the life of the process
  if (from == nullptr) {
    const char* const why = ::dlerror();
    loaded.problem = std::string(why != nullptr ? why : kLibrary) +
                     " (install libibverbs1 and ibverbs-providers, or the vendor's rdma-core)";
    return loaded;
  }
  std::string missing;
  if (!find_all(from, loaded.library, missing)) {
    loaded.problem = std::string(kLibrary) + " has no function " + missing + ": update it";
  }
  return loaded;
}

}  // namespace

Result<const VerbsLibrary*> verbs_library() {
  static const Loaded loaded = load();
  if (!loaded.problem.empty()) {
    return Error{ErrorCode::NOT_READY, "verbs cannot be used: " + loaded.problem};
  }
  return &loaded.library;
}

}  // namespace radixshmem

#endif
