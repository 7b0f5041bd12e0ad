// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The functions of libibverbs, loaded at run time. Only transport/verbs_* includes this.
#pragma once

#if __has_include(<infiniband/verbs.h>)
#define RADIX_HAVE_VERBS 1

#include <infiniband/verbs.h>

#include "base/error.h"

namespace radixshmem {

struct VerbsLibrary {
  decltype(&::ibv_get_device_list) get_device_list;
  decltype(&::ibv_free_device_list) free_device_list;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_open_device) open_device;
  decltype(&::ibv_close_device) close_device;
  decltype(&::ibv_query_device) query_device;
  int (*query_port)(ibv_context*, std::uint8_t, ibv_port_attr*);
  decltype(&::ibv_query_gid) query_gid;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  ibv_mr* (*reg_mr)(ibv_pd*, void*, std::size_t, int);
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_create_qp) create_qp;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_destroy_qp) destroy_qp;
  decltype(&::ibv_wc_status_str) wc_status_str;
};

// Loads the library at the first call. Returns: NOT_READY where there is none.
Result<const VerbsLibrary*> verbs_library();

}  // namespace radixshmem

#else
#define RADIX_HAVE_VERBS 0
#endif
