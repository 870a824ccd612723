#include "runtime/gguf/mmproj.hpp"

#include <algorithm>
#include <span>

#include "runtime/base/json.hpp"
#include "runtime/gguf/gguf_model.hpp"
#include "runtime/gguf/metadata.hpp"
#include "runtime/gguf/model_files.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::string_view kPrefix = "clip.";
constexpr std::string_view kVision = "clip.vision.";

/// Read here, or by the projector's family.
constexpr std::string_view kReadKeys[] = {"has_vision_encoder",
                                          "projector_type",
                                          "use_gelu",
                                          "vision.projector_type",
                                          "vision.projector.scale_factor",
                                          "vision.image_size",
                                          "vision.patch_size",
                                          "vision.embedding_length",
                                          "vision.feed_forward_length",
                                          "vision.block_count",
                                          "vision.projection_dim",
                                          "vision.image_mean",
                                          "vision.image_std",
                                          "vision.attention.head_count",
                                          "vision.attention.layer_norm_epsilon"};
/// Neutral if false or 0.
constexpr std::string_view kOffKeys[] = {"has_text_encoder", "has_audio_encoder",
                                         "has_llava_projector", "use_silu"};

constexpr std::string_view kTower = "model.vision_tower.";
constexpr std::string_view kTowerLayer = "v.blk.";
constexpr GgufRenaming kTowerTensors[] = {{"v.patch_embd.", "embeddings.patch_embedding."},
                                          {"v.position_embd.", "embeddings.position_embedding."},
                                          {"v.post_ln.", "post_layernorm."}};
constexpr GgufRenaming kTowerLayerTensors[] = {
    {"ln1.", "layer_norm1."},         {"ln2.", "layer_norm2."},
    {"attn_q.", "self_attn.q_proj."}, {"attn_k.", "self_attn.k_proj."},
    {"attn_v.", "self_attn.v_proj."}, {"attn_out.", "self_attn.out_proj."},
    {"ffn_up.", "mlp.fc1."},          {"ffn_down.", "mlp.fc2."}};
constexpr GgufRenaming kSwappedMlp[] = {{"ffn_up.", "mlp.fc2."}, {"ffn_down.", "mlp.fc1."}};

/// Empty: it is not among them.
std::string renamed(std::string_view gguf, std::span<const GgufRenaming> renamings) {
  for (const GgufRenaming& each : renamings)
    if (gguf.starts_with(each.gguf))
      return std::string(each.name) + std::string(gguf.substr(each.gguf.size()));
  return {};
}

void check_clip_keys(GgufMetadata& metadata) {
  const std::string kind = metadata.text("general.architecture", std::nullopt);
  if (!metadata.error() && kind != "clip")
    metadata.fail(ErrorCode::kUnsupported,
                  "general.architecture is " + kind + ", that of a vision encoder is clip");
  for (const std::string& key : metadata.keys_with(std::string(kPrefix))) {
    const std::string_view name = std::string_view(key).substr(kPrefix.size());
    if (std::ranges::find(kReadKeys, name) != std::end(kReadKeys)) continue;
    if (std::ranges::find(kOffKeys, name) != std::end(kOffKeys) && metadata.is_number(key, 0))
      continue;
    return metadata.fail(
        ErrorCode::kUnsupported,
        "metadata \"" + key + "\" is " + metadata.shown(key) + ", which is not supported");
  }
  if (!metadata.boolean("clip.has_vision_encoder", true))
    metadata.fail(ErrorCode::kUnsupported, "clip.has_vision_encoder is false");
}

std::string projector_type(GgufMetadata& metadata) {
  return metadata.text("clip.vision.projector_type",
                       metadata.text("clip.projector_type", "mlp"));  // llama.cpp's default
}

}  // namespace

