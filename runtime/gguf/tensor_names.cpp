// Tensor names: llama.cpp's (gguf-py/gguf/tensor_mapping.py) and those of transformers.

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/gguf/architecture.hpp"
#include "runtime/gguf/metadata.hpp"
#include "runtime/gguf/model_files.hpp"

namespace troupe {
namespace {

constexpr std::string_view kLayer = "blk.";
constexpr std::int64_t kMaxMatrices = 1 << 12;  // of one tensor

constexpr std::array<GgufRenaming, 3> kOutside = {{{"token_embd.", "model.embed_tokens."},
                                                   {"output_norm.", "model.norm."},
                                                   {"output.", "lm_head."}}};
constexpr std::array<GgufRenaming, 11> kInLayer = {{{"attn_norm.", "input_layernorm."},
                                                    {"attn_q.", "self_attn.q_proj."},
                                                    {"attn_k.", "self_attn.k_proj."},
                                                    {"attn_v.", "self_attn.v_proj."},
                                                    {"attn_output.", "self_attn.o_proj."},
                                                    {"attn_q_norm.", "self_attn.q_norm."},
                                                    {"attn_k_norm.", "self_attn.k_norm."},
                                                    {"ffn_gate.", "mlp.gate_proj."},
                                                    {"ffn_up.", "mlp.up_proj."},
                                                    {"ffn_down.", "mlp.down_proj."},
                                                    {"ffn_norm.", "post_attention_layernorm."}}};

std::string rename(std::string_view gguf, std::span<const GgufRenaming> renamings) {
  for (const GgufRenaming& each : renamings)
    if (gguf.starts_with(each.gguf))
      return std::string(each.name) + std::string(gguf.substr(each.gguf.size()));
  return {};
}

/// The shape of the tensor that is called `name` elsewhere.
std::vector<std::int64_t> huggingface_shape(std::string_view name,
                                            const GgufArchitecture& architecture,
                                            std::vector<std::int64_t> shape) {
  const auto found = std::ranges::find_if(architecture.tensors, [&](const GgufRenaming& each) {
    return each.shape != GgufShape::kSame && name.find(each.name) != std::string_view::npos;
  });
  if (found == architecture.tensors.end()) return shape;
  if (found->shape == GgufShape::kRow && shape.size() == 1) shape.insert(shape.begin(), 1);
  if (found->shape == GgufShape::kConvolution && shape.size() == 2)
    shape.insert(shape.begin() + 1, 1);
  if (found->shape == GgufShape::kVector && shape.size() == 2) shape = {shape[0] * shape[1]};
  return shape;
}

/// The name, with an asterisk for the index of a stacked matrix.
std::string huggingface_name(std::string_view gguf_name, const GgufArchitecture& architecture) {
  if (!gguf_name.starts_with(kLayer)) {
    std::string renamed = rename(gguf_name, architecture.outside);
    if (renamed.empty()) renamed = rename(gguf_name, kOutside);
    return renamed.empty() ? std::string(gguf_name) : renamed;
  }
  const std::size_t dot = gguf_name.find('.', kLayer.size());
  if (dot == std::string_view::npos) return std::string(gguf_name);
  const std::string_view rest = gguf_name.substr(dot + 1);
  std::string renamed = rename(rest, architecture.tensors);
  if (renamed.empty()) renamed = rename(rest, kInLayer);
  if (renamed.empty()) return std::string(gguf_name);
  return "model.layers." + std::string(gguf_name.substr(kLayer.size(), dot - kLayer.size())) + "." +
         renamed;
}

/// Rows per head in q and k; 0 for all other tensors.
std::int64_t interleaved_head_dim(std::string_view name, const GgufArchitecture& architecture,
                                  const nlohmann::json& metadata,
                                  std::span<const std::int64_t> shape) {
  const bool is_q = name.find(".self_attn.q_proj.") != std::string_view::npos;
  const bool is_k = name.find(".self_attn.k_proj.") != std::string_view::npos;
  if (!architecture.interleaves_heads || (!is_q && !is_k) || shape.empty()) return 0;
  GgufMetadata fields(metadata, "");
  const std::string key = std::string(architecture.name) + ".attention.head_count";
  const std::int64_t num_heads = fields.integer(key, 1);
  const std::int64_t count = is_q ? num_heads : num_gguf_kv_heads(fields, key + "_kv", num_heads);
  // If heads do not divide the rows, the shape is rejected later.
  return count > 0 && shape.front() % (2 * count) == 0 ? shape.front() / count : 0;
}

}  // namespace

Result<std::vector<GgufWeight>> huggingface_weights(std::string_view gguf_name,
                                                    const GgufTensor& tensor,
                                                    const GgufArchitecture& architecture,
                                                    const nlohmann::json& metadata,
                                                    std::string_view file_name) {
  std::vector<GgufWeight> weights;
  if (architecture.has_rope_divisors && gguf_name == kRopeDivisors) return weights;
  if (architecture.has_long_rope &&
      (gguf_name == kShortRopeDivisors || gguf_name == kLongRopeDivisors))
    return weights;
  std::string name = huggingface_name(gguf_name, architecture);
  const std::size_t asterisk = name.find('*');
  if (asterisk == std::string::npos || name == gguf_name) {
    const std::int64_t head_dim = interleaved_head_dim(name, architecture, metadata, tensor.shape);
    std::vector<std::int64_t> shape = huggingface_shape(name, architecture, tensor.shape);
    weights.push_back({std::move(name), std::move(shape), tensor.bytes, head_dim});
    return weights;
  }
  const std::int64_t count = tensor.shape.empty() ? 0 : tensor.shape.front();
  const std::size_t num_dims = name.ends_with(".bias") ? 2 : 3;
  if (tensor.shape.size() != num_dims || count > kMaxMatrices || tensor.bytes.empty())
    return Error{ErrorCode::kCorrupt, std::string(file_name) + ": tensor \"" +
                                          std::string(gguf_name) + "\" is not a stack of 1 to " +
                                          std::to_string(kMaxMatrices) + " matrices"};
  const std::size_t num_bytes = tensor.bytes.size() / static_cast<std::size_t>(count);
  for (std::int64_t i = 0; i < count; ++i)
    weights.push_back({name.substr(0, asterisk) + std::to_string(i) + name.substr(asterisk + 1),
                       {tensor.shape.begin() + 1, tensor.shape.end()},
                       tensor.bytes.subspan(static_cast<std::size_t>(i) * num_bytes, num_bytes)});
  return weights;
}

}  // namespace troupe
