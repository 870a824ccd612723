#pragma once
// From a checkpoint's tensors to the weights that layers compute with.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/ops.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/adapter.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/memory.hpp"
#include "runtime/models/packed_weights_file.hpp"
#include "runtime/models/parallel.hpp"
#include "runtime/models/quantized_weight.hpp"
#include "runtime/models/rotary_embedding.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/models/weight_packing.hpp"

namespace troupe {

/// A matrix in the backend's layout, and its memory, or where it is mapped.
struct PackedMatrix {
  WeightSpec spec;
  DeviceMemory memory;
  std::span<const std::byte> mapped;  ///< in a PackedWeightsFile
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return mapped.empty() ? memory.bytes() : mapped;
  }
  [[nodiscard]] PackedWeight view() const noexcept { return {spec, bytes().data()}; }
};

/// A table of rows as the checkpoint has it: in the mapped file or, if kernels of a device read it,
/// copied to that. The host reads blocks of GGUF.
struct EmbeddingTable {
  const TensorView* stored = nullptr;
  DeviceMemory copy;
  [[nodiscard]] const std::byte* data() const noexcept {
    return copy.size() == 0 ? stored->bytes.data() : copy.data();
  }
  /// Of tables that are not stored in blocks.
  [[nodiscard]] ElementType type() const noexcept {
    return stored->type == TensorType::kBF16  ? ElementType::kBF16
           : stored->type == TensorType::kF16 ? ElementType::kF16
                                              : ElementType::kF32;
  }
};

/// Called with the share that is done, in [0, 1], and what is being done.
using LoadProgressCallback = std::function<void(double fraction, std::string_view what)>;

/// How weights are kept and multiplied.
struct WeightFormat {
  ComputeMode mode = ComputeMode::kF32;
  bool as_stored = true;                 ///< keep each matrix in the checkpoint's own type
  ElementType type = ElementType::kF32;  ///< otherwise convert to this one
  /// Not kNone: matrices that the checkpoint stores wide are quantised. What it stores quantised
  /// keeps its width in any case.
  QuantizedType quantized = QuantizedType::kNone;
};

enum class MatrixRole : std::uint8_t {
  kLayer,
  kGateUp,   ///< of two equal parts, a gate and `up`: packed for gated_mlp
  kHead,     ///< of the vocabulary: quantised to no less than 8 bits, as its errors go into every
             ///< token
  kRouter,   ///< chooses experts: computed in f32 on the weights as stored, as small errors would
             ///< choose others
  kEncoder,  ///< of images: not quantised here
};

/// A model is made twice: first of weights that are only checked, by the headers of its files, so
/// that a wrong one is an error before memory is taken.
enum class LoadPass : std::uint8_t { kCheck, kLoad };

/// Loads and packs one model's weights. Errors stick: the first ones are collected, later calls
/// return empty weights, and finish() reports. So the code of a model names its weights one after
/// the other and asks once.
///
/// Every tensor must have exactly the expected shape, and be f32, bf16, f16 or blocks of GGUF; or a
/// matrix is a QuantizedWeight. Whole numbers are kept as they are, in groups that divide the
/// stored ones; FP8 and columns in act-order are quantised anew, to 8 bits. Tensors of a folder
/// that no one asked for are named in a warning, as transformers does it: published checkpoints
/// carry left-over buffers. Those of a GGUF file are an error, as in llama.cpp. Weights are packed
/// in the host's memory, and copied where the device has its own.
///
/// With LoadPass::kCheck all of that is found out, and no weight is read: matrices and arrays have
/// no memory, numbers are 0.
class WeightLoader {
 public:
  /// `parallel` says which rank loads; models ask for its slices. `file`, or null: where matrices
  /// are taken from, or put for the next time; it outlives them.
  WeightLoader(const Checkpoint& checkpoint, Device& device, WeightFormat format,
               const QuantizationConfig& stored, const ParallelConfig& parallel,
               LoadProgressCallback progress, PackedWeightsFile* file = nullptr,
               LoadPass pass = LoadPass::kLoad);

  [[nodiscard]] const ParallelConfig& parallel() const noexcept { return parallel_; }
  [[nodiscard]] ComputeMode mode() const noexcept { return format_.mode; }
  /// This rank's slice of `total` rows or columns.
  [[nodiscard]] Slice shard(std::int64_t total) const noexcept {
    return part_of(total, parallel_.tensor_rank(), parallel_.tensor_parallel_size);
  }

