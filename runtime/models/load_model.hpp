#pragma once
// Loading a model of any supported architecture.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "messages/cache.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/item_tower.hpp"
#include "runtime/models/model.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

struct ModelLoadOptions {
  /// "auto" (what the checkpoint says), "float32" (exact arithmetic on the weights as stored),
  /// "bfloat16", "float16".
  std::string dtype = "auto";
  /// "auto" (what the checkpoint stores quantised keeps its width), "int8", "int4" (the other
  /// matrices of a GGUF file are quantised too), or the checkpoint's own method.
  std::string quantization = "auto";
  std::string packed_weights_dir;  ///< see PackedWeightsFile; empty: nowhere
  std::string mmproj;              ///< of a GGUF file: see load_model_config
  std::int64_t max_model_len = 0;  ///< 0: the model's own
  /// A shorter length that the folder asks for where max_model_len is 0; 0: it asks for none.
  std::int64_t max_text_tokens = 0;
  ParallelConfig parallel;  ///< whose slices are loaded
  /// By headers alone: the model that is returned has no weights.
  bool only_checks = false;
};

/// A model, the files that parts of it stay mapped from, and what was decided at load.
struct LoadedModel {
  std::unique_ptr<const Checkpoint> checkpoint;
  std::unique_ptr<PackedWeightsFile> packed_weights;  ///< null: none
  std::unique_ptr<Model> model;
  ModelConfig config;
  DType dtype = DType::kF32;

  /// Its files are as they were when it was loaded. Errors: kIo, one was cut or cannot be read;
  /// what the model has computed since the last check is not to be used.
  [[nodiscard]] Result<void> check_files() const;
  /// Of its weights: the system counts their pages among those that it could free.
  [[nodiscard]] std::int64_t mapped_bytes() const noexcept {
    return packed_weights != nullptr && packed_weights->is_mapped() ? model->weight_bytes() : 0;
  }
};

/// The encoder of a model without the rest of it, and the files that parts of it stay mapped from.
struct LoadedTower {
  std::unique_ptr<const Checkpoint> checkpoint;
  std::unique_ptr<const ItemTower> tower;
  ModelConfig config;
  DType dtype = DType::kF32;
};

/// "float32", "bfloat16", "float16".
[[nodiscard]] std::string_view dtype_name(DType dtype) noexcept;
/// Reads such a name; also "half" and "float". Errors: kInvalidArgument.
Result<DType> parse_dtype_name(std::string_view name);

/// What is quantised at load: reads "auto" (kNone), "int8", "int4", or the name of the method by
/// which the checkpoint is quantised already (kNone; "gguf" for any GGUF file). Errors:
/// kInvalidArgument, another name, or one that such a checkpoint does not allow.
Result<QuantizedType> choose_quantization(std::string_view name, QuantizationMethod stored,
                                          bool is_gguf);

/// Loads the model in `folder` onto the device, which must outlive it. The configuration, and that
/// all tensors are there in the expected shapes, is checked before any memory is taken.
/// Errors: kUnsupported (architecture, setting, type), kCorrupt (file and tensor, expected and
/// found shape), kNotFound, kIo, kInvalidArgument (options).
Result<LoadedModel> load_model(const std::filesystem::path& folder, Device& device,
                               const ModelLoadOptions& options,
                               const LoadProgressCallback& progress);

/// How load_configured_model makes a model of its configuration.
struct ModelMaker {
  std::function<std::unique_ptr<Model>(const ModelConfig& config, Device& device,
                                       WeightLoader& loader)>
      make;
  const GgufArchitecture* gguf = nullptr;  ///< see RegisteredArchitecture
  std::string_view part;  ///< of the checkpoint that it loads: its name; empty: all
};
/// The same with a configuration that has been read.
Result<LoadedModel> load_configured_model(const std::filesystem::path& folder, ModelConfig config,
                                          const ModelMaker& maker, Device& device,
                                          const ModelLoadOptions& options,
                                          const LoadProgressCallback& progress);

/// Loads the encoder of the model in `folder` alone; errors as there, and kUnsupported, it has
/// none.
Result<LoadedTower> load_tower(const std::filesystem::path& folder, Device& device,
                               const ModelLoadOptions& options);

/// What outputs of encoders depend on besides the item: outputs of different keys are not
/// exchanged.
[[nodiscard]] std::string encoder_key(const ModelConfig& config, DType dtype,
                                      const std::string& quantization);

}  // namespace troupe
