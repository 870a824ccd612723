// tokenizer.json from the vocabulary in a GGUF file.

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "runtime/gguf/metadata.hpp"
#include "runtime/gguf/model_files.hpp"

namespace troupe {
namespace {

using nlohmann::json;

/// tokenizer.ggml.token_type, of those that matter here.
constexpr double kControl = 3;
constexpr double kUserDefined = 4;

constexpr std::size_t kMaxTokenBytes = 4096;

/// How a byte-level vocabulary cuts text (llama.cpp's tokenizer.ggml.pre).
struct PreTokenizer {
  std::string_view name;
  std::string_view digits;
  bool composes;        ///< text becomes NFC first
  bool ignores_merges;  ///< a word that is a token is that token
};
constexpr std::array<PreTokenizer, 6> kPreTokenizers = {
    {{"qwen2", "\\p{N}", true, false},
     {"deepseek-r1-qwen", "\\p{N}", true, false},
     {"llama-bpe", "\\p{N}{1,3}", false, true},
     {"llama-v3", "\\p{N}{1,3}", false, true},
     {"llama3", "\\p{N}{1,3}", false, true},
     {"smaug-bpe", "\\p{N}{1,3}", false, true}}};

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<double> types;   ///< as many as the tokens
  std::vector<double> scores;  ///< as many as the tokens, or none
};

Vocabulary read_vocabulary(GgufMetadata& metadata) {
  Vocabulary vocabulary;
  vocabulary.tokens = metadata.texts("tokenizer.ggml.tokens");
  vocabulary.types = metadata.numbers("tokenizer.ggml.token_type");
  vocabulary.scores = metadata.numbers("tokenizer.ggml.scores");
  const std::size_t num_tokens = vocabulary.tokens.size();
  if (num_tokens == 0)
    metadata.fail(ErrorCode::kCorrupt, "metadata \"tokenizer.ggml.tokens\" is missing or empty");
  if (vocabulary.types.empty()) vocabulary.types.resize(num_tokens, 1);
  const auto check = [&](const char* key, std::size_t size) {
    if (size != num_tokens)
      metadata.fail(ErrorCode::kCorrupt, "metadata \"" + std::string(key) + "\" has " +
                                             std::to_string(size) + " entries for " +
                                             std::to_string(num_tokens) + " tokens");
  };
  check("tokenizer.ggml.token_type", vocabulary.types.size());
  if (!vocabulary.scores.empty()) check("tokenizer.ggml.scores", vocabulary.scores.size());
  if (!std::ranges::all_of(vocabulary.scores, [](double score) { return std::isfinite(score); }))
    metadata.fail(ErrorCode::kCorrupt, "tokenizer.ggml.scores holds what is not finite");
  const auto longest = std::ranges::max_element(vocabulary.tokens, {}, &std::string::size);
  if (num_tokens != 0 && longest->size() > kMaxTokenBytes)
    metadata.fail(ErrorCode::kCorrupt, "tokenizer.ggml.tokens: a token has " +
                                           std::to_string(longest->size()) + " bytes, at most " +
                                           std::to_string(kMaxTokenBytes) + " are read");
  return vocabulary;
}

json added_tokens(const Vocabulary& vocabulary) {
  json added = json::array();
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const double type = vocabulary.types[id];
    if (type != kControl && type != kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", vocabulary.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type == kControl}});
  }
  return added;
}

/// Token -> id; of equal tokens the first.
json vocabulary_json(const Vocabulary& vocabulary) {
  json ids = json::object();
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id)
    ids.emplace(vocabulary.tokens[id], id);
  return ids;
}

/// The tokens that begin and end every prompt.
json template_processor(GgufMetadata& metadata, const Vocabulary& vocabulary, bool adds_bos) {
  json single = json::array();
  json special = json::object();
  const auto add = [&](const std::string& key) {
    const auto id = metadata.token_id(key, vocabulary.tokens.size());
    if (!id) return;
    const std::string& token = vocabulary.tokens[*id];
    single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    special[token] = {{"id", token}, {"ids", {*id}}, {"tokens", {token}}};
  };
  if (metadata.boolean("tokenizer.ggml.add_bos_token", adds_bos))
    add("tokenizer.ggml.bos_token_id");
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (metadata.boolean("tokenizer.ggml.add_eos_token", false)) add("tokenizer.ggml.eos_token_id");
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", json::array()},
          {"special_tokens", special}};
}

json byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", false},
          {"use_regex", use_regex}};
}

