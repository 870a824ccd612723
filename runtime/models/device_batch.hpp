#pragma once
// A step's arrays on their way to the kernels.

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/models/device.hpp"
#include "runtime/models/model.hpp"

namespace troupe {

/// Owns the copy of a ForwardBatch's arrays that kernels of a device read, in one piece of memory
/// that grows with the batches, and copies of the block tables, which stay: of these a step sends
/// the blocks that are new in the rows that it names. The device outlives it.
class DeviceBatch {
 public:
  explicit DeviceBatch(Device& device) : device_(device) {}

  /// The batch with the addresses that kernels read; on the CPU the batch itself. Valid until the
  /// next call. Null: there is no memory for it, and the device has failed.
  [[nodiscard]] const ForwardBatch* put(const ForwardBatch& batch);
  /// How many blocks of tables were sent so far.
  [[nodiscard]] std::int64_t num_sent_blocks() const noexcept { return num_sent_blocks_; }

 private:
  /// Of one KV-cache group.
  struct Tables {
    struct Row {
      std::uint64_t id = 0;  ///< ForwardBatch::block_table_row_ids; 0: of none
      std::size_t num_blocks = 0;
    };
    DeviceMemory memory;  ///< [rows, stride]
    std::int64_t stride = 0;
    std::vector<Row> rows;  ///< what was sent
  };
  /// Makes the tables those of the batch, in the rows that it names.
  Result<void> send_tables(const ForwardBatch& batch, const ForwardBatch::Group& group,
                           Tables& tables);
  /// Memory of at least so many bytes, with no content.
  Result<void> reserve(DeviceMemory& memory, std::size_t num_bytes, std::string_view what);
  /// So many more bytes of staging_. Where they begin.
  std::size_t grow(std::size_t num_bytes);
  template <class T>
  std::size_t append(std::span<const T> values);
  template <class T>
  [[nodiscard]] const T* at(std::size_t offset) const noexcept {
    return reinterpret_cast<const T*>(memory_.data() + offset);
  }

  /// Null: it was null.
  template <class T>
  [[nodiscard]] const T* at(std::optional<std::size_t> offset) const noexcept {
    return offset ? at<T>(*offset) : nullptr;
  }
  /// Nothing if they are null.
  [[nodiscard]] std::optional<std::size_t> append_given(const std::int32_t* values,
                                                        std::size_t count);

  Device& device_;
  std::vector<std::byte> staging_;
  DeviceMemory memory_;
  ForwardBatch batch_;
  std::vector<ForwardBatch::Group> groups_;
  std::vector<Tables> tables_;
  std::int64_t num_sent_blocks_ = 0;
};

}  // namespace troupe
