#include "runtime/models/load_model.hpp"

#include <algorithm>
#include <string>

#include "runtime/base/log.hpp"
#include "runtime/gguf/model_files.hpp"
#include "runtime/models/registry.hpp"
#include "runtime/models/rotary_embedding.hpp"

namespace troupe {
namespace {

/// Where config.json names no type, the embedding's type is the model's; weights in blocks are no
/// more exact than bfloat16, whatever the embedding is.
DType stored_dtype(const ModelConfig& config, const Checkpoint& checkpoint) {
  if (config.dtype) return *config.dtype;
  DType dtype = DType::kF32;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (is_block_type(tensor.view.type)) return DType::kBF16;
    if (!name.ends_with("embed_tokens.weight") && !name.ends_with(".embeddings.weight")) continue;
    if (tensor.view.type == TensorType::kBF16) dtype = DType::kBF16;
    if (tensor.view.type == TensorType::kF16) dtype = DType::kF16;
  }
  return dtype;
}

WeightFormat weight_format(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {.mode = ComputeMode::kBF16, .as_stored = false, .type = ElementType::kBF16};
    case DType::kF16:
      return {.mode = ComputeMode::kF32, .as_stored = false, .type = ElementType::kF16};
    default:
      return {.mode = ComputeMode::kF32, .as_stored = true};
  }
}

/// As options.packed_weights_dir says; null, and a warning, where that cannot be used.
std::unique_ptr<PackedWeightsFile> open_packed_weights(const std::filesystem::path& model,
                                                       Device& device,
                                                       const ModelLoadOptions& options,
                                                       const WeightFormat& format,
                                                       std::string_view part) {
  if (options.packed_weights_dir.empty()) return nullptr;
  std::string choices = "layout " + std::string(device.ops().name);
  add_choice(choices, "mode", format.mode);
  add_choice(choices, "as_stored", format.as_stored);
  add_choice(choices, "type", format.type);
  add_choice(choices, "quantized", format.quantized);
  add_choice(choices, "tensor_parallel_size", options.parallel.tensor_parallel_size);
  add_choice(choices, "pipeline_parallel_size", options.parallel.pipeline_parallel_size);
  add_choice(choices, "rank", options.parallel.rank);
  add_choice(choices, "expert_parallel", options.parallel.expert_parallel);
  if (!part.empty()) choices += " part " + std::string(part);
  auto file = PackedWeightsFile::open(options.packed_weights_dir, model, options.mmproj, choices,
                                      device.pool());
  if (!file.ok()) {
    log_warning("packed weights not kept", kv("error", file.error().message));
    return nullptr;
  }
  if ((*file)->is_mapped()) log_info("packed weights mapped", kv("file", (*file)->path().string()));
  return std::move(file).value();
}

Result<void> limit_model_len(const ModelLoadOptions& options, ModelConfig& config) {
  if (options.max_model_len == 0) {
    if (options.max_text_tokens > 0)
      config.max_model_len = std::min(config.max_model_len, options.max_text_tokens);
    return {};
  }
  if (options.max_model_len < 0 || options.max_model_len > config.max_model_len)
    return invalid_argument("max_model_len is " + std::to_string(options.max_model_len) +
                                ", the model was made for at most " +
                                std::to_string(config.max_model_len),
                            "max_model_len");
  config.max_model_len = options.max_model_len;
  return {};
}

/// Opens the files, and says in which type they are computed with. Loaded: LoadedModel or
/// LoadedTower, whose config has been read.
template <class Loaded>
Result<void> open_checkpoint(const std::filesystem::path& folder, const GgufArchitecture* gguf,
                             const ModelLoadOptions& options, Loaded& loaded) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(folder, gguf, options.mmproj));
  loaded.checkpoint = std::make_unique<const Checkpoint>(std::move(checkpoint));
  loaded.dtype = stored_dtype(loaded.config, *loaded.checkpoint);
  if (options.dtype == "auto") return {};
  ASSIGN_OR_RETURN(loaded.dtype, parse_dtype_name(options.dtype));
  return {};
}

}  // namespace

std::string_view dtype_name(DType dtype) noexcept {
  return dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
}

Result<DType> parse_dtype_name(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    if (name == dtype_name(dtype)) return dtype;
  if (name == "half") return DType::kF16;
  if (name == "float") return DType::kF32;
  return invalid_argument("dtype is " + std::string(name) +
                              ", not one of auto, bfloat16, float16, float32, half, float",
                          "dtype");
}

