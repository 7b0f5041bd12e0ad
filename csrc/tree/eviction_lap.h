// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One search for victims through an eviction list, and when it has been once around in vain.
//
// What cannot go (pinned, or rolled back) is passed over and marks where the lap began. A lap in
// which nothing went ends the search, after a second one in which recent use does not spare.
#pragma once

#include <cstdint>

namespace radixshmem {

class EvictionLap final {
 public:
  // Returns: whether `front` begins the next lap: nothing more is to be chosen now.
  [[nodiscard]] bool ends_at(std::uint32_t front) noexcept {
    ended_ = mark_ != 0 && front == mark_;
    return ended_;
  }
  void pass_over(std::uint32_t id) noexcept {
    if (mark_ == 0) mark_ = id;
  }
  // A victim went.
  void restart() noexcept { mark_ = 0; }
  // Nothing could be chosen. Returns: whether another look may find something.
  [[nodiscard]] bool look_again() noexcept {
    if (!ended_) return true;
    if (!spares_touched_) return false;
    spares_touched_ = false;
    ended_ = false;
    mark_ = 0;
    return true;
  }
  [[nodiscard]] bool spares_touched() const noexcept { return spares_touched_; }

 private:
  std::uint32_t mark_ = 0;
  bool ended_ = false;
  bool spares_touched_ = true;
};

}  // namespace radixshmem
