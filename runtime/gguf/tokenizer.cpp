// Derives tokenizer.json from the vocabulary in a GGUF file.

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <unordered_map>

#include "runtime/base/json.hpp"
#include "runtime/base/log.hpp"
#include "runtime/gguf/metadata.hpp"
#include "runtime/gguf/model_files.hpp"

namespace troupe {
namespace {

using nlohmann::json;

/// The relevant values of tokenizer.ggml.token_type.
constexpr double kNormal = 1;
constexpr double kUnknown = 2;
constexpr double kControl = 3;
constexpr double kUserDefined = 4;

constexpr std::size_t kMaxTokenBytes = 4096;

// Split expressions as in the models' own tokenizer.json files: each splits the pieces of the
// previous one at its matches.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kOneDigit = R"(\p{N})";
constexpr std::string_view kThreeDigits = R"(\p{N}{1,3})";

constexpr std::array<std::string_view, 1> kGpt2Splits = {kGpt2};
constexpr std::array<std::string_view, 2> kGpt2DigitSplits = {kOneDigit, kGpt2};
constexpr std::array<std::string_view, 1> kLlama3Splits = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::array<std::string_view, 1> kQwen2Splits = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::array<std::string_view, 1> kQwen35Splits = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::array<std::string_view, 1> kSeedCoderSplits = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::array<std::string_view, 1> kGpt4oSplits = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::array<std::string_view, 1> kTekkenSplits = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
// Chinese, Japanese and Korean, as in DeepSeek's expressions.
constexpr std::string_view kDeepseekHan =
    R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr std::array<std::string_view, 5> kDeepseekCoderSplits = {
    R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekHan, kOneDigit};
/// Scripts with upper and lower case.
constexpr std::string_view kDeepseekLetters =
    R"(\s?[A-Za-z\x{00B5}\x{00C0}-\x{00D6}\x{00D8}-\x{00F6}\x{00F8}-\x{01BA}\x{01BC}-\x)"
    R"({01BF}\x{01C4}-\x{0293}\x{0295}-\x{02AF}\x{0370}-\x{0373}\x{0376}\x{0377}\x{037B)"
    R"(}-\x{037D}\x{037F}\x{0386}\x{0388}-\x{038A}\x{038C}\x{038E}-\x{03A1}\x{03A3}-\x{)"
    R"(03F5}\x{03F7}-\x{0481}\x{048A}-\x{052F}\x{0531}-\x{0556}\x{10A0}-\x{10C5}\x{13A0)"
    R"(}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x)"
    R"({1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F)"
    R"(45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x)"
    R"({1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD)"
    R"(0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\)"
    R"(x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128)"
    R"(}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{)"
    R"(214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2})"
    R"(\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A)"
    R"(78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A)"
    R"(}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10)"
    R"(C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+)";
constexpr std::array<std::string_view, 6> kDeepseekLlmSplits = {
    R"([\r\n])",
    kDeepseekLetters,
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
    R"(\s+$)",
    kDeepseekHan,
    R"(\p{N}+)"};
constexpr std::array<std::string_view, 3> kDeepseekV3Splits = {
    kThreeDigits, R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::array<std::string_view, 3> kFalconSplits = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2,
                                                           R"([0-9][0-9][0-9])"};
constexpr std::array<std::string_view, 4> kDefaultSplits = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2,
                                                            R"(\p{N}+)", R"([0-9][0-9][0-9])"};

/// The pre-tokenizer of a byte-level vocabulary: llama.cpp's tokenizer.ggml.pre.
struct PreTokenizer {
  std::string_view name;
  std::span<const std::string_view> splits;
  bool composes = false;        ///< text is normalized to NFC first
  bool ignores_merges = false;  ///< a word that is a token is not split
  bool adds_bos = false;        ///< default, if the file does not say
};
constexpr PreTokenizer kPreTokenizers[] = {
    {.name = "default", .splits = kDefaultSplits},
    {.name = "llama-bpe", .splits = kLlama3Splits, .ignores_merges = true, .adds_bos = true},
    {.name = "llama3", .splits = kLlama3Splits, .ignores_merges = true, .adds_bos = true},
    {.name = "llama-v3", .splits = kLlama3Splits, .ignores_merges = true, .adds_bos = true},
    {.name = "falcon3", .splits = kLlama3Splits, .ignores_merges = true, .adds_bos = true},
    {.name = "falcon-h1", .splits = kLlama3Splits, .ignores_merges = true, .adds_bos = true},
    {.name = "pixtral", .splits = kLlama3Splits, .ignores_merges = true, .adds_bos = true},
    {.name = "midm-2.0", .splits = kLlama3Splits, .ignores_merges = true, .adds_bos = true},
    {.name = "lfm2", .splits = kLlama3Splits, .ignores_merges = true, .adds_bos = true},
    {.name = "glm4", .splits = kLlama3Splits, .ignores_merges = true},
    {.name = "smaug-bpe", .splits = kLlama3Splits},
    {.name = "dbrx", .splits = kLlama3Splits},
    {.name = "chatglm-bpe", .splits = kLlama3Splits},
    {.name = "qwen2", .splits = kQwen2Splits, .composes = true},
    {.name = "deepseek-r1-qwen", .splits = kQwen2Splits, .composes = true},
    {.name = "megrez", .splits = kQwen2Splits, .composes = true},
    {.name = "stablelm2", .splits = kQwen2Splits},
    {.name = "hunyuan", .splits = kQwen2Splits},
    {.name = "grok-2", .splits = kQwen2Splits},
    {.name = "kormo", .splits = kQwen2Splits},
    {.name = "f2llmv2", .splits = kQwen2Splits},
    {.name = "qwen35", .splits = kQwen35Splits, .composes = true},
    {.name = "seed-coder", .splits = kSeedCoderSplits},
    {.name = "gpt-4o", .splits = kGpt4oSplits},
    {.name = "llama4", .splits = kGpt4oSplits},
    {.name = "kanana2", .splits = kGpt4oSplits},
    {.name = "tekken", .splits = kTekkenSplits, .ignores_merges = true, .adds_bos = true},
    {.name = "deepseek-llm", .splits = kDeepseekLlmSplits},
    {.name = "deepseek-coder", .splits = kDeepseekCoderSplits},
    {.name = "deepseek-v3", .splits = kDeepseekV3Splits},
    {.name = "hunyuan-dense", .splits = kDeepseekV3Splits},
    {.name = "gpt-2", .splits = kGpt2Splits},
    {.name = "phi-2", .splits = kGpt2Splits},
    {.name = "mpt", .splits = kGpt2Splits},
    {.name = "olmo", .splits = kGpt2Splits},
    {.name = "jais", .splits = kGpt2Splits},
    {.name = "trillion", .splits = kGpt2Splits},
    {.name = "gigachat", .splits = kGpt2Splits},
    {.name = "exaone4", .splits = kGpt2Splits},
    {.name = "mellum", .splits = kGpt2Splits},
    {.name = "a.x-4.0", .splits = kGpt2Splits},
    {.name = "command-r", .splits = kGpt2DigitSplits, .composes = true},
    {.name = "smollm", .splits = kGpt2DigitSplits},
    {.name = "starcoder", .splits = kGpt2DigitSplits},
    {.name = "refact", .splits = kGpt2DigitSplits},
    {.name = "codeshell", .splits = kGpt2DigitSplits},
    {.name = "exaone", .splits = kGpt2DigitSplits},
    {.name = "minerva-7b", .splits = kGpt2DigitSplits},
    {.name = "falcon", .splits = kFalconSplits},
};
constexpr std::string_view kDefaultPreTokenizer = "default";

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<double> types;   ///< one per token
  std::vector<double> scores;  ///< one per token, or empty
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
    metadata.fail(ErrorCode::kCorrupt, "tokenizer.ggml.scores has a value that is not finite");
  const auto longest = std::ranges::max_element(vocabulary.tokens, {}, &std::string::size);
  if (num_tokens != 0 && longest->size() > kMaxTokenBytes)
    metadata.fail(ErrorCode::kCorrupt, "tokenizer.ggml.tokens: a token has " +
                                           std::to_string(longest->size()) + " bytes, at most " +
                                           std::to_string(kMaxTokenBytes) + " are supported");
  return vocabulary;
}

