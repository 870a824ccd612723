#pragma once
// DeviceTable: what a device that is not the CPU can do besides computing. Porting to a new kind of
// device means filling one of these and the OpTable in it.

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/ops.hpp"

namespace troupe {

/// One kind of device. Its memory is not the host's: the host neither reads nor writes it. Work is
/// done in the order of its stream (OpContext::stream), after the call returned.
struct DeviceTable {
  const OpTable* ops = nullptr;

  /// Why no device of this kind can be used here ("no CUDA-capable device is detected"); empty when
  /// the current one can. Only packing runs without a device.
  std::string (*why_unavailable)() = nullptr;

  /// How many devices there are. Pre, of this and all else: why_unavailable is empty.
  int (*count)() noexcept = nullptr;
  /// Makes device `index` the calling thread's current one: memory and streams are taken from it,
  /// and operations run there. Pre: index < count.
  void (*select)(int index) noexcept = nullptr;
  /// Of the current device.
  std::int64_t (*free_bytes)() noexcept = nullptr;

  /// Uninitialised memory, aligned to 256 bytes; null when the device has not so much. Whoever
  /// holds it synchronizes before it lets go of memory in use.
  std::byte* (*allocate)(std::int64_t num_bytes) noexcept = nullptr;
  void (*release)(std::byte* data) noexcept = nullptr;

  /// A stream of its own; null when the device refuses.
  void* (*create_stream)() noexcept = nullptr;
  void (*destroy_stream)(void* stream) noexcept = nullptr;

  /// From pageable host memory this returns once the source may be changed; into host memory, the
  /// result is there after synchronize.
  void (*copy_to_device)(void* stream, void* device, const void* host,
                         std::int64_t num_bytes) noexcept = nullptr;
  void (*copy_to_host)(void* stream, void* host, const void* device,
                       std::int64_t num_bytes) noexcept = nullptr;
  /// Both on the device, and not overlapping.
  void (*copy)(void* stream, void* to, const void* from, std::int64_t num_bytes) noexcept = nullptr;
  void (*fill_zero)(void* stream, void* data, std::int64_t num_bytes) noexcept = nullptr;
  /// Waits for all work on the stream. Returns what went wrong since the last call, launches of
  /// this thread included ("an illegal memory access was encountered"); empty when nothing did.
  /// After a fault in a kernel the process cannot use the device any more.
  std::string (*synchronize)(void* stream) = nullptr;
};

/// NVIDIA GPUs; kernels/cuda/cuda_ops.hpp says what their operations expect beyond ops.hpp. Null in
/// a build without them (TROUPE_CUDA).
[[nodiscard]] const DeviceTable* cuda_device() noexcept;

/// The same sources compiled for the CPU (kernels/cuda_emulation), to test them without a GPU. Null
/// in a build without them (TROUPE_CUDA_EMULATION).
[[nodiscard]] const DeviceTable* cuda_emulated_device() noexcept;

}  // namespace troupe
