// config.json, generation_config.json and tokenizer_config.json from the metadata that llama.cpp's
// converters write.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/file.hpp"
#include "runtime/base/mapped_file.hpp"
#include "runtime/gguf/metadata.hpp"
#include "runtime/gguf/model_files.hpp"

namespace troupe {
namespace {

using nlohmann::json;

struct Architecture {
  std::string_view gguf;
  std::string_view name;
};
constexpr std::array<Architecture, 4> kArchitectures = {{{"llama", "LlamaForCausalLM"},
                                                         {"qwen2", "Qwen2ForCausalLM"},
                                                         {"qwen3", "Qwen3ForCausalLM"},
                                                         {"gemma3", "Gemma3ForCausalLM"}}};

/// What ends an answer in one family of models or the other (the tokens "EOG" of llama.cpp).
constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>", "<|end|>",
    "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<EOT>", "_<EOT>",
    "[EOT]", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|return|>", "<|call|>", "<|calls|>",
    "<|flush|>",
    // Code that fills a gap ends where the next file would begin.
    "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"};

constexpr double kLlama3HighFactor = 4;  // of all published models; the low one is 1

/// What Llama 3's scaling divides frequency i of a head by.
double llama3_divisor(double theta, std::int64_t head_dim, std::size_t i, double factor,
                      double original_length) {
  const double frequency =
      std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  const double turns = original_length * frequency / (2 * std::acos(-1.0));
  if (turns > kLlama3HighFactor) return 1;
  if (turns < 1) return factor;
  const double smooth = (turns - 1) / (kLlama3HighFactor - 1);
  return 1 / ((1 - smooth) / factor + smooth);
}

/// Llama 3's scaling is stored as what each frequency is divided by. The largest is the factor; the
/// length that it was trained on is the power of 2 that leads to all the others.
json llama3_rope(const GgufTensor& tensor, double theta, std::int64_t head_dim,
                 GgufMetadata& metadata) {
  const std::size_t num_divisors = tensor.bytes.size() / sizeof(float);
  if (tensor.type != GgmlType::kF32 || num_divisors == 0 ||
      std::cmp_not_equal(2 * num_divisors, head_dim)) {
    metadata.fail(ErrorCode::kUnsupported,
                  "tensor \"rope_freqs.weight\" is not one F32 for every two of a head's " +
                      std::to_string(head_dim));
    return {};
  }
  std::vector<float> divisors(num_divisors);
  std::memcpy(divisors.data(), tensor.bytes.data(), tensor.bytes.size());
  const double factor = static_cast<double>(*std::ranges::max_element(divisors));
  constexpr std::int64_t kLongest = 1 << 20;
  for (std::int64_t length = 32; length <= kLongest; length *= 2) {
    bool fits = true;
    for (std::size_t i = 0; i < divisors.size() && fits; ++i) {
      const double expected =
          llama3_divisor(theta, head_dim, i, factor, static_cast<double>(length));
      fits = std::fabs(static_cast<double>(divisors[i]) - expected) <= 1e-3 * expected;
    }
    if (fits)
      return {{"rope_type", "llama3"},
              {"rope_theta", theta},
              {"factor", factor},
              {"low_freq_factor", 1.0},
              {"high_freq_factor", kLlama3HighFactor},
              {"original_max_position_embeddings", length}};
  }
  metadata.fail(ErrorCode::kUnsupported,
                "tensor \"rope_freqs.weight\" is not Llama 3's scaling of any length");
  return {};
}

json rope_parameters(const GgufContents& gguf, GgufMetadata& metadata, const std::string& prefix,
                     double theta, std::int64_t head_dim) {
  if (const auto factors = gguf.tensors.find("rope_freqs.weight"); factors != gguf.tensors.end())
    return llama3_rope(factors->second, theta, head_dim, metadata);
  json rope = {{"rope_type", "default"}, {"rope_theta", theta}};
  const std::string scaling = metadata.text(prefix + "rope.scaling.type", "none");
  if (scaling == "none") return rope;
  if (scaling != "linear" && scaling != "yarn")
    metadata.fail(ErrorCode::kUnsupported, prefix + "rope.scaling.type is " + scaling +
                                               ", supported are none, linear, yarn");
  rope["rope_type"] = scaling;
  rope["factor"] = metadata.number(prefix + "rope.scaling.factor", std::nullopt);
  if (scaling == "yarn")
    rope["original_max_position_embeddings"] =
        metadata.integer(prefix + "rope.scaling.original_context_length", std::nullopt);
  return rope;
}

void add_gemma3(json& config, GgufMetadata& metadata, const std::string& prefix) {
  const std::int64_t window = metadata.integer(prefix + "attention.sliding_window", std::nullopt);
  config["sliding_window"] = window;
  config["sliding_window_pattern"] =
      metadata.integer(prefix + "attention.sliding_window_pattern", 6);
  config["rope_local_base_freq"] = metadata.number(prefix + "rope.freq_base_swa", 10000);
  // llama.cpp's rule: the scale follows the head but in the 27B model.
  constexpr std::int64_t kLayersOf27B = 62;
  const auto head_dim = config["head_dim"].get<std::int64_t>();
  config["query_pre_attn_scalar"] =
      config["num_hidden_layers"] == kLayersOf27B
          ? config["hidden_size"].get<std::int64_t>() /
                std::max<std::int64_t>(1, config["num_attention_heads"].get<std::int64_t>())
          : head_dim;
}

}  // namespace