  /// How a checkpoint stores a matrix, or a bias, otherwise than as [num_rows, num_cols].
  struct Layout {
    std::vector<std::int64_t> shape;
    std::int64_t first = 0;       ///< element (0, 0), among those of the tensor
    std::int64_t row_stride = 1;  ///< in elements
    std::int64_t col_stride = 1;
    bool has_suffix = true;  ///< the tensor's name ends with ".weight", the bias' with ".bias";
                             ///< else the bias' with "_bias"
  };
  /// Rows in two tensors of bytes, as gpt-oss has them: `name`_blocks, [shape, num_cols / 32, 16],
  /// with two numbers of E2M1 in a byte, the lower half first; `name`_scales, [shape, num_cols /
  /// 32], with exponents (E8M0).
  struct MxBlocks {
    std::vector<std::int64_t> shape;
    std::int64_t first_row = 0;
    std::int64_t row_stride = 1;
  };
  /// Heads of head_dim rows or columns that get zeros behind them, up to padded_dim.
  struct HeadPadding {
    std::int64_t head_dim = 1;
    std::int64_t padded_dim = 1;

    [[nodiscard]] constexpr std::int64_t place(std::int64_t index) const noexcept {
      return index / head_dim * padded_dim + index % head_dim;
    }
    /// Of a padded number.
    [[nodiscard]] constexpr std::int64_t stored(std::int64_t count) const noexcept {
      return count / padded_dim * head_dim;
    }
    [[nodiscard]] constexpr bool is_needed() const noexcept { return padded_dim != head_dim; }
  };
  struct Part {
    std::string name;  ///< "model.layers.0.self_attn.q_proj": ".weight" and ".bias" are appended
    std::int64_t num_rows = 0;  ///< with the padding
    Slice rows;                 ///< that are loaded
    std::optional<Layout> layout = std::nullopt;
    std::optional<MxBlocks> blocks = std::nullopt;
    std::optional<Layout> bias_layout = std::nullopt;
    HeadPadding row_padding = {};
    HeadPadding col_padding = {};
    bool has_bias = true;  ///< else its biases are zeros
  };
  /// Those rows and columns of the matrices of `parts` ([num_rows, num_cols] each), under each
  /// other, as one. Several parts in a row may be rows of the same matrix. Only their bytes of the
  /// mapped files are read. Pre: k_shards divides cols.count.
  PackedMatrix matrix(const std::vector<Part>& parts, std::int64_t num_cols, Slice cols,
                      std::int32_t k_shards, MatrixRole role = MatrixRole::kLayer);
  /// Those rows of the biases of `parts`, one behind the other.
  DeviceArray<float> biases(const std::vector<Part>& parts);
  /// `name`.weight, [size], widened.
  DeviceArray<float> vector(const std::string& name, std::int64_t size);
  /// `name`.weight, [num_rows, num_cols], widened, in the host's memory; zeros after an error.
  std::vector<float> rows(const std::string& name, std::int64_t num_rows, std::int64_t num_cols);
  /// The same of the tensor `name`, [size].
  std::vector<float> values(const std::string& name, std::int64_t size);
  /// The same of one with such a shape.
  std::vector<float> values(const std::string& name, std::span<const std::int64_t> shape);
  /// The tensor `name`, [size], of int64; zeros after an error.
  std::vector<std::int64_t> integers(const std::string& name, std::int64_t size);
  /// Those elements of the tensor `name`, [size].
  DeviceArray<float> elements(const std::string& name, std::int64_t size, Slice slice);
  /// `name`.weight, [num_rows, num_cols], by a rank of the first stage, which alone reads it; null
  /// after an error.
  EmbeddingTable table(const std::string& name, std::int64_t num_rows, std::int64_t num_cols);
  /// Of a RotaryEmbedding.
  std::shared_ptr<const RopeTables> rope_tables(const RopeConfig& config, std::int64_t head_dim,
                                                std::int64_t num_positions);

  /// Says that adapters may update the matrix of these parts, which has so many columns, of which
  /// this rank has `cols`. The number of the target.
  std::int32_t add_adapter_target(const std::vector<Part>& parts, std::int64_t num_cols, Slice cols,
                                  bool is_embedding = false);
  std::int32_t add_adapter_target(AdapterTarget target);
  [[nodiscard]] std::vector<AdapterTarget> take_adapter_targets() noexcept {
    return std::exchange(adapter_targets_, {});
  }

