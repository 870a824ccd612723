// Derives config.json, generation_config.json and tokenizer_config.json from the metadata of
// llama.cpp's converters.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/gguf/architecture.hpp"
#include "runtime/gguf/gguf_model.hpp"
#include "runtime/gguf/metadata.hpp"
#include "runtime/gguf/model_files.hpp"

namespace troupe {
namespace {

using nlohmann::json;

/// End-of-generation tokens of the various model families (llama.cpp's "EOG" tokens).
constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>", "<|end|>",
    "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<EOT>", "_<EOT>",
    "[EOT]", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|return|>", "<|call|>", "<|calls|>",
    "<|flush|>",
    // Fill-in-the-middle code ends where the next file would begin.
    "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"};

/// Divisors of the rotary frequencies of a head: one F32 for every two elements that are rotated.
json frequency_divisors(const GgufContents& gguf, std::string_view name, std::int64_t rotary_dim,
                        GgufMetadata& metadata) {
  const auto found = gguf.tensors.find(name);
  if (found == gguf.tensors.end()) {
    metadata.fail(ErrorCode::kCorrupt, "tensor \"" + std::string(name) + "\" is missing");
    return {};
  }
  const GgufTensor& tensor = found->second;
  const std::size_t num_divisors = tensor.bytes.size() / sizeof(float);
  if (tensor.type != GgmlType::kF32 || std::cmp_not_equal(2 * num_divisors, rotary_dim)) {
    metadata.fail(ErrorCode::kUnsupported, "tensor \"" + std::string(name) +
                                               "\" is not one F32 per two of a head's " +
                                               std::to_string(rotary_dim));
    return {};
  }
  std::vector<float> divisors(num_divisors);
  std::memcpy(divisors.data(), tensor.bytes.data(), tensor.bytes.size());
  return divisors;
}

/// The elements of a head that are rotated.
std::int64_t rotary_dim_of(const GgufArchitecture& architecture, GgufMetadata& metadata,
                           std::int64_t head_dim) {
  if (!architecture.rotates_part) return head_dim;
  const std::string key = std::string(architecture.name) + ".rope.dimension_count";
  const std::int64_t rotary_dim = metadata.integer(key, head_dim);
  if (rotary_dim <= 0 || rotary_dim > head_dim)
    metadata.fail(ErrorCode::kCorrupt, "metadata \"" + key + "\" is " + std::to_string(rotary_dim) +
                                           ", a head has " + std::to_string(head_dim) +
                                           " elements");
  return rotary_dim;
}

/// partial_rotary_factor: its product with head_dim is rotary_dim when rounded down.
double rotated_share(std::int64_t rotary_dim, std::int64_t head_dim) {
  const double share = static_cast<double>(rotary_dim) / static_cast<double>(head_dim);
  return rotary_dim == head_dim ? share : std::nextafter(share, 1.0);
}

/// LongRoPE, whose factors are tensors.
json long_rope_parameters(const GgufContents& gguf, const std::string& prefix,
                          GgufMetadata& metadata, std::int64_t rotary_dim, json rope) {
  rope["rope_type"] = "longrope";
  rope["short_factor"] = frequency_divisors(gguf, kShortRopeDivisors, rotary_dim, metadata);
  rope["long_factor"] = frequency_divisors(gguf, kLongRopeDivisors, rotary_dim, metadata);
  rope["attention_factor"] = metadata.number(prefix + "rope.scaling.attn_factor", 1);
  return rope;
}

/// As in llama.cpp: a factor without a type scales linearly, "none" does not scale.
json rope_parameters(const GgufContents& gguf, const GgufArchitecture& architecture,
                     GgufMetadata& metadata, std::int64_t rotary_dim) {
  const std::string prefix = std::string(architecture.name) + ".";
  const std::string scaling = prefix + "rope.scaling.";
  json rope = {{"rope_type", "default"},
               {"rope_theta", metadata.number(prefix + "rope.freq_base", architecture.rope_theta)}};
  // Llama 3's scaling is stored this way.
  if (architecture.has_rope_divisors && gguf.tensors.contains(kRopeDivisors))
    rope["frequency_divisors"] = frequency_divisors(gguf, kRopeDivisors, rotary_dim, metadata);
  if (architecture.has_long_rope &&
      (gguf.tensors.contains(kShortRopeDivisors) || gguf.tensors.contains(kLongRopeDivisors)))
    return long_rope_parameters(gguf, prefix, metadata, rotary_dim, std::move(rope));
  const std::string type = metadata.text(scaling + "type", "linear");
  if (type != "none" && type != "linear" && type != "yarn")
    metadata.fail(ErrorCode::kUnsupported,
                  scaling + "type is " + type + ", supported are none, linear, yarn");
  // The second is the older name of the first; 0 means not set.
  const double given =
      metadata.number(scaling + "factor", metadata.number(prefix + "rope.scale_linear", 0));
  const double factor = given == 0 ? 1 : given;
  const double attention_factor = metadata.number(scaling + "attn_factor", 1) *
                                  metadata.number(scaling + "yarn_attn_factor", 1);
  if (type != "yarn") {
    if (attention_factor != 1)
      metadata.fail(ErrorCode::kUnsupported, scaling + "attn_factor is " +
                                                 std::to_string(attention_factor) +
                                                 ", without yarn only 1 is supported");
    if (type == "none" || factor == 1) return rope;
    rope["rope_type"] = "linear";
    rope["factor"] = factor;
    return rope;
  }
  if (metadata.number(scaling + "yarn_ext_factor", 1) != 1)
    metadata.fail(ErrorCode::kUnsupported, scaling + "yarn_ext_factor is not 1");
  rope["rope_type"] = "yarn";
  rope["factor"] = factor;
  rope["original_max_position_embeddings"] =
      metadata.integer(scaling + "original_context_length",
                       metadata.integer(prefix + "context_length", std::nullopt));
  rope["attention_factor"] = attention_factor * (factor > 1 ? 1 + 0.1 * std::log(factor) : 1);
  rope["beta_fast"] = metadata.number(scaling + "yarn_beta_fast", 32);
  rope["beta_slow"] = metadata.number(scaling + "yarn_beta_slow", 1);
  return rope;
}

/// Layers may be of several kinds.
bool is_in_a_layer(const GgufContents& gguf, std::string_view tensor) {
  return std::ranges::any_of(gguf.tensors, [&](const auto& each) {
    const std::string& name = each.first;
    return name.starts_with("blk.") && name.ends_with(tensor) &&
           name[name.size() - tensor.size() - 1] == '.';
  });
}

}  // namespace

