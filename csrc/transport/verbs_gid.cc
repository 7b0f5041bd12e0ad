// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/verbs_gid.h"

#if RADIX_HAVE_VERBS

#include <algorithm>
#include <cstring>
#include <fstream>

#include <arpa/inet.h>

namespace radixshmem {

bool VerbsGid::is_ipv4() const noexcept {
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kMapped, sizeof kMapped) == 0;
}

bool read_gid(const VerbsLibrary& library, ibv_context* context, std::uint8_t port, int index,
              VerbsGid& gid) {
  gid.index = index;
  if (library.query_gid(context, port, index, &gid.gid) != 0) return false;
  if (std::all_of(std::begin(gid.gid.raw), std::end(gid.gid.raw),
                  [](std::uint8_t byte) { return byte == 0; })) {
    return false;
  }
  // The type is in no function that old libraries have.
  std::ifstream file(std::string(context->device->ibdev_path) + "/ports/" + std::to_string(port) +
                     "/gid_attrs/types/" + std::to_string(index));
  std::string type;
  std::getline(file, type);
  gid.roce_v2 = type == "RoCE v2";
  return true;
}

std::string gid_text(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  return text;
}

std::string gid_table(const VerbsLibrary& library, ibv_context* context, std::uint8_t port,
                      int entries) {
  std::string table;
  VerbsGid gid;
  for (int i = 0; i < entries; ++i) {
    if (!read_gid(library, context, port, i, gid)) continue;
    table += "\n  " + std::to_string(i) + "  " + gid_text(gid.gid) +
             (gid.roce_v2 ? "  RoCE v2" : "  InfiniBand or RoCE v1");
  }
  return table.empty() ? "\n  (no entry)" : table;
}

}  // namespace radixshmem

#endif
