#pragma once
// The emulated device's memory: memory of the host that only kernels and copies may touch. It is
// NaN until somebody writes it. Behind and before each allocation are guards: a kernel that writes
// there is found when the stream is synchronized or the memory freed; with the address sanitizer
// at once, and so are reads, and the host's own reads and writes of the device's memory.

#include <cstddef>
#include <string>

namespace troupe::cuda_emulation {

inline constexpr std::size_t kDeviceBytes = std::size_t{16} << 30;

/// Aligned to 256 bytes; null: the device has not so much left.
void* allocate_device_memory(std::size_t num_bytes) noexcept;
/// What a kernel did to its guards; empty: nothing. Null is freed, too.
std::string free_device_memory(void* data) noexcept;

/// What a kernel did to any guards since they were last checked.
std::string check_device_memory() noexcept;

std::size_t free_device_bytes() noexcept;

/// While one exists the device's memory may be touched.
class DeviceAccess {
 public:
  DeviceAccess() noexcept;
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace troupe::cuda_emulation
