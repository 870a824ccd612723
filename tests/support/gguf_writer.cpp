#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/chat/chat_renderer.hpp"
#include "runtime/models/half_floats.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/quantize.hpp"
#include "runtime/models/registry.hpp"
#include "tests/support/gguf_writer.hpp"

namespace troupe {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::size_t kAlignment = 32;

template <class T>
void append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void append_text(std::string& to, std::string_view text) {
  append(to, std::uint64_t{text.size()});
  to += text;
}
void pad(std::string& to) { to.resize((to.size() + kAlignment - 1) / kAlignment * kAlignment); }

json read_json(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return json::parse(file);
}

/// One group of 32 as a block.
void append_block(std::string& to, GgmlType type, std::span<const float> weights) {
  std::array<std::int8_t, 32> values{};
  const QuantizedType numbers =
      type == GgmlType::kQ8_0 ? QuantizedType::kInt8 : QuantizedType::kInt4;
  const GroupScale scale = quantize_group(numbers, weights, values.data());
  append(to, narrow_to_f16(scale.scale));
  if (type == GgmlType::kQ8_0) {
    for (const std::int8_t value : values) append(to, value);
    return;
  }
  for (std::size_t i = 0; i < 16; ++i)
    append(to, static_cast<std::uint8_t>((values[i] + 8) | (values[i + 16] + 8) << 4));
}

/// The name in a folder of the language model alone; empty: it is not the language model's.
std::string text_name(const std::string& name) {
  constexpr std::string_view kText = "language_model.";
  if (name.starts_with(kText)) return name.substr(kText.size());
  return name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector.") ? ""
                                                                                         : name;
}

using Renamings = std::vector<std::pair<std::string_view, std::string_view>>;

/// Tensors that the converters name otherwise in files of some architectures.
Renamings own_names(std::string_view architecture) {
  if (architecture == "gemma2" || architecture == "gemma3" || architecture == "olmo2")
    return {{"post_attention_layernorm.", "post_attention_norm."},
            {"pre_feedforward_layernorm.", "ffn_norm."},
            {"post_feedforward_layernorm.", "post_ffw_norm."}};
  if (architecture == "glm4")
    return {{"post_self_attn_layernorm.", "post_attention_norm."},
            {"post_mlp_layernorm.", "post_ffw_norm."},
            {"mlp.gate_up_proj.", "ffn_up."}};
  if (architecture == "phi3")
    return {{"self_attn.qkv_proj.", "attn_qkv."}, {"mlp.gate_up_proj.", "ffn_up."}};
  if (architecture == "qwen2moe")
    return {{"mlp.shared_expert_gate.", "ffn_gate_inp_shexp."},
            {"mlp.shared_expert.gate_proj.", "ffn_gate_shexp."},
            {"mlp.shared_expert.up_proj.", "ffn_up_shexp."},
            {"mlp.shared_expert.down_proj.", "ffn_down_shexp."}};
  if (architecture == "gpt-oss")
    return {{"post_attention_layernorm.", "post_attention_norm."},
            {"self_attn.sinks", "attn_sinks.weight"},
            {"mlp.router.", "ffn_gate_inp."}};
  if (architecture == "deepseek2")
    return {{"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
            {"self_attn.q_a_proj.", "attn_q_a."},
            {"self_attn.q_a_layernorm.", "attn_q_a_norm."},
            {"self_attn.q_b_proj.", "attn_q_b."},
            {"self_attn.kv_a_proj_with_mqa.", "attn_kv_a_mqa."},
            {"self_attn.kv_a_layernorm.", "attn_kv_a_norm."},
            {"self_attn.kv_b_proj.", "attn_kv_b."},
            {"mlp.shared_experts.gate_proj.", "ffn_gate_shexp."},
            {"mlp.shared_experts.up_proj.", "ffn_up_shexp."},
            {"mlp.shared_experts.down_proj.", "ffn_down_shexp."}};
  if (architecture == "granitehybrid")
    return {{"mamba.in_proj.", "ssm_in."},
            {"mamba.conv1d.", "ssm_conv1d."},
            {"mamba.dt_bias", "ssm_dt.bias"},
            {"mamba.A_log", "ssm_a"},
            {"mamba.D", "ssm_d"},
            {"mamba.norm.", "ssm_norm."},
            {"mamba.out_proj.", "ssm_out."},
            {"pre_ff_layernorm.", "ffn_norm."},
            {"feed_forward.gate_proj.", "ffn_gate."},
            {"feed_forward.up_proj.", "ffn_up."},
            {"feed_forward.down_proj.", "ffn_down."},
            {"model.final_layernorm.", "output_norm."}};
  return {};
}

/// The reverse of huggingface_weights; of an expert's matrix without its number.
std::string gguf_name(std::string name, std::string_view architecture) {
  const auto replace = [&](std::string_view from, std::string_view to) {
    const std::size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
  };
  for (const auto& [from, to] : own_names(architecture)) replace(from, to);
  for (const auto& [from, to] :
       std::initializer_list<std::pair<std::string_view, std::string_view>>{
           {"model.layers.", "blk."},
           {"model.embed_tokens.", "token_embd."},
           {"model.norm.", "output_norm."},
           {"lm_head.", "output."},
           {"input_layernorm.", "attn_norm."},
           {"post_attention_layernorm.", "ffn_norm."},
           {"self_attn.q_proj.", "attn_q."},
           {"self_attn.k_proj.", "attn_k."},
           {"self_attn.v_proj.", "attn_v."},
           {"self_attn.o_proj.", "attn_output."},
           {"self_attn.q_norm.", "attn_q_norm."},
           {"self_attn.k_norm.", "attn_k_norm."},
           {"mlp.gate_proj.", "ffn_gate."},
           {"mlp.up_proj.", "ffn_up."},
           {"mlp.down_proj.", "ffn_down."},
           {"block_sparse_moe.", "mlp."},
           {"mlp.gate.", "ffn_gate_inp."},
           {"mlp.experts.gate_proj.", "ffn_gate_exps."},
           {"mlp.experts.up_proj.", "ffn_up_exps."},
           {"mlp.experts.down_proj.", "ffn_down_exps."},
           {"mlp.experts.w1.", "ffn_gate_exps."},
           {"mlp.experts.w3.", "ffn_up_exps."},
           {"mlp.experts.w2.", "ffn_down_exps."}})
    replace(from, to);
  return name;
}

/// Llama 3's scaling (transformers' modeling_rope_utils.py) as the converter stores it.
void add_rope_divisors(GgufWriter& writer, const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  const auto original = static_cast<double>(rope.original_max_positions);
  std::string bytes;
  for (std::int64_t i = 0; i < config.head_dim; i += 2) {
    const double wavelength =
        2 * std::acos(-1.0) *
        std::pow(rope.theta, static_cast<double>(i) / static_cast<double>(config.head_dim));
    double divisor = 1;
    if (wavelength > original / rope.low_freq_factor) {
      divisor = rope.factor;
    } else if (wavelength > original / rope.high_freq_factor) {
      const double smooth = (original / wavelength - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
      divisor = 1 / ((1 - smooth) / rope.factor + smooth);
    }
    append(bytes, static_cast<float>(divisor));
  }
  const std::int64_t shape[] = {config.head_dim / 2};
  writer.add_tensor("rope_freqs.weight", GgmlType::kF32, shape, bytes);
}

/// LongRoPE's factors.
void add_long_rope(GgufWriter& writer, const RopeConfig& rope) {
  writer.add("phi3.rope.scaling.original_context_length",
             static_cast<std::uint32_t>(rope.original_max_positions));
  writer.add("phi3.rope.scaling.attn_factor", static_cast<float>(rope.attention_factor));
  for (const auto& [tensor, divisors] :
       {std::pair("rope_factors_short.weight", &rope.short_divisors),
        {"rope_factors_long.weight", &rope.long_divisors}}) {
    std::string bytes;
    for (const double divisor : *divisors) append(bytes, static_cast<float>(divisor));
    const std::int64_t shape[] = {std::ssize(*divisors)};
    writer.add_tensor(tensor, GgmlType::kF32, shape, bytes);
  }
}

/// What only files of this architecture say.
void add_own_config(GgufWriter& writer, const ModelConfig& config, const std::string& name) {
  const auto integer = [&](std::string_view suffix, std::int64_t value) {
    writer.add(name + "." + std::string(suffix), static_cast<std::uint32_t>(value));
  };
  const auto real = [&](std::string_view suffix, float value) {
    writer.add(name + "." + std::string(suffix), value);
  };
  if (name == "gemma3") {
    integer("attention.sliding_window", *std::ranges::max_element(config.sliding_windows));
    const auto global = std::ranges::find(config.sliding_windows, 0);
    integer("attention.sliding_window_pattern", global - config.sliding_windows.begin() + 1);
    real("rope.freq_base_swa", static_cast<float>(config.sliding_rope.theta));
  } else if (name == "gemma2") {
    integer("attention.sliding_window", config.sliding_windows.front());
    real("attn_logit_softcapping", config.attention_softcap);
    real("final_logit_softcapping", config.logit_softcap);
  } else if (name == "granite") {
    real("attention.scale", config.attention_scale);
    real("embedding_scale", config.embedding_scale);
    real("residual_scale", config.residual_scale);
    real("logit_scale", 1 / config.logit_scale);
  } else if (name == "glm4" || name == "phi3") {
    integer("rope.dimension_count", config.rope.rotary_dim(config.head_dim));
    if (config.rope.kind == RopeKind::kLongRope) add_long_rope(writer, config.rope);
  } else if (name == "qwen2moe") {
    integer("expert_feed_forward_length", config.experts->intermediate_size);
    integer("expert_shared_feed_forward_length", config.experts->shared_size);
  } else if (name == "qwen3moe") {
    integer("expert_feed_forward_length", config.experts->intermediate_size);
  } else if (name == "gpt-oss") {
    integer("expert_feed_forward_length", config.experts->intermediate_size);
    integer("attention.sliding_window", config.sliding_windows.front());
  } else if (name == "deepseek2") {
    integer("rope.dimension_count", config.latent->rotary_dim);
    real("rope.scaling.yarn_log_multiplier", 0.1f);
    integer("attention.kv_lora_rank", config.latent->kv_rank);
    integer("attention.q_lora_rank", config.latent->q_rank);
    integer("attention.key_length_mla", config.latent->plain_dim + config.latent->rotary_dim);
    integer("attention.value_length_mla", config.latent->value_dim);
    integer("expert_feed_forward_length", config.experts->intermediate_size);
    integer("expert_shared_count", config.experts->shared_size / config.experts->intermediate_size);
    integer("leading_dense_block_count",
            std::ranges::find(config.experts->layers, true) - config.experts->layers.begin());
    integer("expert_group_count", config.experts->num_groups);
    integer("expert_group_used_count", config.experts->num_chosen_groups);
    real("expert_weights_scale", config.experts->weight_scale);
    writer.add_flag(name + ".expert_weights_norm", config.experts->normalises_weights);
    integer("expert_gating_func", 2);
  } else if (name == "granitehybrid") {
    const StateSpaceConfig& states = *config.state_space;
    std::vector<std::int32_t> kv_heads;
    for (const bool has_states : states.layers)
      kv_heads.push_back(has_states ? 0 : static_cast<std::int32_t>(config.num_kv_heads));
    writer.add(name + ".attention.head_count_kv", kv_heads);
    integer("rope.dimension_count", config.rope.rotary_dim(config.head_dim));
    writer.add_flag(name + ".rope.scaling.finetuned", true);
    integer("ssm.conv_kernel", states.conv_width);
    integer("ssm.inner_size", states.num_heads * states.head_dim);
    integer("ssm.state_size", states.state_size);
    integer("ssm.time_step_rank", states.num_heads);
    integer("ssm.group_count", states.num_groups);
  }
}

/// Experts of gpt-oss as the converters store them: gates, `up` and what follows, each of all
/// experts in one tensor; as f32, or in blocks where they are. False: it is another tensor.
bool add_stacked_experts(GgufWriter& writer, const Checkpoint& checkpoint, const std::string& name,
                         const TensorView& tensor) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  const std::size_t at = name.find(kExperts);
  if (at == std::string::npos || name.ends_with(".weight")) return false;
  const std::string matrix = name.substr(at + kExperts.size());
  if (matrix.ends_with("_scales")) return true;
  const std::string prefix = "blk." + name.substr(std::string_view("model.layers.").size(),
                                                  at - std::string_view("model.layers.").size());
  const bool is_gate_up = matrix.starts_with("gate_up_proj");
  const std::int64_t step = is_gate_up ? 2 : 1;
  const bool is_bias = matrix.ends_with("_bias");
  const bool is_blocks = matrix.ends_with("_blocks");
  const std::int64_t num_experts = tensor.shape[0];
  const std::int64_t stored_rows = is_blocks ? tensor.shape[1] : tensor.shape.back();
  const std::int64_t num_cols = is_bias ? 1 : is_blocks ? tensor.shape[2] * 32 : tensor.shape[1];
  const std::byte* const scales =
      is_blocks ? checkpoint.find(name.substr(0, name.size() - 7) + "_scales")->view.bytes.data()
                : nullptr;
  const TensorView flat{tensor.type, {tensor.num_elements()}, tensor.bytes};
  for (std::int64_t first = 0; first < step; ++first) {
    std::string bytes;
    for (std::int64_t expert = 0; expert < num_experts; ++expert)
      for (std::int64_t row = first; row < stored_rows; row += step) {
        if (is_blocks) {
          const std::int64_t begin = (expert * stored_rows + row) * num_cols / 32;
          for (std::int64_t block = begin; block < begin + num_cols / 32; ++block) {
            const auto nibble = [&](std::int64_t i) {
              return std::to_integer<int>(
                         tensor.bytes[static_cast<std::size_t>(block * 16 + i / 2)]) >>
                         (i % 2 * 4) &
                     15;
            };
            bytes += static_cast<char>(scales[block]);
            for (std::int64_t i = 0; i < 16; ++i)
              bytes += static_cast<char>(nibble(i) | nibble(i + 16) << 4);
          }
          continue;
        }
        for (std::int64_t col = 0; col < num_cols; ++col) {
          float value = 0;
          widen_row(flat, 0, (expert * num_cols + col) * stored_rows + row, 1, &value);
          append(bytes, value);
        }
      }
    std::vector<std::int64_t> shape = {num_experts, stored_rows / step};
    if (!is_bias) shape.push_back(num_cols);
    const std::string part = !is_gate_up  ? "ffn_down_exps"
                             : first == 0 ? "ffn_gate_exps"
                                          : "ffn_up_exps";
    writer.add_tensor(prefix + "." + part + (is_bias ? ".bias" : ".weight"),
                      is_blocks ? GgmlType::kMXFP4 : GgmlType::kF32, shape, bytes);
  }
  return true;
}

void add_config(GgufWriter& writer, const ModelConfig& config, const std::string& name) {
  const auto key = [&](std::string_view suffix) { return name + "." + std::string(suffix); };
  const auto number = [&](std::string_view suffix, std::int64_t value) {
    writer.add(key(suffix), static_cast<std::uint32_t>(value));
  };
  writer.add("general.architecture", name);
  number("context_length", config.max_model_len);
  number("embedding_length", config.hidden_size);
  number("block_count", config.num_layers);
  number("feed_forward_length", config.intermediate_size);
  number("attention.head_count", config.num_heads);
  if (name != "granitehybrid") number("attention.head_count_kv", config.num_kv_heads);
  number("attention.key_length", config.head_dim);
  number("attention.value_length", config.head_dim);
  writer.add(key("attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
  writer.add(key("rope.freq_base"), static_cast<float>(config.rope.theta));
  if (config.rope.kind == RopeKind::kLinear) {
    writer.add(key("rope.scaling.type"), "linear");
    writer.add(key("rope.scaling.factor"), static_cast<float>(config.rope.factor));
  }
  if (config.rope.kind == RopeKind::kYarn) {
    writer.add(key("rope.scaling.type"), "yarn");
    writer.add(key("rope.scaling.factor"), static_cast<float>(config.rope.factor));
    number("rope.scaling.original_context_length", config.rope.original_max_positions);
  }
  if (config.rope.kind == RopeKind::kLlama3) add_rope_divisors(writer, config);
  if (config.experts) {
    number("expert_count", config.experts->num_experts);
    number("expert_used_count", config.experts->num_chosen);
  }
  add_own_config(writer, config, name);
}

void add_tokenizer(GgufWriter& writer, const fs::path& folder, const std::string& architecture) {
  const json tokenizer = read_json(folder / "tokenizer.json");
  const json& model = tokenizer.at("model");
  std::vector<std::string> tokens(
      static_cast<std::size_t>(load_model_config(folder).value().vocab_size));
  std::vector<std::int32_t> types(tokens.size(), 5);
  std::vector<float> scores(tokens.size(), 0);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = "[PAD" + std::to_string(i) + "]";
  const auto add = [&](std::size_t id, const std::string& token, std::int32_t type) {
    tokens.at(id) = token;
    types.at(id) = type;
  };
  for (const auto& [token, id] : model.at("vocab").items())
    add(id.get<std::size_t>(), token, token.size() == 6 && token.starts_with("<0x") ? 6 : 1);
  for (const json& token : tokenizer.at("added_tokens"))
    add(token.at("id"), token.at("content"), token.at("special").get<bool>() ? 3 : 4);
  std::vector<std::string> merges;
  for (const json& merge : model.at("merges")) {
    // "left right", or a pair.
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
    std::string token = merges.back();
    token.erase(token.find(' ', 1), 1);
    const auto id = model["vocab"].find(token);
    if (id == model["vocab"].end()) throw std::runtime_error("no token " + token);
    float& score = scores.at(id->get<std::size_t>());
    if (score == 0) score = -static_cast<float>(merges.size());
  }
  const bool is_sentencepiece =
      architecture == "gemma2" || architecture == "gemma3" || architecture == "phi3";
  writer.add("tokenizer.ggml.model", is_sentencepiece ? "llama" : "gpt2");
  writer.add("tokenizer.ggml.tokens", tokens);
  writer.add("tokenizer.ggml.token_type", types);
  if (is_sentencepiece) {
    writer.add("tokenizer.ggml.scores", scores);
    writer.add_flag("tokenizer.ggml.add_space_prefix", false);
  } else {
    writer.add("tokenizer.ggml.pre", architecture == "llama" ? "llama-bpe" : "qwen2");
    writer.add("tokenizer.ggml.merges", merges);
  }
  const json config = read_json(folder / "tokenizer_config.json");
  for (const auto& [role, name] : {std::pair{"bos_token", "bos"}, {"eos_token", "eos"}}) {
    if (!config.contains(role) || config[role].is_null()) continue;
    const std::string token = config[role].is_string() ? config[role] : config[role].at("content");
    const auto id = std::ranges::find(tokens, token) - tokens.begin();
    writer.add("tokenizer.ggml." + std::string(name) + "_token_id", static_cast<std::uint32_t>(id));
  }
  const ChatFiles chat = load_chat_files(folder).value();
  if (const auto found = chat.templates.find("default"); found != chat.templates.end())
    writer.add("tokenizer.chat_template", found->second);
}

/// An expert's number, and the name of its matrix without it; nothing for all other tensors.
std::optional<std::pair<std::int64_t, std::string>> expert_in(const std::string& name) {
  constexpr std::string_view kExperts = ".experts.";
  const std::size_t at = name.find(kExperts);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t number = at + kExperts.size();
  const std::size_t dot = name.find('.', number);
  return std::pair(std::stoll(name.substr(number, dot - number)),
                   name.substr(0, number - 1) + name.substr(dot));
}
/// -1: outside of the layers.
std::int64_t layer_of(const std::string& name) {
  constexpr std::string_view kLayers = "model.layers.";
  return name.starts_with(kLayers) ? std::stoll(name.substr(kLayers.size())) : -1;
}

/// The same matrix of all experts.
struct Stack {
  GgmlType type = GgmlType::kF32;
  std::vector<std::int64_t> shape;
  std::map<std::int64_t, std::string> matrices;
};

/// Rows of q and k in the order of llama.cpp's rotation.
std::int64_t row_in_file(std::int64_t row, std::int64_t head_dim) {
  const std::int64_t in_head = row % head_dim;
  return row - in_head + in_head % (head_dim / 2) * 2 + in_head / (head_dim / 2);
}

}  // namespace

void GgufWriter::begin(std::string_view key, std::uint32_t type) {
  append_text(metadata_, key);
  append(metadata_, type);
  ++num_keys_;
}
void GgufWriter::add(std::string_view key, std::string_view text) {
  begin(key, 8);
  append_text(metadata_, text);
}
void GgufWriter::add(std::string_view key, std::uint32_t number) {
  begin(key, 4);
  append(metadata_, number);
}
void GgufWriter::add(std::string_view key, float number) {
  begin(key, 6);
  append(metadata_, number);
}
void GgufWriter::add_flag(std::string_view key, bool flag) {
  begin(key, 7);
  append(metadata_, static_cast<std::uint8_t>(flag));
}
template <class T>
void GgufWriter::add_array(std::string_view key, std::uint32_t type, const std::vector<T>& values) {
  begin(key, 9);
  append(metadata_, type);
  append(metadata_, std::uint64_t{values.size()});
  for (const T& value : values) {
    if constexpr (std::is_same_v<T, std::string>)
      append_text(metadata_, value);
    else
      append(metadata_, value);
  }
}
void GgufWriter::add(std::string_view key, const std::vector<std::string>& texts) {
  add_array(key, 8, texts);
}
void GgufWriter::add(std::string_view key, const std::vector<float>& numbers) {
  add_array(key, 6, numbers);
}
void GgufWriter::add(std::string_view key, const std::vector<std::int32_t>& numbers) {
  add_array(key, 5, numbers);
}

void GgufWriter::add_tensor(std::string_view name, GgmlType type,
                            std::span<const std::int64_t> shape, std::string_view bytes) {
  append_text(entries_, name);
  append(entries_, static_cast<std::uint32_t>(shape.size()));
  for (std::size_t i = shape.size(); i > 0; --i)
    append(entries_, static_cast<std::uint64_t>(shape[i - 1]));
  append(entries_, static_cast<std::uint32_t>(type));
  append(entries_, std::uint64_t{data_.size()});
  ++num_tensors_;
  data_ += bytes;
  pad(data_);
}

std::string GgufWriter::bytes() const {
  std::string file = "GGUF";
  append(file, version_);
  append(file, num_tensors_);
  append(file, num_keys_);
  file += metadata_ + entries_;
  pad(file);
  return file + data_;
}

std::string gguf_of_model(const fs::path& folder, GgmlType type,
                          const std::function<void(GgufWriter&)>& change) {
  const ModelConfig config = load_model_config(folder).value();
  const GgufArchitecture* const architecture = find_architecture(config.architecture)->gguf;
  const std::string name(architecture == nullptr ? "gemma3" : architecture->name);
  GgufWriter writer;
  add_config(writer, config, name);
  add_tokenizer(writer, folder, name);
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  std::map<std::string, Stack> stacks;
  for (const auto& [stored_name, tensor] : checkpoint.tensors()) {
    const std::string tensor_name = text_name(stored_name);
    if (tensor_name.empty() || layer_of(tensor_name) >= config.num_layers) continue;
    if (config.tie_word_embeddings && tensor_name.starts_with("lm_head.")) continue;
    if (name == "gpt-oss" && add_stacked_experts(writer, checkpoint, tensor_name, tensor.view))
      continue;
    std::vector<std::int64_t> shape = tensor.view.shape;
    if (tensor_name.ends_with(".conv1d.weight")) shape.erase(shape.begin() + 1);
    const TensorView view{tensor.view.type, shape, tensor.view.bytes};
    const bool is_matrix = shape.size() == 2;
    const std::int64_t num_rows = is_matrix ? shape[0] : 1;
    const std::int64_t num_cols = shape.back();
    const bool interleaves =
        (name == "llama" || name.starts_with("granite") || name == "smollm3") &&
        (tensor_name.find("q_proj.") != std::string::npos ||
         tensor_name.find("k_proj.") != std::string::npos);
    const bool as_blocks = type != GgmlType::kF32 && is_matrix &&
                           tensor_name.find("embed_tokens") == std::string::npos &&
                           tensor_name.find(".gate.") == std::string::npos &&
                           !tensor_name.starts_with("lm_head.");
    std::vector<float> values(static_cast<std::size_t>(num_rows * num_cols));
    for (std::int64_t row = 0; row < num_rows; ++row)
      widen_row(
          view, row, 0, num_cols,
          values.data() +
              (interleaves && is_matrix ? row_in_file(row, config.head_dim) : row) * num_cols);
    if (interleaves && !is_matrix) {  // a bias
      const std::vector<float> in_order = values;
      for (std::int64_t i = 0; i < num_cols; ++i)
        values[static_cast<std::size_t>(row_in_file(i, config.head_dim))] =
            in_order[static_cast<std::size_t>(i)];
    }
    if (name.starts_with("gemma") && tensor_name.find("norm.") != std::string::npos)
      for (float& value : values) value += 1;
    if (tensor_name.ends_with(".A_log"))
      for (float& value : values) value = -std::exp(value);
    if (tensor_name.ends_with(".A_log") || tensor_name.ends_with(".mamba.D")) shape.push_back(1);
    if (tensor_name.ends_with(".mamba.norm.weight"))
      shape = {config.state_space->num_groups, num_cols / config.state_space->num_groups};
    std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    if (as_blocks) {
      bytes.clear();
      for (std::size_t i = 0; i < values.size(); i += 32)
        append_block(bytes, type, std::span(values).subspan(i, 32));
    }
    const GgmlType stored = as_blocks ? type : GgmlType::kF32;
    if (const auto expert = expert_in(tensor_name)) {
      Stack& stack = stacks[gguf_name(expert->second, name)];
      stack.type = stored;
      stack.shape = shape;
      stack.matrices[expert->first] = bytes;
      continue;
    }
    // The converters drop dimensions of 1.
    const std::span stored_shape = is_matrix && num_rows == 1 ? std::span(shape).subspan(1) : shape;
    writer.add_tensor(gguf_name(tensor_name, name), stored, stored_shape, bytes);
  }
  for (auto& [stack_name, stack] : stacks) {
    std::string bytes;
    for (const auto& [expert, matrix] : stack.matrices) bytes += matrix;
    stack.shape.insert(stack.shape.begin(), std::ssize(stack.matrices));
    writer.add_tensor(stack_name, stack.type, stack.shape, bytes);
  }
  if (change) change(writer);
  return writer.bytes();
}

namespace {

void add_vision_config(GgufWriter& writer, const ModelConfig& config, const fs::path& folder) {
  const VisionConfig& vision = *config.vision;
  const auto number = [&](const std::string& key, std::int64_t value) {
    writer.add("clip.vision." + key, static_cast<std::uint32_t>(value));
  };
  writer.add_flag("clip.has_vision_encoder", true);
  writer.add_flag("clip.use_gelu", true);
  number("image_size", vision.image_size);
  number("patch_size", vision.patch_size);
  number("embedding_length", vision.hidden_size);
  number("feed_forward_length", vision.intermediate_size);
  number("block_count", vision.num_layers);
  number("attention.head_count", vision.num_heads);
  number("projection_dim", config.hidden_size);
  const auto squares = static_cast<std::int64_t>(
      std::lround(std::sqrt(static_cast<double>(config.image_tokens->per_image))));
  number("projector.scale_factor", vision.patches_per_side() / squares);
  writer.add("clip.vision.attention.layer_norm_epsilon", vision.layer_norm_eps);
  const json processor = read_json(folder / "preprocessor_config.json");
  for (const char* key : {"image_mean", "image_std"})
    writer.add("clip.vision." + std::string(key), processor.at(key).get<std::vector<float>>());
}

/// The reverse of MmprojNames; empty: it is not the encoder's.
std::string mmproj_name(std::string name, bool swaps_mlp) {
  bool is_found = false;
  const auto replace = [&](std::string_view from, std::string_view to) {
    const std::size_t at = name.find(from);
    if (at == std::string::npos) return;
    name.replace(at, from.size(), to);
    is_found = true;
  };
  for (const auto& [from, to] :
       std::initializer_list<std::pair<std::string_view, std::string_view>>{
           {"vision_tower.vision_model.encoder.layers.", "v.blk."},
           {"vision_tower.vision_model.embeddings.patch_embedding.", "v.patch_embd."},
           {"vision_tower.vision_model.embeddings.position_embedding.", "v.position_embd."},
           {"vision_tower.vision_model.post_layernorm.", "v.post_ln."},
           {"multi_modal_projector.mm_input_projection_weight", "mm.input_projection.weight"},
           {"multi_modal_projector.mm_soft_emb_norm.", "mm.soft_emb_norm."},
           {".layer_norm1.", ".ln1."},
           {".layer_norm2.", ".ln2."},
           {".self_attn.q_proj.", ".attn_q."},
           {".self_attn.k_proj.", ".attn_k."},
           {".self_attn.v_proj.", ".attn_v."},
           {".self_attn.out_proj.", ".attn_out."}})
    replace(from, to);
  replace(".mlp.fc1.", swaps_mlp ? ".ffn_down." : ".ffn_up.");
  replace(".mlp.fc2.", swaps_mlp ? ".ffn_up." : ".ffn_down.");
  return is_found ? name : "";
}

}  // namespace

std::string mmproj_of_model(const fs::path& folder, const MmprojChanges& changes) {
  const ModelConfig config = load_model_config(folder).value();
  GgufWriter writer;
  writer.add("general.architecture", "clip");
  writer.add("clip.projector_type", changes.projector);
  add_vision_config(writer, config, folder);
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  for (const auto& [tensor_name, tensor] : checkpoint.tensors()) {
    if (!text_name(tensor_name).empty()) continue;
    const std::string name = mmproj_name(tensor_name, changes.swaps_mlp);
    if (name.empty()) throw std::runtime_error("unknown tensor " + tensor_name);
    const std::int64_t num_values = tensor.view.num_elements();
    TensorView row = tensor.view;
    row.shape = {1, num_values};
    std::vector<float> values(static_cast<std::size_t>(num_values));
    widen_row(row, 0, 0, num_values, values.data());
    if (name.starts_with("mm.soft_emb_norm."))
      for (float& value : values) value += 1;
    writer.add_tensor(
        name, GgmlType::kF32, tensor.view.shape,
        {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }
  if (changes.add) changes.add(writer);
  return writer.bytes();
}

}  // namespace troupe
