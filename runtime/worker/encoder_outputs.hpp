#pragma once
// The encoder outputs that a worker keeps.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/tensor.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/device.hpp"

namespace troupe {

/// Owns the rows of all outputs, in memory that is laid out beforehand: those of one output lie
/// wherever there is room. The EncoderCacheManager decides what is kept; it counts in rows, too.
class EncoderOutputs {
 public:
  /// Room for num_rows rows. Errors: those of Device::allocate.
  static Result<EncoderOutputs> create(Device& device, std::int64_t num_rows,
                                       std::int64_t hidden_size);

  [[nodiscard]] bool has(std::string_view identifier) const {
    return rows_.find(std::string(identifier)) != rows_.end();
  }
  /// Of an output, in order, the rows of memory() that hold it; empty if it is not there.
  [[nodiscard]] std::span<const std::int32_t> rows_of(const std::string& identifier) const;
  /// Takes rows for an output, whose content is the caller's to fill in. Empty: there is no room,
  /// and nothing has changed. Pre: !has(identifier).
  std::span<const std::int32_t> add(const std::string& identifier, std::int64_t num_rows);
  /// Of an output that is not there, nothing.
  void remove(const std::string& identifier);
  void clear();

  [[nodiscard]] std::int64_t num_free_rows() const noexcept { return num_free_; }
  /// [num_rows, hidden_size], in the device's memory.
  [[nodiscard]] Matrix memory() const noexcept {
    return {reinterpret_cast<float*>(memory_.data()), num_rows_, hidden_size_};
  }

 private:
  EncoderOutputs(DeviceMemory memory, std::int64_t num_rows, std::int64_t hidden_size);
  void release(std::int32_t begin, std::int32_t count);

  DeviceMemory memory_;
  std::int64_t num_rows_;
  std::int64_t hidden_size_;
  std::int64_t num_free_ = 0;
  std::map<std::int32_t, std::int32_t> free_;  ///< runs of free rows: first -> count
  std::unordered_map<std::string, std::vector<std::int32_t>> rows_;
};

}  // namespace troupe
