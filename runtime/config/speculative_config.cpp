#include "runtime/config/speculative_config.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxDraftTokens = 128;
constexpr std::uint64_t kMaxMatch = 1 << 16;
constexpr std::uint64_t kMaxModelLen = 1 << 30;
constexpr std::int32_t kUsualMatch = 5;
constexpr std::uint64_t kMaxCachedRequests = 1 << 24;
constexpr double kMaxSpecFactor = 128;
/// vLLM's.
constexpr std::int32_t kUsualDepth = 24;
constexpr std::int32_t kUsualCachedRequests = 10000;
constexpr double kUsualTokenProb = 0.1;
/// Options of how vLLM runs a draft model; they do not affect tokens.
constexpr std::array<std::string_view, 3> kWithoutEffect = {
    "enforce_eager", "disable_padded_drafter_batch", "use_local_argmax_reduction"};

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

/// What `method` names; nothing: none of these.
struct Method {
  std::string_view name;
  DraftHeadKind head = DraftHeadKind::kNone;
};
constexpr std::array<Method, 7> kMethods = {{{"ngram"},
                                             {"suffix"},
                                             {"draft_model"},
                                             {"eagle", DraftHeadKind::kEagle},
                                             {"eagle3", DraftHeadKind::kEagle3},
                                             {"mtp", DraftHeadKind::kMtp},
                                             {"deepseek_mtp", DraftHeadKind::kMtp}}};

std::string method_names() {
  std::string names;
  for (const Method& method : kMethods)
    names += (names.empty() ? "\"" : ", \"") + std::string(method.name) + "\"";
  return names;
}

Result<Method> read_method(const std::string& key, const json& value) {
  for (const Method& method : kMethods)
    if (value == method.name) return method;
  return wrong(key, "must be one of " + method_names() + ", it is " + value.dump());
}

Result<double> read_share(const std::string& key, const json& value, double most) {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!(number >= 0 && number <= most))
    return wrong(key, "must be a number from 0 to " + std::to_string(static_cast<int>(most)) +
                          ", it is " + value.dump());
  return number;
}

}  // namespace