std::int64_t num_gguf_kv_heads(GgufMetadata& metadata, const std::string& key,
                               std::int64_t num_heads) {
  if (!metadata.is_list(key)) return metadata.integer(key, num_heads);
  std::int64_t found = 0;
  for (const double count : metadata.numbers(key)) {
    if (count == 0) continue;
    if (!(count >= 1 && count <= static_cast<double>(num_heads)) ||
        (found != 0 && static_cast<double>(found) != count))
      metadata.fail(ErrorCode::kUnsupported,
                    "metadata \"" + key + "\" differs between layers, or is over " +
                        std::to_string(num_heads) + ", which is not supported");
    if (metadata.error()) return num_heads;
    found = static_cast<std::int64_t>(count);
  }
  return found == 0 ? num_heads : found;
}

Result<json> gguf_config_json(const GgufContents& gguf, const GgufArchitecture& architecture,
                              std::string_view file_name) {
  GgufMetadata metadata(*gguf.metadata, file_name);
  const std::string prefix = std::string(architecture.name) + ".";
  const auto size = [&](const std::string& key) {
    return metadata.integer(prefix + key, std::nullopt);
  };
  const std::int64_t hidden_size = size("embedding_length");
  const std::int64_t num_heads = size("attention.head_count");
  const std::int64_t head_dim = metadata.integer(
      prefix + "attention.key_length", hidden_size / std::max<std::int64_t>(1, num_heads));
  check_architecture_keys(metadata, architecture, head_dim);
  const std::int64_t rotary_dim = rotary_dim_of(architecture, metadata, head_dim);
  const auto embedding = gguf.tensors.find("token_embd.weight");
  if (embedding == gguf.tensors.end() || embedding->second.shape.size() != 2)
    metadata.fail(ErrorCode::kCorrupt, "tensor \"token_embd.weight\" is missing or not a matrix");
  json config = {
      {"hidden_size", hidden_size},
      {"intermediate_size", size("feed_forward_length")},
      {"num_hidden_layers", size("block_count")},
      {"num_attention_heads", num_heads},
      {"num_key_value_heads",
       num_gguf_kv_heads(metadata, prefix + "attention.head_count_kv", num_heads)},
      {"head_dim", head_dim},
      {"max_position_embeddings", size("context_length")},
      {"rms_norm_eps", metadata.number(prefix + "attention.layer_norm_rms_epsilon", std::nullopt)},
      {"tie_word_embeddings", !gguf.tensors.contains("output.weight")},
      {"attention_bias", is_in_a_layer(gguf, "attn_q.bias")},
      {"attention_output_bias", is_in_a_layer(gguf, "attn_output.bias")},
      {"mlp_bias", gguf.tensors.contains("blk.0.ffn_up.bias")},
      {"use_qk_norm", is_in_a_layer(gguf, "attn_q_norm.weight")},
      {"mamba_conv_bias", is_in_a_layer(gguf, "ssm_conv1d.bias")},
      {"mamba_rms_norm", is_in_a_layer(gguf, "ssm_norm.weight")},
      {"rope_parameters", rope_parameters(gguf, architecture, metadata, rotary_dim)}};
  if (architecture.rotates_part)
    config["partial_rotary_factor"] = rotated_share(rotary_dim, head_dim);
  if (architecture.has_long_rope)
    config["original_max_position_embeddings"] =
        metadata.integer(prefix + "rope.scaling.original_context_length", size("context_length"));
  if (architecture.has_experts) {
    config["num_experts"] = size("expert_count");
    config["num_experts_per_tok"] = size("expert_used_count");
  }
  if (architecture.add_config != nullptr) architecture.add_config(metadata, prefix, config);
  if (metadata.error()) return *metadata.error();
  config["vocab_size"] = embedding->second.shape[0];
  return config;
}

