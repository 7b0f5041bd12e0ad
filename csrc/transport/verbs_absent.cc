// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What a build without the header of libibverbs has instead of verbs.
#include "transport/verbs_library.h"

#if !RADIX_HAVE_VERBS

#include "base/fd.h"
#include "transport/verbs.h"

namespace radixshmem {
namespace {

Error not_built() {
  return Error{ErrorCode::NOT_READY,
               "verbs cannot be used: radixshmem was built without infiniband/verbs.h; install "
               "libibverbs-dev and build it again"};
}

}  // namespace

class VerbsDevice {};

Result<std::shared_ptr<VerbsDevice>> open_verbs(const VerbsOptions&) {
  return not_built();
}
std::string describe(const VerbsDevice&) {
  return "no verbs";
}
Result<> register_destination(VerbsDevice&, std::span<std::byte>) {
  return not_built();
}

Result<std::unique_ptr<PeerReader>> VerbsReader::make(int fd, std::shared_ptr<VerbsDevice>,
                                                      Deadline, std::uint8_t) {
  const Fd owner(fd);
  return not_built();
}

Result<std::unique_ptr<VerbsHost>> VerbsHost::make(std::span<const std::shared_ptr<VerbsDevice>>,
                                                   const PeerRanges&) {
  return not_built();
}

}  // namespace radixshmem

#endif
