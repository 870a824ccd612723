#include "runtime/tokenizer/tokenizer.hpp"

#include <algorithm>

#include "runtime/base/json.hpp"
#include "runtime/base/json_depth.hpp"
#include "runtime/gguf/model_files.hpp"
#include "runtime/tokenizer/config.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/pipeline.hpp"

namespace troupe {
namespace {

using nlohmann::json;

/// The file's bytes; nullopt if it does not exist.
Result<std::optional<std::string>> read_optional(const std::filesystem::path& model,
                                                 std::string_view name) {
  Result<std::string> bytes = read_model_text(model, name);
  if (bytes.ok()) return std::optional<std::string>(std::move(bytes).value());
  if (bytes.error().code == ErrorCode::kNotFound) return std::optional<std::string>();
  return bytes.error();
}

Result<std::unique_ptr<const TokenizerPipeline>> parse_pipeline(std::string_view tokenizer_json) {
  const json parsed = parse_bounded_json<json>(tokenizer_json);
  if (parsed.is_discarded()) return json_fields::malformed("not valid JSON");
  return TokenizerPipeline::from_json(parsed);
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerPipeline> pipeline, TokenRoles roles)
    : pipeline_(std::move(pipeline)), roles_(std::move(roles)) {}

Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(const std::string tokenizer_json, read_model_text(folder, "tokenizer.json"));
  TokenizerFiles files;
  ASSIGN_OR_RETURN(files.config_json, read_optional(folder, "tokenizer_config.json"));
  ASSIGN_OR_RETURN(files.special_tokens_map_json, read_optional(folder, "special_tokens_map.json"));
  ASSIGN_OR_RETURN(TokenRoles roles, read_token_roles(files));
  auto pipeline = parse_pipeline(tokenizer_json);
  if (!pipeline.ok()) {
    Error error = pipeline.error();
    error.message = folder.string() + "/" + error.message;
    return error;
  }
  return std::shared_ptr<const Tokenizer>(
      new Tokenizer(std::move(pipeline).value(), std::move(roles)));
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json,
                                                              std::string_view config_json) {
  ASSIGN_OR_RETURN(auto pipeline, parse_pipeline(tokenizer_json));
  TokenizerFiles files;
  if (!config_json.empty()) files.config_json = config_json;
  ASSIGN_OR_RETURN(TokenRoles roles, read_token_roles(files));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(pipeline), std::move(roles)));
}

namespace {

/// Runs encode(work) for texts of `num_bytes`.
template <class Encode>
auto within_limits(std::size_t num_bytes, const WorkLimits& limits, const Encode& encode)
    -> Result<decltype(encode(std::declval<WorkBudget&>()))> {
  // Published tokenizers need about 30 units per byte.
  constexpr std::uint64_t kMaxUnitsPerByte = 500;
  constexpr std::uint64_t kMaxUnitsOfAnyText = 20'000'000;
  WorkBudget work(limits, kMaxUnitsOfAnyText + kMaxUnitsPerByte * num_bytes);
  try {
    return encode(work);
  } catch (const WorkStopped& stopped) {
    return stopped.error("encoding a text of " + std::to_string(num_bytes) + " bytes");
  }
}

}  // namespace

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                               const WorkLimits& limits) const {
  return within_limits(text.size(), limits, [&](WorkBudget& work) {
    return pipeline_->encode(text, add_special_tokens, work);
  });
}

Result<Encoding> Tokenizer::encode_with_offsets(std::string_view text, bool add_special_tokens,
                                                const WorkLimits& limits) const {
  return within_limits(text.size(), limits, [&](WorkBudget& work) {
    return pipeline_->encode_with_offsets(text, nullptr, add_special_tokens, work);
  });
}

Result<Encoding> Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                        bool add_special_tokens, const WorkLimits& limits) const {
  return within_limits(first.size() + second.size(), limits, [&](WorkBudget& work) {
    return pipeline_->encode_with_offsets(first, &second, add_special_tokens, work);
  });
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  return pipeline_->decode(ids, skip_special_tokens);
}

std::optional<std::string_view> Tokenizer::id_to_token(TokenId id) const {
  return pipeline_->spelling(id);
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  if (const auto id = pipeline_->added().id_of(token)) return id;
  return pipeline_->vocabulary().id_of(token);
}

std::size_t Tokenizer::vocab_size() const noexcept {
  return pipeline_->vocabulary().size() + pipeline_->added().num_new();
}

std::size_t Tokenizer::id_limit() const noexcept {
  return std::max(pipeline_->vocabulary().id_limit(), pipeline_->added().id_limit());
}

bool Tokenizer::is_special(TokenId id) const noexcept {
  const AddedToken* token = pipeline_->added().find(id);
  return token != nullptr && token->special;
}

bool Tokenizer::is_added(TokenId id) const noexcept {
  return pipeline_->added().find(id) != nullptr;
}

bool Tokenizer::starts_character(TokenId id) const { return pipeline_->starts_character(id); }

std::string_view Tokenizer::lone_text(TokenId id) const { return pipeline_->lone_text(id); }

std::optional<TokenId> Tokenizer::bos_id() const {
  return roles_.bos ? token_to_id(*roles_.bos) : std::nullopt;
}
std::optional<TokenId> Tokenizer::eos_id() const {
  return roles_.eos ? token_to_id(*roles_.eos) : std::nullopt;
}
std::optional<TokenId> Tokenizer::unk_id() const {
  return roles_.unk ? token_to_id(*roles_.unk) : std::nullopt;
}
std::optional<TokenId> Tokenizer::pad_id() const {
  return roles_.pad ? token_to_id(*roles_.pad) : std::nullopt;
}

}  // namespace troupe
