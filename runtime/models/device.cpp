#include "runtime/models/device.hpp"

namespace troupe {
namespace {

constexpr std::string_view kCpu = "cpu";

struct DeviceKind {
  std::string_view name;
  const DeviceTable* (*table)() noexcept;
  std::string_view build_option;
};
constexpr DeviceKind kCuda = {"cuda", cuda_device, "TROUPE_CUDA"};
constexpr DeviceKind kCudaEmulated = {"cuda-emulated", cuda_emulated_device,
                                      "TROUPE_CUDA_EMULATION"};

Error cannot_be_used(std::string_view name, const std::string& reason) {
  return {ErrorCode::kUnsupported, "device " + std::string(name) + " cannot be used: " + reason};
}

/// Null: the CPU.
Result<const DeviceKind*> choose_kind(std::string_view name) {
  if (name == kCpu) return nullptr;
  if (name == "auto") {
    const DeviceTable* cuda = cuda_device();
    return cuda != nullptr && cuda->why_unavailable().empty() ? &kCuda : nullptr;
  }
  for (const DeviceKind* kind : {&kCuda, &kCudaEmulated}) {
    if (name != kind->name) continue;
    const DeviceTable* table = kind->table();
    if (table == nullptr)
      return cannot_be_used(
          name, "this build has no kernels for it (" + std::string(kind->build_option) + ")");
    if (const std::string reason = table->why_unavailable(); !reason.empty())
      return cannot_be_used(name, reason);
    return kind;
  }
  return invalid_argument(
      "device is '" + std::string(name) + "', not one of auto, cpu, cuda, cuda-emulated", "device");
}

}  // namespace

Device::Device(std::string_view name, Isa isa, const DeviceTable* table,
               const DeviceOptions& options)
    : name_(name),
      isa_(isa),
      table_(table),
      ops_(table == nullptr ? cpu_ops(isa) : table->ops),
      pool_(options.num_threads) {
  if (table_ == nullptr) return;
  const int num_devices = table_->count();
  index_ = options.rank_on_host % num_devices;
  table_->select(index_);
  num_sharing_ = (options.ranks_on_host + num_devices - 1) / num_devices;
  stream_ = table_->create_stream();
}

DeviceCopier::~DeviceCopier() {
  if (stream_ != nullptr) table_->destroy_stream(stream_);
}

void DeviceCopier::copy_to_device(void* to, const void* from, std::size_t num_bytes) noexcept {
  if (table_ == nullptr) {
    std::memcpy(to, from, num_bytes);
    return;
  }
  table_->copy_to_device(stream_, to, from, static_cast<std::int64_t>(num_bytes));
}

void DeviceCopier::copy_to_host(void* to, const void* from, std::size_t num_bytes) noexcept {
  if (table_ == nullptr) {
    std::memcpy(to, from, num_bytes);
    return;
  }
  table_->copy_to_host(stream_, to, from, static_cast<std::int64_t>(num_bytes));
}

Result<void> DeviceCopier::synchronize() {
  if (table_ == nullptr) return {};
  std::string fault = table_->synchronize(stream_);
  if (!fault.empty()) return Error{ErrorCode::kInternal, std::move(fault), {}};
  return {};
}

Device::~Device() {
  if (stream_ == nullptr) return;
  static_cast<void>(synchronize());
  table_->destroy_stream(stream_);
}

Result<std::unique_ptr<Device>> Device::create(const DeviceOptions& options) {
  const IsaChoice choice = choose_isa(options.cpu_isa);
  if (!choice.error.empty()) return Error{ErrorCode::kUnsupported, choice.error};
  ASSIGN_OR_RETURN(const DeviceKind* kind, choose_kind(options.name));
  std::unique_ptr<Device> device(new Device(kind == nullptr ? kCpu : kind->name, choice.isa,
                                            kind == nullptr ? nullptr : kind->table(), options));
  if (kind != nullptr && device->stream_ == nullptr)
    return cannot_be_used(kind->name, "it gives no stream");
  return device;
}

Result<void> Device::reserve_workspace(std::int64_t num_bytes) {
  if (num_bytes <= workspace_bytes()) return {};
  RETURN_IF_ERROR(synchronize());  // the one that goes may be in use
  ASSIGN_OR_RETURN(workspace_,
                   allocate(static_cast<std::size_t>(num_bytes), "the kernels' workspace"));
  return {};
}

Result<DeviceMemory> Device::allocate(std::size_t num_bytes, std::string_view what) {
  if (is_host()) {
    ASSIGN_OR_RETURN(Memory memory, Memory::allocate(num_bytes, what));
    allocated_bytes_ += static_cast<std::int64_t>(num_bytes);
    return DeviceMemory(std::move(memory));
  }
  if (num_bytes == 0) return DeviceMemory();
  std::byte* const data = table_->allocate(static_cast<std::int64_t>(num_bytes));
  if (data == nullptr)
    return Error{ErrorCode::kIo, "cannot allocate " + std::to_string(num_bytes) + " bytes for " +
                                     std::string(what) + ": " + std::string(name_) + " has " +
                                     std::to_string(table_->free_bytes()) + " bytes left"};
  allocated_bytes_ += static_cast<std::int64_t>(num_bytes);
  return DeviceMemory(*table_, {data, num_bytes});
}

Result<DeviceMemory> Device::upload(Memory memory, std::string_view what) {
  if (is_host()) return DeviceMemory(std::move(memory));
  return upload_copy(memory.bytes(), what);
}

Result<DeviceMemory> Device::upload_copy(std::span<const std::byte> bytes, std::string_view what) {
  ASSIGN_OR_RETURN(DeviceMemory memory, allocate(bytes.size(), what));
  copy_to_device(memory.data(), bytes.data(), bytes.size());
  return memory;
}

void Device::copy_to_device(void* to, const void* from, std::size_t num_bytes) noexcept {
  if (is_host()) return copy(to, from, num_bytes);
  table_->copy_to_device(stream_, to, from, static_cast<std::int64_t>(num_bytes));
}

void Device::copy_to_host(void* to, const void* from, std::size_t num_bytes) noexcept {
  if (is_host()) return copy(to, from, num_bytes);
  table_->copy_to_host(stream_, to, from, static_cast<std::int64_t>(num_bytes));
}

Result<DeviceCopier> Device::make_copier() const {
  if (is_host()) return DeviceCopier(nullptr, nullptr);
  table_->select(index_);
  void* const stream = table_->create_stream();
  if (stream == nullptr)
    return Error{ErrorCode::kUnavailable, std::string(name_) + " gives no stream", {}};
  return DeviceCopier(table_, stream);
}

Result<void> Device::synchronize() {
  if (is_host()) return status_;
  std::string fault = table_->synchronize(stream_);
  if (!fault.empty()) fail({ErrorCode::kInternal, std::string(name_) + ": " + std::move(fault)});
  return status_;
}

void Device::fail(Error error) {
  if (status_.ok()) status_ = std::move(error);
}

std::int64_t Device::available_bytes() const noexcept {
  return table_->free_bytes() / num_sharing_;
}

}  // namespace troupe