json added_tokens(const Vocabulary& vocabulary) {
  json added = json::array();
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const double type = vocabulary.types[id];
    if (type != kUnknown && type != kControl && type != kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", vocabulary.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type != kUserDefined}});
  }
  return added;
}

/// Token -> id; the first of duplicate tokens.
json vocabulary_json(const Vocabulary& vocabulary) {
  json ids = json::object();
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id)
    ids.emplace(vocabulary.tokens[id], id);
  return ids;
}

/// The template of tokens that begin and end every prompt.
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
  // Required only if the file enables the token.
  const std::string bos = "tokenizer.ggml.bos_token_id";
  if (metadata.boolean("tokenizer.ggml.add_bos_token", adds_bos && metadata.has(bos))) add(bos);
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

/// By tokenizer.ggml.pre; null after an error. Older files have none.
const PreTokenizer* find_pre_tokenizer(GgufMetadata& metadata) {
  std::string name = metadata.text("tokenizer.ggml.pre", "");
  if (name.empty()) {
    log_warning(
        "tokenizer.ggml.pre is missing: using the pre-tokenizer \"default\", which may differ from "
        "the model's own");
    name = kDefaultPreTokenizer;
  }
  const auto* pre = std::ranges::find(kPreTokenizers, name, &PreTokenizer::name);
  if (pre != std::end(kPreTokenizers)) return pre;
  std::string supported;
  for (const PreTokenizer& each : kPreTokenizers)
    supported += (supported.empty() ? "" : ", ") + std::string(each.name);
  metadata.fail(ErrorCode::kUnsupported,
                "tokenizer.ggml.pre is " + name + ", supported are " + supported);
  return nullptr;
}

json byte_level_tokenizer(GgufMetadata& metadata, const Vocabulary& vocabulary) {
  const PreTokenizer* pre = find_pre_tokenizer(metadata);
  if (pre == nullptr) return {};
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
  json cuts = json::array();
  for (const std::string_view expression : pre->splits)
    cuts.push_back({{"type", "Split"},
                    {"pattern", {{"Regex", expression}}},
                    {"behavior", "Isolated"},
                    {"invert", false}});
  cuts.push_back(byte_level(false, false));
  return {{"normalizer", pre->composes ? json{{"type", "NFC"}} : json(nullptr)},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(cuts)}}},
          {"post_processor", template_processor(metadata, vocabulary, pre->adds_bos)},
          {"decoder", byte_level(true, true)},
          {"model",
           {{"type", "BPE"},
            {"ignore_merges", pre->ignores_merges},
            {"vocab", vocabulary_json(vocabulary)},
            {"merges", std::move(merges)}}}};
}

/// SentencePiece merges the neighbours whose union has the best score; converted to merges in that
/// order.
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
    if (vocabulary.types[id] != kNormal && vocabulary.types[id] != kUserDefined) continue;
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
  const std::string underline = "\xe2\x96\x81";  // U+2581 represents a space
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
