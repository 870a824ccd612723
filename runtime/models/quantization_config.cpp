#include "runtime/models/quantization_config.hpp"

#include <algorithm>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxGroupSize = 1 << 24;
constexpr std::array<std::string_view, 6> kNames = {"none", "gptq", "awq", "compressed-tensors",
                                                    "fp8",  "mxfp4"};

void refuse(ConfigFields& fields, std::string_view key, const std::string& value,
            std::string_view supported) {
  fields.fail(ErrorCode::kUnsupported, std::string(key) + " " + value +
                                           " is not supported; supported are " +
                                           std::string(supported));
}

/// -1 (or nothing) means a whole row.
std::int64_t parse_group_size(ConfigFields& fields) {
  return std::max<std::int64_t>(0, fields.integer("group_size", -1, -1, kMaxGroupSize));
}

void parse_bits(ConfigFields& fields, std::string_view key) {
  const std::int64_t bits = fields.integer(key, std::nullopt, 1, 32);
  if (bits != 4 && bits != 8) refuse(fields, key, std::to_string(bits), "4, 8");
}

std::array<std::int64_t, 2> parse_block(ConfigFields& fields, const json& object,
                                        std::string_view key) {
  if (!fields.has(key)) return {};
  const json& block = object.at(std::string(key));
  const auto is_size = [](const json& size) {
    return size.is_number_integer() && size >= 1 && size <= kMaxGroupSize;
  };
  if (!block.is_array() || block.size() != 2 || !std::ranges::all_of(block, is_size)) {
    fields.fail(ErrorCode::kCorrupt, std::string(key) + " is not a pair of sizes");
    return {};
  }
  return {block[0].get<std::int64_t>(), block[1].get<std::int64_t>()};
}

void parse_gptq(ConfigFields& fields, QuantizationConfig& config) {
  parse_bits(fields, "bits");
  config.group_size = parse_group_size(fields);
  const std::string format = fields.text("checkpoint_format", fields.text("format", "gptq"));
  config.zero_points_minus_one = format == "gptq";
  config.symmetric = fields.boolean("sym", false);
  if (format != "gptq" && format != "gptq_v2")
    refuse(fields, "checkpoint_format", format, "gptq, gptq_v2");
}

void parse_awq(ConfigFields& fields, QuantizationConfig& config) {
  const std::string_view key = fields.has("bits") ? "bits" : "w_bit";
  const std::int64_t bits = fields.integer(key, std::nullopt, 1, 32);
  if (bits != 4) refuse(fields, key, std::to_string(bits), "4");
  config.group_size =
      fields.has("group_size")
          ? parse_group_size(fields)
          : std::max<std::int64_t>(0, fields.integer("q_group_size", 128, -1, kMaxGroupSize));
  const std::string version = fields.text("version", fields.text("format", "gemm"));
  if (version != "gemm" && version != "GEMM") refuse(fields, "version", version, "gemm");
}

void parse_compressed_tensors(ConfigFields& fields, QuantizationConfig& config) {
  constexpr std::array<std::string_view, 7> kFormats = {
      "dense",           "naive-quantized", "pack-quantized", "int-quantized",
      "float-quantized", "mixed-precision", "fakequant"};
  const std::string format = fields.text("format", "dense");
  if (std::ranges::find(kFormats, format) == kFormats.end())
    refuse(fields, "format", format, "pack-quantized, int-quantized, float-quantized");
  for (const std::string_view key : {"sparsity_config", "transform_config"}) {
    const json* object = fields.object(key);
    if (object == nullptr || object->empty()) continue;
    ConfigFields sparsity(*object, fields.where());
    if (key == "transform_config" || sparsity.text("format", "dense") != "dense")
      fields.fail(ErrorCode::kUnsupported, std::string(key) + " is not supported");
  }
  if (const json* scheme = fields.object("kv_cache_scheme")) {
    ConfigFields cache(*scheme, fields.where() + ": kv_cache_scheme");
    config.fp8_kv_cache =
        cache.text("type", "float") == "float" && cache.integer("num_bits", 8, 1, 32) == 8;
    if (cache.error()) return fields.fail(cache.error()->code, cache.error()->message);
  }
  const json* groups = fields.object("config_groups");
  if (groups == nullptr) return;
  for (const auto& [name, group] : groups->items()) {
    const std::string where = fields.where() + ": config_groups: " + name;
    if (!group.is_object()) return fields.fail(ErrorCode::kCorrupt, name + " is not an object");
    ConfigFields group_fields(group, where);
    const json* object = group_fields.object("weights");
    if (object == nullptr) continue;
    ConfigFields weights(*object, where);
    parse_bits(weights, "num_bits");
    const std::string type = weights.text("type", "int");
    if (type != "int" && !(type == "float" && weights.integer("num_bits", 8, 1, 32) == 8))
      refuse(weights, "type", type, "int, float with 8 bits");
    const std::int64_t group_size = parse_group_size(weights);
    if (group_size != 0) config.group_size = group_size;
    if (const auto block = parse_block(weights, *object, "block_structure"); block[0] != 0)
      config.block = block;
    if (weights.error()) return fields.fail(weights.error()->code, weights.error()->message);
  }
}

}  // namespace

std::string_view to_string(QuantizationMethod method) noexcept {
  return kNames[static_cast<std::size_t>(method)];
}

QuantizationMethod parse_quantization_method(std::string_view name) noexcept {
  constexpr std::string_view kOtherKernels = "_marlin";
  if (name == "gptq_marlin" || name == "awq_marlin") name.remove_suffix(kOtherKernels.size());
  const auto known = std::ranges::find(kNames, name);
  return known == kNames.end() ? QuantizationMethod::kNone
                               : static_cast<QuantizationMethod>(known - kNames.begin());
}

QuantizationConfig parse_quantization(ConfigFields& root) {
  QuantizationConfig config;
  const bool is_old = !root.has("quantization_config");
  const std::string key = is_old ? "compression_config" : "quantization_config";
  const json* object = root.object(key);
  if (object == nullptr) return config;
  ConfigFields fields(*object, key);
  const std::string method = fields.text("quant_method", is_old ? "compressed-tensors" : "");
  config.method = parse_quantization_method(method);
  switch (config.method) {
    case QuantizationMethod::kNone:
      refuse(fields, "quant_method", method.empty() ? "(none)" : method,
             "gptq, awq, compressed-tensors, fp8, mxfp4");
      break;
    case QuantizationMethod::kGptq:
      parse_gptq(fields, config);
      break;
    case QuantizationMethod::kAwq:
      parse_awq(fields, config);
      break;
    case QuantizationMethod::kCompressedTensors:
      parse_compressed_tensors(fields, config);
      break;
    case QuantizationMethod::kFp8:
      config.block = parse_block(fields, *object, "weight_block_size");
      break;
    case QuantizationMethod::kMxFp4:
      break;
  }
  if (fields.error()) root.fail(fields.error()->code, fields.error()->message);
  return config;
}

}  // namespace troupe