Result<std::string> gguf_generation_config_json(const GgufContents& gguf,
                                                std::string_view file_name) {
  GgufMetadata metadata(*gguf.metadata, file_name);
  json ends = json::array();
  const auto add = [&](std::int64_t token) {
    if (std::ranges::find(ends, json(token)) == ends.end()) ends.push_back(token);
  };
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"})
    if (metadata.has(key)) add(metadata.integer(key, std::nullopt));
  // llama.cpp also stops at these tokens, whatever the keys say: many files have wrong ones.
  const std::vector<std::string> tokens = metadata.texts("tokenizer.ggml.tokens");
  const auto find = [&](std::string_view text) { return std::ranges::find(tokens, text); };
  const auto has = [&](std::string_view text) { return find(text) != tokens.end(); };
  for (const std::string_view text : kEndTexts) {
    // In these vocabularies the token ends each part of a response.
    if (text == "<|end|>" && has("<|call|>") && has("<|return|>")) continue;
    if (has(text)) add(find(text) - tokens.begin());
  }
  json config = {{"eos_token_id", ends}};
  if (metadata.has("tokenizer.ggml.bos_token_id"))
    config["bos_token_id"] = metadata.integer("tokenizer.ggml.bos_token_id", std::nullopt);
  if (metadata.error()) return *metadata.error();
  return json_text(config, file_name);
}

Result<std::string> gguf_tokenizer_config_json(const GgufContents& gguf,
                                               std::string_view file_name) {
  GgufMetadata metadata(*gguf.metadata, file_name);
  const std::vector<std::string> tokens = metadata.texts("tokenizer.ggml.tokens");
  json config = json::object();
  for (const auto& [key, role] : {std::pair{"tokenizer.ggml.bos_token_id", "bos_token"},
                                  {"tokenizer.ggml.eos_token_id", "eos_token"},
                                  {"tokenizer.ggml.unknown_token_id", "unk_token"},
                                  {"tokenizer.ggml.padding_token_id", "pad_token"}}) {
    if (!metadata.has(key)) continue;
    if (const auto id = metadata.token_id(key, tokens.size())) config[role] = tokens[*id];
  }
  if (metadata.has("tokenizer.chat_template"))
    config["chat_template"] = metadata.text("tokenizer.chat_template", std::nullopt);
  if (metadata.error()) return *metadata.error();
  return json_text(config, file_name);
}

bool is_gguf(const std::filesystem::path& model) {
  std::error_code failure;
  return std::filesystem::is_regular_file(model, failure);
}

Result<std::string> read_model_text(const std::filesystem::path& model, std::string_view name) {
  if (!is_gguf(model)) {
    ASSIGN_OR_RETURN(std::string text, read_file(model / name));
    if (const auto pointer = lfs_pointer_error(text, (model / name).string())) return *pointer;
    return text;
  }
  const std::string file_name = model.filename().string();
  struct Text {
    std::string_view name;
    Result<std::string> (*convert)(const GgufContents&, std::string_view);
  };
  constexpr Text kTexts[] = {{"generation_config.json", gguf_generation_config_json},
                             {"tokenizer.json", gguf_tokenizer_json},
                             {"tokenizer_config.json", gguf_tokenizer_config_json}};
  for (const Text& text : kTexts) {
    if (text.name != name) continue;
    ASSIGN_OR_RETURN(const GgufModel gguf, open_gguf_model(model, GgufKeys::kAll));
    return text.convert(gguf.contents, gguf.file_names.front());
  }
  return Error{ErrorCode::kNotFound, file_name + " has no " + std::string(name)};
}

}  // namespace troupe
