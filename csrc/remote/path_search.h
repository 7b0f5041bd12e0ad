// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Rounds 2 to 4: reads what a path has at the peers that the directory names for it.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "remote/holes.h"
#include "remote/key_claims.h"
#include "remote/tree_reads.h"

namespace radixshmem {

class PathSearch final {
 public:
  PathSearch(LookupTurn& turn, const KeyClaims& claims, PathCover& cover, LookupFigures& figures)
      : claims_(claims), cover_(cover), reads_(turn, cover, figures) {}

  // Verifies into the cover what `wanted.holder` has, whose deepest key is number `key`. Of
  // `rival`, if it is no kNoRank, the last segment is read too: it may go further. Returns: the
  // rounds that it took.
  std::uint32_t run(const Wanted& wanted, std::size_t key, Rank rival);

 private:
  void want_named(const Wanted& wanted, std::size_t key);
  void want_of_others(const Wanted& wanted, std::size_t key, Rank& last);
  void want_behind(const Wanted& wanted);
  void want_found(const Wanted& wanted);

  const KeyClaims& claims_;
  PathCover& cover_;
  TreeReads reads_;
};

}  // namespace radixshmem
