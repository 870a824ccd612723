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
  std::string method;
  for (const auto& [key, value] : object.items()) {
    if (key == "method") {
      if (value != "ngram" && value != "draft_model")
        return wrong(key, "must be \"ngram\" or \"draft_model\", it is " + value.dump());
      method = value.get<std::string>();
    } else if (key == "model") {
      if (!value.is_string() || value.get_ref<const std::string&>().empty())
        return wrong(key, "must be the folder or GGUF file of a model, it is " + value.dump());
      config.draft_model = value.get<std::string>();
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
  if (method.empty() && config.draft_model.empty())
    return wrong("method", "is missing; there are \"ngram\" and, with model, \"draft_model\"");
  if (config.num_draft_tokens == 0) return wrong("num_speculative_tokens", "is missing");
  if (method == "draft_model" && config.draft_model.empty())
    return wrong("model", "is missing; method is \"draft_model\"");
  if (method == "ngram" && !config.draft_model.empty())
    return wrong("model", "is not for method \"ngram\"");
  if (!config.draft_model.empty()) {
    if (min_match || max_match)
      return wrong(min_match ? "prompt_lookup_min" : "prompt_lookup_max",
                   "is for method \"ngram\" only");
    return config;
  }
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
