#include "runtime/config/speculative_config.hpp"

#include <nlohmann/json.hpp>
#include <optional>

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxDraftTokens = 128;
constexpr std::uint64_t kMaxMatch = 1 << 16;
constexpr std::int32_t kUsualMatch = 5;

Error wrong(const std::string& key, const std::string& what) {
  return invalid_argument("speculative-config: " + key + " " + what, "speculative-config");
}

Result<std::int32_t> read_count(const std::string& key, const json& value, std::uint64_t most) {
  const auto* number = value.get_ptr<const json::number_unsigned_t*>();
  if (number == nullptr || *number < 1 || *number > most) {
    return wrong(
        key, "must be an integer from 1 to " + std::to_string(most) + ", it is " + value.dump());
  }
  return static_cast<std::int32_t>(*number);
}

}  // namespace

Result<SpeculativeDecoding> parse_speculative_config(const std::string& text) {
  SpeculativeDecoding config;
  if (text.empty()) return config;
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return invalid_argument("speculative-config is not a JSON object", "speculative-config");
  }
  std::optional<std::int32_t> min_match;
  std::optional<std::int32_t> max_match;
  bool has_method = false;
  for (const auto& [key, value] : object.items()) {
    if (key == "method") {
      if (value != "ngram") return wrong(key, "must be \"ngram\", it is " + value.dump());
      has_method = true;
    } else if (key == "num_speculative_tokens") {
      ASSIGN_OR_RETURN(config.num_draft_tokens, read_count(key, value, kMaxDraftTokens));
    } else if (key == "prompt_lookup_min") {
      ASSIGN_OR_RETURN(min_match, read_count(key, value, kMaxMatch));
    } else if (key == "prompt_lookup_max") {
      ASSIGN_OR_RETURN(max_match, read_count(key, value, kMaxMatch));
    } else {
      return wrong(key, "is not known");
    }
  }
  if (!has_method) return wrong("method", "is missing; \"ngram\" is the one there is");
  if (config.num_draft_tokens == 0) return wrong("num_speculative_tokens", "is missing");
  config.prompt_lookup_min = min_match.value_or(max_match.value_or(kUsualMatch));
  config.prompt_lookup_max = max_match.value_or(config.prompt_lookup_min);
  if (config.prompt_lookup_min > config.prompt_lookup_max) {
    return wrong("prompt_lookup_min", "is " + std::to_string(config.prompt_lookup_min) +
                                          ", it must be at most prompt_lookup_max, " +
                                          std::to_string(config.prompt_lookup_max));
  }
  return config;
}

}  // namespace troupe