json mmproj_vision_config(GgufMetadata& metadata, const GgufProjector& projector) {
  check_clip_keys(metadata);
  const std::string type = projector_type(metadata);
  if (type != projector.type)
    metadata.fail(ErrorCode::kUnsupported, "clip.projector_type is " + type +
                                               ", the language model's is " +
                                               std::string(projector.type));
  const auto size = [&](const std::string& key) {
    return metadata.integer(std::string(kVision) + key, std::nullopt);
  };
  return {{"model_type", "siglip_vision_model"},
          {"hidden_size", size("embedding_length")},
          {"intermediate_size", size("feed_forward_length")},
          {"num_hidden_layers", size("block_count")},
          {"num_attention_heads", size("attention.head_count")},
          {"image_size", size("image_size")},
          {"patch_size", size("patch_size")},
          {"layer_norm_eps",
           metadata.number(std::string(kVision) + "attention.layer_norm_epsilon", std::nullopt)},
          // Without use_gelu it is the approximation by a sigmoid.
          {"hidden_act",
           metadata.boolean("clip.use_gelu", false) ? "gelu_pytorch_tanh" : "quick_gelu"}};
}

MmprojNames::MmprojNames(const GgufContents& mmproj, const GgufProjector& projector)
    : projector_(projector), are_mlps_swapped_(false) {
  const auto down = mmproj.tensors.find("v.blk.0.ffn_down.weight");
  const auto norm = mmproj.tensors.find("v.blk.0.ln1.weight");
  if (down == mmproj.tensors.end() || norm == mmproj.tensors.end()) return;
  const std::vector<std::int64_t>& shape = down->second.shape;
  if (shape.size() != 2 || norm->second.shape.size() != 1) return;
  are_mlps_swapped_ = shape[1] == norm->second.shape[0] && shape[0] != shape[1];
}

std::string MmprojNames::huggingface_name(std::string_view gguf_name) const {
  const auto or_own = [&](std::string_view prefix, const std::string& name) {
    return name.empty() ? std::string(gguf_name) : std::string(prefix) + name;
  };
  if (std::string name = renamed(gguf_name, projector_.tensors); !name.empty()) return name;
  if (!gguf_name.starts_with(kTowerLayer)) return or_own(kTower, renamed(gguf_name, kTowerTensors));
  const std::size_t dot = gguf_name.find('.', kTowerLayer.size());
  if (dot == std::string_view::npos) return std::string(gguf_name);
  const std::string_view number = gguf_name.substr(kTowerLayer.size(), dot - kTowerLayer.size());
  const std::string_view rest = gguf_name.substr(dot + 1);
  std::string name = are_mlps_swapped_ ? renamed(rest, kSwappedMlp) : "";
  if (name.empty()) name = renamed(rest, kTowerLayerTensors);
  return or_own(std::string(kTower) + "encoder.layers." + std::string(number) + ".", name);
}

Result<std::string> mmproj_preprocessor_json(const std::filesystem::path& mmproj) {
  ASSIGN_OR_RETURN(const GgufModel gguf, open_gguf_model(mmproj, GgufKeys::kNoVocabulary));
  const std::string& file_name = gguf.file_names.front();
  GgufMetadata metadata(*gguf.contents.metadata, file_name);
  check_clip_keys(metadata);
  if (const std::string type = projector_type(metadata); type != "gemma3")
    metadata.fail(ErrorCode::kUnsupported,
                  "clip.projector_type is " + type + ", only gemma3 is supported");
  const std::int64_t side = metadata.integer("clip.vision.image_size", std::nullopt);
  json config = {{"image_processor_type", "Gemma3ImageProcessor"},
                 {"size", {{"height", side}, {"width", side}}}};
  for (const char* key : {"image_mean", "image_std"}) {
    config[key] = metadata.numbers(std::string(kVision) + key);
    if (config[key].empty())
      metadata.fail(ErrorCode::kCorrupt,
                    "metadata \"" + std::string(kVision) + key + "\" is missing");
  }
  if (metadata.error()) return *metadata.error();
  return json_text(config, file_name);
}

}  // namespace troupe
