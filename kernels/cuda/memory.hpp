#pragma once
// Device memory and the order of work on a GPU, for code that does not see CUDA's headers. A stream
// is a cudaStream_t as OpContext holds it.

#include <cstddef>
#include <cstdint>
#include <string>

namespace troupe::cuda {

/// Owns a stretch of the current device's memory, aligned to 256 bytes. Weights, activations and KV
/// pages live in these; whoever holds one synchronizes before it lets go of memory in use.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Uninitialised. `data()` is null when the device has not so much memory.
  explicit DeviceMemory(std::int64_t num_bytes) noexcept;
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  std::byte* data_ = nullptr;
};

/// A stream of its own, for OpContext::stream; null when the device refuses.
[[nodiscard]] void* create_stream() noexcept;
void destroy_stream(void* stream) noexcept;

/// In the stream's order. From pageable host memory this returns once the source may be changed;
/// into host memory, the result is there after synchronize.
void copy_to_device(void* stream, void* device, const void* host, std::int64_t num_bytes) noexcept;
void copy_to_host(void* stream, void* host, const void* device, std::int64_t num_bytes) noexcept;

/// Waits for all work on the stream. Returns what went wrong since the last call, launches of this
/// thread included ("an illegal memory access was encountered"); empty when nothing did. After a
/// fault in a kernel the process cannot use the device any more.
[[nodiscard]] std::string synchronize(void* stream);

}  // namespace troupe::cuda