  /// Addresses of matrices, or vectors, where kernels read them.
  DeviceArray<const std::byte*> addresses(std::vector<const std::byte*> weights);
  DeviceArray<const float*> addresses(std::vector<const float*> vectors);
  /// Numbers that are computed, where kernels read them.
  template <class T>
  DeviceArray<T> upload(std::vector<T> numbers) {
    if (is_check()) return {};
    Result<DeviceArray<T>> uploaded = device_.upload(std::move(numbers), "weights");
    if (uploaded.ok()) return std::move(uploaded).value();
    fail(uploaded.error().code, uploaded.error().message);
    return {};
  }
  /// Memory that a part of the model keeps for itself; `what` names the purpose in errors.
  DeviceMemory allocate(std::int64_t num_bytes, std::string_view what);
  /// Records an error, which finish() returns.
  void fail(ErrorCode code, std::string message);
  [[nodiscard]] const Device& device() const noexcept { return device_; }

  [[nodiscard]] bool has(const std::string& tensor) const {
    return checkpoint_.find(tensor) != nullptr;
  }
  [[nodiscard]] bool is_check() const noexcept { return pass_ == LoadPass::kCheck; }
  /// Two tensors that are there: the same numbers, stored in the same way? In a check alone, could
  /// they be?
  [[nodiscard]] bool are_equal(const std::string& a, const std::string& b) const;
  /// Tensors whose names start so are known and not used (an image encoder, say).
  void ignore(std::string_view prefix);

  /// Bytes of the packed matrices so far.
  [[nodiscard]] std::int64_t num_packed_bytes() const noexcept { return num_packed_bytes_; }
  /// All is loaded. Errors: what was missing or wrong, with file, tensor, expected and found shape:
  /// kCorrupt, or kUnsupported for an element type.
  Result<void> finish();

 private:
  /// The numbers in which a matrix of these weights is kept. num_cols: of the whole matrix.
  [[nodiscard]] WeightSpec matrix_spec(const std::vector<StoredWeight>& weights,
                                       std::int64_t num_rows, std::int64_t num_cols, Slice cols,
                                       std::int32_t k_shards, MatrixRole role) const;
  /// Fills the matrix from the file. False: it is to be packed.
  bool take_from_file(PackedMatrix& matrix, std::string_view name, std::size_t num_bytes);
  void give_up_file(const Error& error);
  /// False (and an error is recorded) unless there is so much memory.
  bool allocate_packed(Memory& memory, std::size_t num_bytes);
  /// The value; one without anything (and an error is recorded) if there is none.
  template <class T>
  T value_or_fail(Result<T> result);
  /// In fewer bits, where the device keeps such matrices so.
  void make_compact(WeightSpec& spec, Memory& packed);
  /// Nothing (and an error is recorded) unless the matrix is there with this shape.
  std::optional<StoredWeight> find_matrix(const Part& part, std::int64_t num_cols);
  /// The same of a part with a layout of its own, or padding. The tensor is kept in rearranged_.
  std::optional<StoredWeight> find_rearranged(const Part& part, std::int64_t num_cols);
  std::optional<StoredWeight> find_blocks(const Part& part, std::int64_t num_cols);
  /// The matrix `name`, widened, where it is quantised; but no more than its rows `rows`, the
  /// others are 0. Nothing: it is wide, or not there.
  std::optional<std::vector<float>> widen_quantized(const std::string& name,
                                                    std::span<const std::int64_t> shape,
                                                    Slice rows);
  /// Null (and an error is recorded) unless the tensor is there with this shape.
  const Checkpoint::Tensor* find(const std::string& name, std::span<const std::int64_t> shape);
  /// The matrix is packed: its memory in the file is no longer needed.
  void finish_matrix(const std::string& name, const StoredWeight& weight);
  /// Errors: kUnsupported, the tensors of a GGUF file that no one asked for.
  Result<void> check_unused() const;
  void report_progress(std::string_view what, std::size_t num_bytes);

  const Checkpoint& checkpoint_;
  Device& device_;
  WeightFormat format_;
  QuantizationConfig stored_;
  ParallelConfig parallel_;
  LoadProgressCallback progress_;
  PackedWeightsFile* file_;  ///< null: none, or no longer
  LoadPass pass_;
  std::set<std::string, std::less<>> used_;
  struct Rearranged {
    Checkpoint::Tensor tensor;
    std::vector<std::byte> bytes;  ///< of one whose elements have moved
  };
  std::deque<Rearranged> rearranged_;  ///< parts of the matrix being loaded
  std::vector<Error> errors_;
  std::vector<AdapterTarget> adapter_targets_;
  std::int64_t num_packed_bytes_ = 0;
  std::int64_t num_read_bytes_ = 0;
};

}  // namespace troupe
