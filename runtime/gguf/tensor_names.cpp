// The names of tensors: llama.cpp's (gguf-py/gguf/tensor_mapping.py) and those of transformers.

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "runtime/gguf/metadata.hpp"
#include "runtime/gguf/model_files.hpp"

namespace troupe {
namespace {

struct Renaming {
  std::string_view gguf;
  std::string_view name;
};
constexpr std::array<Renaming, 3> kOutside = {{{"token_embd.", "model.embed_tokens."},
                                               {"output_norm.", "model.norm."},
                                               {"output.", "lm_head."}}};
constexpr std::array<Renaming, 11> kInLayer = {{{"attn_norm.", "input_layernorm."},
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
/// Gemma 3 has norms behind its blocks too.
constexpr std::array<Renaming, 3> kInGemma3Layer = {
    {{"ffn_norm.", "pre_feedforward_layernorm."},
     {"post_attention_norm.", "post_attention_layernorm."},
     {"post_ffw_norm.", "post_feedforward_layernorm."}}};

template <std::size_t kSize>
std::string rename(std::string_view gguf, const std::array<Renaming, kSize>& renamings) {
  for (const auto& [from, to] : renamings)
    if (gguf.starts_with(from)) return std::string(to) + std::string(gguf.substr(from.size()));
  return {};
}

}  // namespace

GgufTensorName huggingface_tensor(std::string_view gguf_name, const nlohmann::json& metadata,
                                  std::span<const std::int64_t> shape) {
  GgufMetadata fields(metadata, "");
  const std::string architecture = fields.text("general.architecture", "");
  if (architecture == "llama" && gguf_name == kRopeDivisors) return {};
  GgufTensorName known{std::string(gguf_name)};
  constexpr std::string_view kLayer = "blk.";
  if (!gguf_name.starts_with(kLayer)) {
    if (std::string renamed = rename(gguf_name, kOutside); !renamed.empty()) known.name = renamed;
    return known;
  }
  const std::size_t dot = gguf_name.find('.', kLayer.size());
  if (dot == std::string_view::npos) return known;
  const std::string_view rest = gguf_name.substr(dot + 1);
  std::string renamed;
  if (architecture == "gemma3") renamed = rename(rest, kInGemma3Layer);
  if (renamed.empty()) renamed = rename(rest, kInLayer);
  if (renamed.empty()) return known;
  known.name = "model.layers." + std::string(gguf_name.substr(kLayer.size(), dot - kLayer.size())) +
               "." + renamed;
  const bool is_q = rest.starts_with("attn_q.");
  if (architecture != "llama" || (!is_q && !rest.starts_with("attn_k.")) || shape.empty())
    return known;
  const std::int64_t num_heads = fields.integer("llama.attention.head_count", 1);
  const std::int64_t count =
      is_q ? num_heads : fields.integer("llama.attention.head_count_kv", num_heads);
  // Where heads do not divide the rows the shape is refused as wrong later.
  if (count > 0 && shape.front() % (2 * count) == 0)
    known.interleaved_head_dim = shape.front() / count;
  return known;
}

}  // namespace troupe
