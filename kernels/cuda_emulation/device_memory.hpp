#pragma once
// The emulated device's memory: host memory that only kernels and copies may access. It is NaN
// until it is written. Guard zones surround each allocation: a kernel that writes there is reported
// when the stream is synchronized or the memory freed; with the address sanitizer at once, and so
// are reads, and accesses of the host to device memory.

#include <cstddef>
#include <string>

namespace troupe::cuda_emulation {

inline constexpr std::size_t kDeviceBytes = std::size_t{1} << 30;

/// Aligned to 256 bytes; null: out of memory.
void* allocate_device_memory(std::size_t num_bytes) noexcept;
/// Returns the guard violation of a kernel, or an empty string. Null may be freed.
std::string free_device_memory(void* data) noexcept;

/// Guard violations of kernels since the last check.
std::string check_device_memory() noexcept;

std::size_t free_device_bytes() noexcept;

/// Permits access to device memory during its lifetime.
class DeviceAccess {
 public:
  DeviceAccess() noexcept;
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace troupe::cuda_emulation
