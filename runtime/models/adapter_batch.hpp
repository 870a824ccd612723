#pragma once
// Which rows of a step's matrices each adapter updates.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "runtime/models/adapter.hpp"
#include "runtime/models/device.hpp"

namespace troupe {

/// What layers of one step apply adapters with.
struct StepAdapters {
  AdapterRows tokens;   ///< of matrices with a row for each token
  AdapterRows outputs;  ///< of those with a row for each output
  ElementType type = ElementType::kF32;
  Matrix shrunk;  ///< scratch for the rows of all tokens
};

/// Columns of StepAdapters::shrunk, at most, where adapters have at most that rank.
[[nodiscard]] std::int64_t most_adapter_ranks(std::int64_t max_rank) noexcept;

/// Owns the rows by adapter of one step. The device outlives it.
class AdapterBatch {
 public:
  explicit AdapterBatch(Device& device) : device_(device) {}

  /// Memory for steps of so many tokens with adapters of at most that rank. Errors: kIo.
  Result<void> reserve(std::int64_t max_tokens, const AdapterLimits& limits);

  /// Of a step whose sequence s has tokens query_start_loc[s] .. and outputs output_start_loc[s]
  /// .., with the adapter adapters[s], or none. Null: no sequence has one, or there is no memory
  /// for it and the device has failed. Valid until the next call.
  [[nodiscard]] const StepAdapters* put(std::span<const Adapter* const> adapters,
                                        std::span<const std::int32_t> query_start_loc,
                                        std::span<const std::int32_t> output_start_loc);
  /// Of the outputs of the last step only `count` from `first` on, which are rows 0, 1, .. then.
  /// Null: none of them has an adapter. Valid until the next call of either.
  [[nodiscard]] const StepAdapters* put_outputs(std::int32_t first, std::int32_t count);
  /// Adds to the rows of tokens what adapters have for their embeddings, times `scale`; target: the
  /// table's. Pre: put() has given rows.
  void add_embeddings(std::span<const std::int32_t> ids, std::int32_t target, float scale,
                      Matrix out);

 private:
  /// Rows of one kind, on the host.
  struct HostRows {
    std::vector<std::int32_t> first_row;
    std::vector<std::int32_t> rows;
    std::vector<std::int32_t> adapter_of_row;
  };
  /// The rows of the used adapters in [first, end) of a matrix that start_loc divides, from 0 on.
  void sort_rows(std::span<const std::int32_t> start_loc, std::int32_t first, std::int32_t end,
                 HostRows& rows) const;
  /// Where kernels read them.
  [[nodiscard]] bool send(const HostRows& rows, DeviceMemory& memory, AdapterRows& sent);

  Device& device_;
  ElementType type_ = ElementType::kF32;
  DeviceMemory shrunk_memory_;
  std::vector<const Adapter*> used_;       // of the step, each once
  std::vector<std::int32_t> used_of_seq_;  // in used_; -1: none
  std::vector<std::int32_t> output_start_loc_;
  std::vector<const AdapterWeight*> weights_;  // of used_
  HostRows tokens_;
  HostRows outputs_;
  HostRows some_outputs_;
  DeviceMemory token_memory_;
  DeviceMemory output_memory_;
  DeviceMemory some_memory_;
  StepAdapters step_;
  StepAdapters some_;
  std::vector<float> shrunk_;  // of embeddings, on their way to the device
};

}  // namespace troupe
