#include "runtime/models/transcription_rules.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "runtime/base/json.hpp"
#include "runtime/gguf/model_files.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr const char* kRulesFile = "generation_config.json";

bool is_token_id(const json& value) {
  return value.is_number_integer() && value.get<std::int64_t>() >= 0 &&
         value.get<std::int64_t>() <= std::numeric_limits<TokenId>::max();
}

Error wrong_rules(const std::string& reason) {
  return Error{ErrorCode::kCorrupt, std::string(kRulesFile) + ": " + reason, ""};
}

Result<std::vector<TokenId>> token_ids_of(const json& fields, const char* key) {
  const auto found = fields.find(key);
  if (found == fields.end() || found->is_null()) return std::vector<TokenId>();
  if (!found->is_array() || !std::ranges::all_of(*found, is_token_id))
    return wrong_rules(std::string(key) + " is not a list of token ids");
  return found->get<std::vector<TokenId>>();
}

/// A token's id, or another number that is not negative.
Result<std::optional<std::int32_t>> number_of(const json& fields, const char* key) {
  const auto found = fields.find(key);
  if (found == fields.end() || found->is_null()) return std::optional<std::int32_t>();
  if (!is_token_id(*found))
    return wrong_rules(std::string(key) + " is " + found->dump().substr(0, 64) +
                       ", not a number from 0 to " +
                       std::to_string(std::numeric_limits<TokenId>::max()));
  return std::optional(found->get<std::int32_t>());
}

}  // namespace

Result<TranscriptionRules> load_transcription_rules(const std::filesystem::path& model) {
  TranscriptionRules rules;
  const auto text = read_model_text(model, kRulesFile);
  if (!text.ok()) {
    if (text.error().code == ErrorCode::kNotFound) return rules;
    return text.error();
  }
  const json fields = json::parse(*text, nullptr, false);
  if (!fields.is_object()) return wrong_rules("not a JSON object");
  ASSIGN_OR_RETURN(rules.suppressed, token_ids_of(fields, "suppress_tokens"));
  ASSIGN_OR_RETURN(rules.suppressed_first, token_ids_of(fields, "begin_suppress_tokens"));
  ASSIGN_OR_RETURN(rules.no_timestamps, number_of(fields, "no_timestamps_token_id"));
  ASSIGN_OR_RETURN(rules.max_initial_timestamp, number_of(fields, "max_initial_timestamp_index"));
  const auto end = fields.find("eos_token_id");
  rules.end = end != fields.end() && is_token_id(*end) ? end->get<TokenId>()
                                                       : rules.no_timestamps.value_or(0);
  return rules;
}

}  // namespace troupe
