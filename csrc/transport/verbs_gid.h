// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The GID table of a port. Only transport/verbs_*.
#pragma once

#include "transport/verbs_library.h"

#if RADIX_HAVE_VERBS

#include <string>
#include <vector>

namespace radixshmem {

struct VerbsGid {
  int index = 0;
  ibv_gid gid{};
  bool roce_v2 = false;

  // Whether it can be used without being asked for.
  [[nodiscard]] bool is_ipv4() const noexcept;
};

// Reads one entry. Returns: whether there is one.
[[nodiscard]] bool read_gid(const VerbsLibrary& library, ibv_context* context, std::uint8_t port,
                            int index, VerbsGid& gid);
// Returns: every entry that is used, one a line.
[[nodiscard]] std::string gid_table(const VerbsLibrary& library, ibv_context* context,
                                    std::uint8_t port, int entries);
// Returns: the address, "::ffff:10.0.0.1".
[[nodiscard]] std::string gid_text(const ibv_gid& gid);

}  // namespace radixshmem

#endif
