#pragma once
// LoRA adapters (arXiv 2106.09685) as PEFT saves them: a folder with adapter_config.json and
// adapter_model.safetensors.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.hpp"
#include "messages/request.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/parallel.hpp"

namespace troupe {

/// A matrix that adapters may update, as this rank has it; several under each other count as one.
struct AdapterTarget {
  /// Rows of it, and the module whose A [rank, columns] and B [num_rows, rank] update them. What
  /// stands behind `rows` is of modules that hold more matrices than this one.
  struct Part {
    std::string name;           ///< of the module in the checkpoint
    std::int64_t num_rows = 0;  ///< of the whole matrix
    Slice rows;                 ///< those of this rank, or of this part of it
    std::int64_t row_stride = 1;
    /// The same rows as the part before: adapters name this module or that one.
    bool is_alternative = false;
    /// Of PEFT's `target_parameters`: a stack of matrices, in A one behind the other, in B each has
    /// every num_stacked-th column.
    std::int64_t num_stacked = 1;
    std::int64_t stacked = 0;    ///< the number of this one
    bool is_transposed = false;  ///< A has a column for each row, and B a row for each column

    std::int64_t first_col = 0;  ///< where its columns begin among the module's
    std::int64_t all_cols = 0;   ///< the module's; 0: they are the matrix'
  };
  std::vector<Part> parts;    ///< at most AdapterWeight::kMaxPieces, and alternatives
  std::int64_t num_cols = 0;  ///< of the whole matrix
  Slice cols;                 ///< those of this rank
  bool is_embedding = false;  ///< one part: a row for each token is looked up
  bool is_elsewhere = false;  ///< another rank has the matrix: updates are checked, and not kept
};

/// What a model's adapters may update, and what else they may name.
struct AdapterTargets {
  std::vector<AdapterTarget> targets;
  std::int64_t num_layers = 0;  ///< of the whole model: those of other stages are not loaded here
  bool is_first_stage = true;
  bool is_last_stage = true;
};

struct AdapterLimits {
  std::int32_t max_rank = 16;
  ElementType type = ElementType::kF32;  ///< in which A and B are kept
};

/// Owns the weights of one adapter on a device, which outlives it. Constant after it is loaded.
class Adapter {
 public:
  /// Reads the folder `request.path`. All is checked before memory is taken.
  /// Errors: kNotFound, there is no adapter in the folder; kCorrupt, a file is damaged, or a tensor
  /// has another shape than the model's matrix asks for; kUnsupported, a setting, a module or a
  /// type, or a rank over the limit. They name file, tensor, and what was expected and found.
  static Result<std::shared_ptr<const Adapter>> load(const LoraRequest& request,
                                                     const AdapterTargets& targets,
                                                     const AdapterLimits& limits, Device& device);

  /// [number of targets], where kernels read it.
  [[nodiscard]] const AdapterWeight* weights() const noexcept { return weights_.data(); }
  /// The most num_ranks of any target.
  [[nodiscard]] std::int32_t num_ranks() const noexcept { return num_ranks_; }
  /// The name, the path, and the id of what was found there.
  [[nodiscard]] const LoraRequest& request() const noexcept { return request_; }
  /// Of an embedding: [vocab_size, embedding_rank()], the rows of A transposed, in the host's
  /// memory; empty: it is not updated.
  [[nodiscard]] const std::vector<float>& embedding() const noexcept { return embedding_; }
  [[nodiscard]] std::int64_t embedding_rank() const noexcept { return embedding_rank_; }

 private:
  LoraRequest request_;
  DeviceMemory memory_;
  DeviceArray<AdapterWeight> weights_;
  std::int32_t num_ranks_ = 0;
  std::vector<float> embedding_;
  std::int64_t embedding_rank_ = 0;
};

}  // namespace troupe