Result<QuantizedType> choose_quantization(std::string_view name, QuantizationMethod stored,
                                          bool is_gguf) {
  const QuantizationMethod method = parse_quantization_method(name);
  const bool is_method = method != QuantizationMethod::kNone || name == "gguf";
  const bool is_stored = name == "gguf" ? is_gguf : is_method && method == stored;
  if (name == "auto" || is_stored) return QuantizedType::kNone;
  if (!is_method && name != "int8" && name != "int4")
    return invalid_argument(
        "quantization is " + std::string(name) +
            ", not one of auto, int8, int4, gptq, awq, compressed-tensors, fp8, mxfp4, gguf",
        "quantization");
  if (stored != QuantizationMethod::kNone)
    return invalid_argument("quantization is " + std::string(name) + ", but the checkpoint is " +
                                std::string(to_string(stored)) + " already",
                            "quantization");
  if (is_method)
    return invalid_argument(
        "quantization is " + std::string(name) + ", but the checkpoint is not quantised so",
        "quantization");
  return name == "int8" ? QuantizedType::kInt8 : QuantizedType::kInt4;
}

Result<void> LoadedModel::check_files() const {
  RETURN_IF_ERROR(checkpoint->check());
  return packed_weights == nullptr ? Result<void>() : packed_weights->check();
}

Result<LoadedModel> load_model(const std::filesystem::path& folder, Device& device,
                               const ModelLoadOptions& options,
                               const LoadProgressCallback& progress) {
  ASSIGN_OR_RETURN(ModelConfig config, load_model_config(folder, options.mmproj));
  RETURN_IF_ERROR(limit_model_len(options, config));
  const RegisteredArchitecture* architecture = find_architecture(config.architecture);
  CHECK(architecture != nullptr, config.architecture);
  return load_configured_model(folder, std::move(config),
                               {.make = architecture->make, .gguf = architecture->gguf}, device,
                               options, progress);
}

Result<LoadedModel> load_configured_model(const std::filesystem::path& folder, ModelConfig config,
                                          const ModelMaker& maker, Device& device,
                                          const ModelLoadOptions& options,
                                          const LoadProgressCallback& progress) {
  LoadedModel loaded;
  loaded.config = std::move(config);
  for (const RopeConfig* rope : {&loaded.config.rope, &loaded.config.sliding_rope})
    RETURN_IF_ERROR(
        RotaryEmbedding::check_size(*rope, loaded.config.head_dim, loaded.config.max_model_len));
  RETURN_IF_ERROR(check_parallel(loaded.config, options.parallel));
  ASSIGN_OR_RETURN(const QuantizedType quantized,
                   choose_quantization(options.quantization, loaded.config.quantization.method,
                                       is_gguf(folder)));
  RETURN_IF_ERROR(open_checkpoint(folder, maker.gguf, options, loaded));
  WeightFormat format = weight_format(loaded.dtype);
  format.quantized = quantized;
  WeightLoader checker(*loaded.checkpoint, device, format, loaded.config.quantization,
                       options.parallel, {}, nullptr, LoadPass::kCheck);
  loaded.model = maker.make(loaded.config, device, checker);
  RETURN_IF_ERROR(checker.finish());
  if (options.only_checks) return loaded;
  loaded.packed_weights = open_packed_weights(folder, device, options, format, maker.part);
  WeightLoader loader(*loaded.checkpoint, device, format, loaded.config.quantization,
                      options.parallel, progress, loaded.packed_weights.get());
  loaded.model = maker.make(loaded.config, device, loader);
  RETURN_IF_ERROR(loader.finish());
  return loaded;
}

Result<LoadedTower> load_tower(const std::filesystem::path& folder, Device& device,
                               const ModelLoadOptions& options) {
  LoadedTower loaded;
  ASSIGN_OR_RETURN(loaded.config, load_model_config(folder, options.mmproj));
  const RegisteredArchitecture* architecture = find_architecture(loaded.config.architecture);
  CHECK(architecture != nullptr, loaded.config.architecture);
  RETURN_IF_ERROR(open_checkpoint(folder, architecture->gguf, options, loaded));
  for (const LoadPass pass : {LoadPass::kCheck, LoadPass::kLoad}) {
    WeightLoader loader(*loaded.checkpoint, device, weight_format(loaded.dtype),
                        loaded.config.quantization, {}, {}, nullptr, pass);
    if (architecture->load_tower != nullptr)
      loaded.tower = architecture->load_tower(loaded.config, device, loader);
    loader.ignore("");  // the language model
    RETURN_IF_ERROR(loader.finish());
  }
  if (loaded.tower == nullptr)
    return Error{ErrorCode::kUnsupported,
                 folder.string() + " (" + loaded.config.architecture + ") has no encoder"};
  return loaded;
}

std::string encoder_key(const ModelConfig& config, DType dtype, const std::string& quantization) {
  return config.architecture + " " + std::string(dtype_name(dtype)) + " " + quantization + " " +
         std::to_string(config.hidden_size);
}

}  // namespace troupe