Result<SpeculativeDecoding> parse_speculative_config(const std::string& text,
                                                     std::int64_t tensor_parallel_size) {
  SpeculativeDecoding config;
  if (text.empty()) return config;
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return invalid_argument("speculative-config is not a JSON object", "speculative-config");
  }
  std::optional<std::int32_t> min_match;
  std::optional<std::int32_t> max_match;
  std::optional<std::int32_t> depth;
  std::optional<std::int32_t> cached_requests;
  std::optional<double> spec_factor;
  std::optional<double> token_prob;
  std::optional<bool> adaptive;
  std::string_view method;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;
    if (key == "method") {
      ASSIGN_OR_RETURN(const Method named, read_method(key, value));
      method = named.name;
      config.draft_head = named.head;
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
    } else if (key == "suffix_decoding_max_tree_depth") {
      ASSIGN_OR_RETURN(depth, read_count(key, value, kMaxMatch));
    } else if (key == "suffix_decoding_max_cached_requests") {
      if (value == 0) {
        cached_requests = 0;
      } else {
        ASSIGN_OR_RETURN(cached_requests, read_count(key, value, kMaxCachedRequests));
      }
    } else if (key == "suffix_decoding_max_spec_factor") {
      ASSIGN_OR_RETURN(spec_factor, read_share(key, value, kMaxSpecFactor));
    } else if (key == "suffix_decoding_min_token_prob") {
      ASSIGN_OR_RETURN(token_prob, read_share(key, value, 1));
    } else if (key == "adaptive") {
      if (!value.is_boolean()) return wrong(key, "must be true or false, it is " + value.dump());
      adaptive = value.get<bool>();
    } else if (key == "quantization") {
      if (!value.is_string()) return wrong(key, "must be a string, it is " + value.dump());
      config.draft_quantization = value.get<std::string>();
    } else if (key == "max_model_len") {
      ASSIGN_OR_RETURN(config.draft_max_model_len, read_count(key, value, kMaxModelLen));
    } else if (key == "draft_tensor_parallel_size") {
      if (value != 1 && value != tensor_parallel_size)
        return wrong(key, "must be 1 or tensor-parallel-size, " +
                              std::to_string(tensor_parallel_size) + ", it is " + value.dump());
    } else if (std::ranges::find(kWithoutEffect, key) != kWithoutEffect.end()) {
      if (!value.is_boolean()) return wrong(key, "must be true or false, it is " + value.dump());
    } else {
      return wrong(key, "is unknown");
    }
  }
  if (method.empty() && config.draft_model.empty())
    return wrong("method", "is missing, expected one of " + method_names());
  if (method != "suffix" && (depth || cached_requests || spec_factor || token_prob))
    return wrong("suffix_decoding_*", "is valid for method \"suffix\" only");
  config.adaptive = adaptive.value_or(true);
  if (method == "suffix") {
    if (!config.draft_model.empty()) return wrong("model", "is not valid for method \"suffix\"");
    if (min_match || max_match)
      return wrong(min_match ? "prompt_lookup_min" : "prompt_lookup_max",
                   "is valid for method \"ngram\" only");
    config.suffix_max_depth = depth.value_or(kUsualDepth);
    config.suffix_max_cached_requests = cached_requests.value_or(kUsualCachedRequests);
    config.suffix_max_spec_factor = spec_factor.value_or(1);
    config.suffix_min_token_prob = token_prob.value_or(kUsualTokenProb);
    // As many as a match can give, in vLLM too.
    if (config.num_draft_tokens == 0)
      config.num_draft_tokens =
          std::min(config.suffix_max_depth, static_cast<std::int32_t>(kMaxDraftTokens));
    for (const char* key : {"quantization", "max_model_len"})
      if (object.contains(key) && !object[key].is_null())
        return wrong(key, "is valid for drafts of a model or a head only");
    return config;
  }
  // As many as the head was trained for.
  if (config.draft_head == DraftHeadKind::kMtp && config.num_draft_tokens == 0)
    config.num_draft_tokens = 1;
  if (config.num_draft_tokens == 0) return wrong("num_speculative_tokens", "is missing");
  const std::string quoted_method = "\"" + std::string(method) + "\"";
  const bool takes_model = method != "ngram" && config.draft_head != DraftHeadKind::kMtp;
  if (takes_model && config.draft_model.empty())
    return wrong("model", "is required by method " + quoted_method);
  if (!takes_model && !config.draft_model.empty())
    return wrong("model", "is not valid for method " + quoted_method +
                              (method == "ngram" ? "" : ", whose layers the model itself has"));
  if (config.has_draft_layers()) {
    if (min_match || max_match)
      return wrong(min_match ? "prompt_lookup_min" : "prompt_lookup_max",
                   "is valid for method \"ngram\" only");
    return config;
  }
  for (const char* key : {"quantization", "max_model_len"})
    if (object.contains(key) && !object[key].is_null())
      return wrong(key, "is valid for drafts of a model or a head only");
  config.prompt_lookup_min = min_match.value_or(max_match.value_or(kUsualMatch));
  config.prompt_lookup_max = max_match.value_or(config.prompt_lookup_min);
  if (config.prompt_lookup_min > config.prompt_lookup_max) {
    return wrong("prompt_lookup_min", "is " + std::to_string(config.prompt_lookup_min) +
                                          ", it must be at most prompt_lookup_max, " +
                                          std::to_string(config.prompt_lookup_max));
  }
  return config;
}

std::string with_draft_model(const std::string& json, const std::string& model) {
  auto object = nlohmann::json::parse(json);
  object["model"] = model;
  return object.dump();
}

}  // namespace troupe