json byte_level_tokenizer(GgufMetadata& metadata, const Vocabulary& vocabulary) {
  const std::string name = metadata.text("tokenizer.ggml.pre", std::nullopt);
  const auto pre = std::ranges::find(kPreTokenizers, name, &PreTokenizer::name);
  if (pre == kPreTokenizers.end()) {
    metadata.fail(ErrorCode::kUnsupported,
                  "tokenizer.ggml.pre is " + name + ", supported are qwen2 and llama-bpe");
    return {};
  }
  json merges = json::array();
  for (const std::string& merge : metadata.texts("tokenizer.ggml.merges")) {
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string::npos) {
      metadata.fail(ErrorCode::kCorrupt,
                    "tokenizer.ggml.merges: no pair at " + std::to_string(merges.size()));
      return {};
    }
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  const std::string pattern = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" +
                              std::string(pre->digits) +
                              "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  return {{"normalizer", pre->composes ? json{{"type", "NFC"}} : json(nullptr)},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"},
               {"pattern", {{"Regex", pattern}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              byte_level(false, false)}}}},
          {"post_processor", template_processor(metadata, vocabulary, pre->ignores_merges)},
          {"decoder", byte_level(true, true)},
          {"model",
           {{"type", "BPE"},
            {"ignore_merges", pre->ignores_merges},
            {"vocab", vocabulary_json(vocabulary)},
            {"merges", std::move(merges)}}}};
}

/// SentencePiece joins the neighbours whose union has the best score; as merges, in that order.
json merges_by_score(const Vocabulary& vocabulary) {
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id)
    ids.emplace(vocabulary.tokens[id], id);
  std::vector<std::size_t> order(vocabulary.tokens.size());
  for (std::size_t id = 0; id < order.size(); ++id) order[id] = id;
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return vocabulary.scores[a] > vocabulary.scores[b];
  });
  struct Split {
    std::size_t left;
    std::size_t right;
    std::size_t size;
  };
  json merges = json::array();
  std::vector<Split> splits;
  for (const std::size_t id : order) {
    const std::string_view token = vocabulary.tokens[id];
    if (vocabulary.types[id] != 1) continue;
    splits.clear();
    for (std::size_t size = 1; size < token.size(); ++size) {
      const auto left = ids.find(token.substr(0, size));
      const auto right = ids.find(token.substr(size));
      if (left != ids.end() && right != ids.end())
        splits.push_back({left->second, right->second, size});
    }
    std::ranges::sort(splits, [](const Split& a, const Split& b) {
      return std::pair(a.left, a.right) < std::pair(b.left, b.right);
    });
    for (const Split& split : splits)
      merges.push_back({token.substr(0, split.size), token.substr(split.size)});
  }
  return merges;
}

json sentencepiece_tokenizer(GgufMetadata& metadata, const Vocabulary& vocabulary) {
  if (vocabulary.scores.empty()) {
    metadata.fail(ErrorCode::kCorrupt, "metadata \"tokenizer.ggml.scores\" is missing");
    return {};
  }
  const bool adds_space = metadata.boolean("tokenizer.ggml.add_space_prefix", true);
  const std::string underline = "\xe2\x96\x81";  // U+2581 stands for a space
  const json replace = {
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", underline}};
  json normalizers = json::array();
  json decoders = {{{"type", "Replace"}, {"pattern", {{"String", underline}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (adds_space) {
    normalizers.push_back({{"type", "Prepend"}, {"prepend", underline}});
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  normalizers.push_back(replace);
  json model = {{"type", "BPE"},
                {"byte_fallback", true},
                {"fuse_unk", true},
                {"vocab", vocabulary_json(vocabulary)},
                {"merges", merges_by_score(vocabulary)}};
  const std::int64_t unknown = metadata.integer("tokenizer.ggml.unknown_token_id", -1);
  if (unknown >= 0 && unknown < static_cast<std::int64_t>(vocabulary.tokens.size()))
    model["unk_token"] = vocabulary.tokens[static_cast<std::size_t>(unknown)];
  return {{"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", template_processor(metadata, vocabulary, true)},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
          {"model", std::move(model)}};
}

}  // namespace

Result<std::string> gguf_tokenizer_json(const GgufContents& gguf, std::string_view file_name) {
  GgufMetadata metadata(*gguf.metadata, file_name);
  const std::string kind = metadata.text("tokenizer.ggml.model", std::nullopt);
  const Vocabulary vocabulary = read_vocabulary(metadata);
  if (metadata.error()) return *metadata.error();
  json tokenizer;
  if (kind == "gpt2")
    tokenizer = byte_level_tokenizer(metadata, vocabulary);
  else if (kind == "llama")
    tokenizer = sentencepiece_tokenizer(metadata, vocabulary);
  else
    metadata.fail(ErrorCode::kUnsupported,
                  "tokenizer.ggml.model is " + kind + ", supported are gpt2 and llama");
  if (metadata.error()) return *metadata.error();
  tokenizer["version"] = "1.0";
  tokenizer["added_tokens"] = added_tokens(vocabulary);
  return json_text(tokenizer, file_name);
}

}  // namespace troupe
