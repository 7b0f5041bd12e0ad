// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// An open RDMA device: its port as it is now, its registered memory. Only transport/verbs_*.
// Thread safety: from any thread.
#pragma once

#include "transport/verbs_library.h"

#if RADIX_HAVE_VERBS

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/verbs.h"

namespace radixshmem {

// Registered memory; deregistered at the end. Requires: its device outlives it.
class VerbsMemory final {
 public:
  VerbsMemory() = default;
  VerbsMemory(const VerbsLibrary* library, ibv_mr* region) : library_(library), region_(region) {}
  VerbsMemory(VerbsMemory&& other) noexcept
      : library_(other.library_), region_(std::exchange(other.region_, nullptr)) {}
  VerbsMemory& operator=(VerbsMemory&& other) noexcept {
    std::swap(library_, other.library_);
    std::swap(region_, other.region_);
    return *this;
  }
  VerbsMemory(const VerbsMemory&) = delete;
  VerbsMemory& operator=(const VerbsMemory&) = delete;
  ~VerbsMemory() {
    if (region_ != nullptr) library_->dereg_mr(region_);
  }

  [[nodiscard]] std::uint32_t local_key() const noexcept { return region_->lkey; }
  [[nodiscard]] std::uint32_t remote_key() const noexcept { return region_->rkey; }

 private:
  const VerbsLibrary* library_ = nullptr;
  ibv_mr* region_ = nullptr;
};

// The port as connections use it.
struct VerbsPort {
  ibv_port_attr attributes{};
  ibv_gid gid{};  // all zeros on InfiniBand without a chosen GID: addressed by LID alone
  int gid_index = 0;
  bool global = false;  // addressed by GID
};

class VerbsDevice final {
 public:
  static Result<std::shared_ptr<VerbsDevice>> open(const VerbsOptions& options);
  VerbsDevice(const VerbsLibrary& library, VerbsOptions options, ibv_context* context)
      : library_(library), options_(std::move(options)), context_(context) {}
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  [[nodiscard]] const VerbsLibrary& library() const noexcept { return library_; }
  [[nodiscard]] const VerbsOptions& options() const noexcept { return options_; }
  [[nodiscard]] const std::string& name() const noexcept { return options_.device; }
  [[nodiscard]] ibv_context* context() const noexcept { return context_; }
  [[nodiscard]] ibv_pd* domain() const noexcept { return domain_; }
  [[nodiscard]] const ibv_device_attr& limits() const noexcept { return limits_; }

  // Asks the device anew: addresses change. Returns: NOT_READY when the port is down,
  // INVALID_ARGUMENT with the GID table when the chosen GID is none.
  Result<VerbsPort> port() const;
  Result<VerbsMemory> register_memory(const std::byte* begin, std::size_t bytes, int access) const;
  Result<> add_destination(std::span<std::byte> memory);
  // Returns: the key to write [begin, begin + bytes) with; false when it is not registered.
  [[nodiscard]] bool local_key(const std::byte* begin, std::size_t bytes,
                               std::uint32_t& key) const noexcept;

 private:
  struct Destination {
    std::span<std::byte> memory;
    VerbsMemory registered;
  };

  Result<> prepare();
  Result<> choose_gid(VerbsPort& port) const;

  const VerbsLibrary& library_;
  VerbsOptions options_;
  ibv_context* context_;
  ibv_pd* domain_ = nullptr;
  ibv_device_attr limits_{};
  mutable std::mutex mutex_;  // of destinations_
  std::vector<Destination> destinations_;
};

}  // namespace radixshmem

#endif
