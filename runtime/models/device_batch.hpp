#pragma once
// A step's arrays on their way to the kernels.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "runtime/models/device.hpp"
#include "runtime/models/model.hpp"

namespace troupe {

/// Owns the copy of a ForwardBatch's arrays that kernels of a device read, in one piece of memory
/// that grows with the batches. Of the block tables it has the rows that the batch names. The
/// device outlives it.
class DeviceBatch {
 public:
  explicit DeviceBatch(Device& device) : device_(device) {}

  /// The batch with the addresses that kernels read; on the CPU the batch itself. Valid until the
  /// next call. Null: there is no memory for it, and the device has failed.
  [[nodiscard]] const ForwardBatch* put(const ForwardBatch& batch);

 private:
  /// So many more bytes of staging_. Where they begin.
  std::size_t grow(std::size_t num_bytes);
  template <class T>
  std::size_t append(std::span<const T> values);
  [[nodiscard]] std::size_t append_rows(const ForwardBatch& batch,
                                        const ForwardBatch::Group& group);
  template <class T>
  [[nodiscard]] const T* at(std::size_t offset) const noexcept {
    return reinterpret_cast<const T*>(memory_.data() + offset);
  }

  /// Null: it was null.
  template <class T>
  [[nodiscard]] const T* at(std::optional<std::size_t> offset) const noexcept {
    return offset ? at<T>(*offset) : nullptr;
  }
  /// One element for each sequence; nothing if there are none.
  [[nodiscard]] std::optional<std::size_t> append_each(const ForwardBatch& batch,
                                                       const std::int32_t* values);

  Device& device_;
  std::vector<std::byte> staging_;
  DeviceMemory memory_;
  ForwardBatch batch_;
  std::vector<ForwardBatch::Group> groups_;
  std::vector<std::int32_t> rows_;
};

}  // namespace troupe
