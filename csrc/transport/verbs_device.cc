// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/verbs_device.h"

#if RADIX_HAVE_VERBS

#include <cerrno>

#include "transport/verbs_gid.h"

namespace radixshmem {
namespace {

constexpr int kUsualGid = 3;  // where most NICs have RoCE v2 with the first IPv4 address

class DeviceList final {
 public:
  explicit DeviceList(const VerbsLibrary& library)
      : library_(library), devices_(library.get_device_list(&count_)) {}
  ~DeviceList() {
    if (devices_ != nullptr) library_.free_device_list(devices_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  [[nodiscard]] std::span<ibv_device*> devices() const {
    return {devices_, devices_ != nullptr ? static_cast<std::size_t>(count_) : 0};
  }

 private:
  const VerbsLibrary& library_;
  int count_ = 0;
  ibv_device** devices_;
};

std::string port_name(const VerbsOptions& options) {
  return "port " + std::to_string(options.port) + " of RDMA device " + options.device;
}

bool port_is_up(const VerbsLibrary& library, ibv_context* context, std::uint8_t port) {
  ibv_port_attr attributes{};
  return library.query_port(context, port, &attributes) == 0 && attributes.state == IBV_PORT_ACTIVE;
}

// Returns: the first device with this name, or whose port is up where none is named.
Result<ibv_context*> open_context(const VerbsLibrary& library, VerbsOptions& options) {
  const DeviceList list(library);
  std::string names;
  for (ibv_device* const device : list.devices()) {
    const std::string name = library.get_device_name(device);
    names += (names.empty() ? "" : ", ") + name;
    if (!options.device.empty() && name != options.device) continue;
    ibv_context* const context = library.open_device(device);
    if (context == nullptr) {
      if (options.device.empty()) continue;
      return system_error(
          "cannot open RDMA device " + name + " (a container needs /dev/infiniband, and memlock)",
          errno);
    }
    if (!options.device.empty() || port_is_up(library, context, options.port)) {
      options.device = name;
      return context;
    }
    library.close_device(context);
  }
  if (names.empty()) {
    return Error{ErrorCode::NOT_READY, "verbs cannot be used: there is no RDMA device here"};
  }
  if (options.device.empty()) {
    return Error{ErrorCode::NOT_READY, "verbs cannot be used: port " +
                                           std::to_string(options.port) +
                                           " is up on none of the RDMA devices " + names};
  }
  return invalid_argument("there is no RDMA device " + options.device + "; here are: " + names);
}

}  // namespace

Result<std::shared_ptr<VerbsDevice>> VerbsDevice::open(const VerbsOptions& options) {
  Result<const VerbsLibrary*> library = verbs_library();
  if (!library) return std::move(library).error();
  VerbsOptions chosen = options;
  Result<ibv_context*> context = open_context(*library.value(), chosen);
  if (!context) return std::move(context).error();
  auto device = std::make_shared<VerbsDevice>(*library.value(), chosen, context.value());
  if (Result<> prepared = device->prepare(); !prepared) return std::move(prepared).error();
  return device;
}

Result<> VerbsDevice::prepare() {
  if (library_.query_device(context_, &limits_) != 0) {
    return system_error("cannot read the limits of RDMA device " + name(), errno);
  }
  domain_ = library_.alloc_pd(context_);
  if (domain_ == nullptr) {
    return system_error("cannot make a protection domain of RDMA device " + name(), errno);
  }
  const Result<VerbsPort> now = port();
  if (!now) return now.error();
  return Unit{};
}

VerbsDevice::~VerbsDevice() {
  destinations_.clear();
  if (domain_ != nullptr) library_.dealloc_pd(domain_);
  library_.close_device(context_);
}

Result<VerbsPort> VerbsDevice::port() const {
  VerbsPort port;
  const int error = library_.query_port(context_, options_.port, &port.attributes);
  if (error != 0) return system_error("cannot read " + port_name(options_), error);
  if (port.attributes.state != IBV_PORT_ACTIVE) {
    return Error{ErrorCode::NOT_READY, port_name(options_) + " is down (state " +
                                           std::to_string(port.attributes.state) +
                                           "): see ibv_devinfo"};
  }
  if (port.attributes.link_layer == IBV_LINK_LAYER_ETHERNET || options_.gid_index >= 0) {
    if (Result<> chosen = choose_gid(port); !chosen) return std::move(chosen).error();
  }
  return port;
}

Result<> VerbsDevice::choose_gid(VerbsPort& port) const {
  const bool roce = port.attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  const int entries = port.attributes.gid_tbl_len;
  VerbsGid gid;
  const auto usable = [&](int index) {
    return index < entries && read_gid(library_, context_, options_.port, index, gid);
  };
  bool found = false;
  if (options_.gid_index >= 0) {
    found = usable(options_.gid_index) && (!roce || gid.roce_v2);
  } else {
    const auto wanted = [&](int index) { return usable(index) && gid.roce_v2 && gid.is_ipv4(); };
    found = wanted(kUsualGid);
    for (int i = 0; !found && i < entries; ++i) found = wanted(i);
  }
  if (!found) {
    return invalid_argument(
        (options_.gid_index >= 0
             ? "gid_idx " + std::to_string(options_.gid_index) + " is no " +
                   (roce ? "RoCE v2 " : "") + "address"
             : std::string("no GID is a RoCE v2 address of IPv4: name one with gid_idx")) +
        " of " + port_name(options_) +
        ", whose GIDs are:" + gid_table(library_, context_, options_.port, entries));
  }
  port.gid = gid.gid;
  port.gid_index = gid.index;
  port.global = true;
  return Unit{};
}

Result<VerbsMemory> VerbsDevice::register_memory(const std::byte* begin, std::size_t bytes,
                                                 int access) const {
  ibv_mr* const region = library_.reg_mr(domain_, const_cast<std::byte*>(begin), bytes, access);
  if (region == nullptr) {
    return system_error("cannot register " + std::to_string(bytes) + " bytes with RDMA device " +
                            name() +
                            " (raise the memlock limit: `ulimit -l unlimited`, LimitMEMLOCK=, "
                            "`docker run --ulimit memlock=-1`)",
                        errno);
  }
  return VerbsMemory(&library_, region);
}

Result<> VerbsDevice::add_destination(std::span<std::byte> memory) {
  Result<VerbsMemory> registered =
      register_memory(memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE);
  if (!registered) return std::move(registered).error();
  const std::lock_guard lock(mutex_);
  destinations_.push_back({memory, std::move(registered).value()});
  return Unit{};
}

bool VerbsDevice::local_key(const std::byte* begin, std::size_t bytes,
                            std::uint32_t& key) const noexcept {
  const std::lock_guard lock(mutex_);
  for (const Destination& destination : destinations_) {
    const std::byte* const first = destination.memory.data();
    const std::size_t size = destination.memory.size();
    if (begin < first || bytes > size || static_cast<std::size_t>(begin - first) > size - bytes) {
      continue;
    }
    key = destination.registered.local_key();
    return true;
  }
  return false;
}

Result<std::shared_ptr<VerbsDevice>> open_verbs(const VerbsOptions& options) {
  return VerbsDevice::open(options);
}

std::string describe(const VerbsDevice& device) {
  const std::string name = device.name() + " port " + std::to_string(device.options().port);
  const Result<VerbsPort> port = device.port();
  if (!port) return name + ": " + port.error().message;
  const VerbsPort& now = port.value();
  const bool roce = now.attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  return name + (roce ? ", RoCE v2" : ", InfiniBand, lid " + std::to_string(now.attributes.lid)) +
         (now.global ? ", gid_idx " + std::to_string(now.gid_index) + " (" + gid_text(now.gid) + ")"
                     : std::string()) +
         ", mtu " + std::to_string(128 << now.attributes.active_mtu);
}

Result<> register_destination(VerbsDevice& device, std::span<std::byte> memory) {
  return device.add_destination(memory);
}

}  // namespace radixshmem

#endif
