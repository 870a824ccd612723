#pragma once
// From hidden states on a device to logits that the host samples from.

#include <cstddef>
#include <cstdint>

#include "runtime/base/result.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/model.hpp"

namespace troupe {

/// Owns a few rows of logits: where the model computes them, and where the host reads and changes
/// them. On the CPU that is one memory. The device outlives it.
class LogitRows {
 public:
  static constexpr std::int64_t kMaxRows = 64;

  /// Takes the memory. Errors: kIo.
  Result<void> reserve(Device& device, std::int64_t vocab_size);
  /// Logits of hidden states on the device: [hidden.num_rows, vocab_size], the host's until the
  /// next call; on the first rank of the last stage only. They mean nothing if the device or
  /// `peers` has failed. Pre: at most kMaxRows.
  Matrix compute(Model& model, ConstMatrix hidden, Communicator* peers);

 private:
  Device* device_ = nullptr;
  DeviceMemory memory_;
  Memory host_;  // where the device's memory is not the host's
};

/// Memory for a matrix of floats on the device. Errors: kIo.
Result<DeviceMemory> allocate_floats(Device& device, std::int64_t num_rows, std::int64_t num_cols,
                                     std::string_view what);
[[nodiscard]] inline float* floats(const DeviceMemory& memory) {
  return reinterpret_cast<float*>(memory.data());
}

}  // namespace troupe