Result<std::string> gguf_config_json(const GgufContents& gguf, std::string_view file_name) {
  GgufMetadata metadata(*gguf.metadata, file_name);
  const std::string name = metadata.text("general.architecture", std::nullopt);
  if (metadata.error()) return *metadata.error();
  const auto architecture = std::ranges::find(kArchitectures, name, &Architecture::gguf);
  if (architecture == kArchitectures.end())
    return Error{ErrorCode::kUnsupported, std::string(file_name) + ": architecture " + name +
                                              " is not supported; supported are llama, qwen2, "
                                              "qwen3, gemma3"};
  const std::string prefix = name + ".";
  if (metadata.integer(prefix + "expert_count", 0) != 0)
    metadata.fail(ErrorCode::kUnsupported, "mixtures of experts are not supported");
  const auto size = [&](const std::string& key) {
    return metadata.integer(prefix + key, std::nullopt);
  };
  const std::int64_t hidden_size = size("embedding_length");
  const std::int64_t num_heads = size("attention.head_count");
  const std::int64_t head_dim = metadata.integer(
      prefix + "attention.key_length", hidden_size / std::max<std::int64_t>(1, num_heads));
  if (metadata.integer(prefix + "attention.value_length", head_dim) != head_dim)
    metadata.fail(ErrorCode::kUnsupported,
                  prefix + "attention.value_length differs from attention.key_length");
  if (metadata.integer(prefix + "rope.dimension_count", head_dim) != head_dim)
    metadata.fail(
        ErrorCode::kUnsupported,
        prefix + "rope.dimension_count differs from the head's " + std::to_string(head_dim));
  const auto embedding = gguf.tensors.find("token_embd.weight");
  if (embedding == gguf.tensors.end() || embedding->second.shape.size() != 2)
    metadata.fail(ErrorCode::kCorrupt, "tensor \"token_embd.weight\" is missing or no matrix");
  const double theta = metadata.number(prefix + "rope.freq_base", name == "gemma3" ? 1e6 : 1e4);
  json config = {
      {"architectures", {architecture->name}},
      {"hidden_size", hidden_size},
      {"intermediate_size", size("feed_forward_length")},
      {"num_hidden_layers", size("block_count")},
      {"num_attention_heads", num_heads},
      {"num_key_value_heads", metadata.integer(prefix + "attention.head_count_kv", num_heads)},
      {"head_dim", head_dim},
      {"max_position_embeddings", size("context_length")},
      {"rms_norm_eps", metadata.number(prefix + "attention.layer_norm_rms_epsilon", std::nullopt)},
      {"tie_word_embeddings", !gguf.tensors.contains("output.weight")},
      {"attention_bias", name == "llama" && gguf.tensors.contains("blk.0.attn_q.bias")},
      {"rope_parameters", rope_parameters(gguf, metadata, prefix, theta, head_dim)}};
  if (name == "gemma3") {
    add_gemma3(config, metadata, prefix);
    config["rope_parameters"] = {{"full_attention", config["rope_parameters"]}};
  }
  if (metadata.error()) return *metadata.error();
  config["vocab_size"] = embedding->second.shape[0];
  return json_text(config, file_name);
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
  // llama.cpp ends at such tokens too, whatever the keys say: many files name the wrong ones.
  const std::vector<std::string> tokens = metadata.texts("tokenizer.ggml.tokens");
  const auto find = [&](std::string_view text) { return std::ranges::find(tokens, text); };
  const auto has = [&](std::string_view text) { return find(text) != tokens.end(); };
  for (const std::string_view text : kEndTexts) {
    // In these vocabularies each part of an answer ends so.
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
  if (!is_gguf(model)) return read_file(model / name);
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(model));
  const std::string file_name = model.filename().string();
  using Convert = Result<std::string> (*)(const GgufContents&, std::string_view);
  constexpr std::array<std::pair<std::string_view, Convert>, 4> kTexts = {
      {{"config.json", gguf_config_json},
       {"generation_config.json", gguf_generation_config_json},
       {"tokenizer.json", gguf_tokenizer_json},
       {"tokenizer_config.json", gguf_tokenizer_config_json}}};
  for (const auto& [text, convert] : kTexts) {
    if (text != name) continue;
    ASSIGN_OR_RETURN(const GgufContents gguf, parse_gguf(file.bytes(), file_name));
    return convert(gguf, file_name);
  }
  return Error{ErrorCode::kNotFound, file_name + " has no " + std::string(name)};
}

}  // namespace troupe
