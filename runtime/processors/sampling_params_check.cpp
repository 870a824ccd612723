#include "runtime/processors/sampling_params_check.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace troupe {

namespace {

constexpr float kMaxBias = 100;

template <class T>
Error out_of_range(std::string_view field, T value, std::string_view range) {
  std::ostringstream text;
  text << field << " is " << value << ", it must be " << range;
  return invalid_argument(text.str(), std::string(field));
}

Result<void> check_between(std::string_view field, float value, float smallest, float largest) {
  if (value >= smallest && value <= largest) return {};
  std::ostringstream range;
  range << "between " << smallest << " and " << largest;
  return out_of_range(field, value, range.str());
}

Result<void> check_at_least(std::string_view field, std::int32_t value, std::int32_t smallest) {
  if (value >= smallest) return {};
  return out_of_range(field, value, "at least " + std::to_string(smallest));
}

Result<void> check_numbers(const SamplingParams& params) {
  RETURN_IF_ERROR(check_between("presence_penalty", params.presence_penalty, -2, 2));
  RETURN_IF_ERROR(check_between("frequency_penalty", params.frequency_penalty, -2, 2));
  RETURN_IF_ERROR(check_between("repetition_penalty", params.repetition_penalty,
                                kMinRepetitionPenalty, kMaxRepetitionPenalty));
  RETURN_IF_ERROR(check_between("temperature", params.temperature, 0, 2));
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return out_of_range("top_p", params.top_p, "above 0 and at most 1");
  }
  RETURN_IF_ERROR(check_at_least("top_k", params.top_k, -1));
  RETURN_IF_ERROR(check_between("min_p", params.min_p, 0, 1));
  if (params.max_tokens) RETURN_IF_ERROR(check_at_least("max_tokens", *params.max_tokens, 1));
  RETURN_IF_ERROR(check_at_least("min_tokens", params.min_tokens, 0));
  if (params.max_tokens && params.min_tokens > *params.max_tokens) {
    return out_of_range("min_tokens", params.min_tokens,
                        "at most max_tokens, which is " + std::to_string(*params.max_tokens));
  }
  return check_at_least("stream_interval", params.stream_interval, 1);
}

Result<void> check_num_logprobs(std::string_view field, std::optional<std::int32_t> value,
                                std::int32_t limit) {
  if (!value || limit == kAllLogprobs)
    return value ? check_at_least(field, *value, -1) : Result<void>();
  if (*value == kAllLogprobs) {
    return out_of_range(
        field, *value,
        "at most " + std::to_string(limit) + "; the whole vocabulary is not supported");
  }
  RETURN_IF_ERROR(check_at_least(field, *value, 0));
  if (*value <= limit) return {};
  return out_of_range(field, *value, "at most " + std::to_string(limit));
}

Result<void> check_token_ids(std::string_view field, const std::vector<TokenId>& token_ids,
                             std::int32_t vocab_size) {
  for (const TokenId token : token_ids) {
    if (token >= 0 && token < vocab_size) continue;
    return invalid_argument(std::string(field) + " has token id " + std::to_string(token) +
                                ", the vocabulary has " + std::to_string(vocab_size) + " tokens",
                            std::string(field));
  }
  return {};
}

Result<void> check_stop_and_words(const SamplingParams& params) {
  for (const std::string& stop : params.stop) {
    if (stop.empty()) return invalid_argument("stop has an empty string", "stop");
  }
  if (!params.stop.empty() && !params.detokenize) {
    return invalid_argument("stop strings need detokenize to be true", "stop");
  }
  for (const std::string& word : params.bad_words) {
    if (word.empty()) return invalid_argument("bad_words has an empty string", "bad_words");
  }
  return {};
}

Result<void> check_repetition_detection(const SamplingParams& params) {
  if (!params.repetition_detection) return {};
  const RepetitionDetection& detection = *params.repetition_detection;
  if (detection.max_pattern_size < 0 || detection.min_pattern_size < 0 ||
      detection.min_pattern_size > detection.max_pattern_size) {
    return invalid_argument("repetition_detection has pattern sizes from " +
                                std::to_string(detection.min_pattern_size) + " to " +
                                std::to_string(detection.max_pattern_size) +
                                ", they must be 0 or more and in order",
                            "repetition_detection");
  }
  if (detection.max_pattern_size > 0 && detection.min_count < 2) {
    return out_of_range("repetition_detection.min_count", detection.min_count, "at least 2");
  }
  return {};
}

Result<void> check_listed_logprobs(const SamplingParams& params, const SamplingLimits& limits) {
  constexpr std::string_view kField = "logprob_token_ids";
  const std::vector<TokenId>& listed = params.logprob_token_ids;
  if (listed.empty()) return {};
  if (!params.logprobs)
    return invalid_argument("logprob_token_ids needs logprobs", std::string(kField));
  if (listed.size() > kMaxLogprobTokenIds)
    return invalid_argument("logprob_token_ids has " + std::to_string(listed.size()) +
                                " token ids, the limit is " + std::to_string(kMaxLogprobTokenIds),
                            std::string(kField));
  return check_token_ids(kField, listed, limits.vocab_size);
}

Result<void> check_thinking_budget(const SamplingParams& params) {
  if (!params.thinking_budget) return {};
  return check_at_least("thinking_token_budget", params.thinking_budget->num_tokens, 0);
}

/// Removes duplicates, keeping the first of each.
void remove_repeated(SharedVector<TokenId>& token_ids) {
  if (token_ids.size() < 2) return;
  std::unordered_set<TokenId> seen;
  std::erase_if(token_ids.edit(), [&](TokenId token) { return !seen.insert(token).second; });
}

/// Sorts and removes duplicates, as the sampler requires.
void sort_unique(SharedVector<TokenId>& token_ids) {
  if (token_ids.size() < 2) return;
  std::vector<TokenId>& ids = token_ids.edit();
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  ids.shrink_to_fit();
}

/// The last bias of a token counts; biases are clamped.
Result<void> normalize_logit_bias(SharedVector<std::pair<TokenId, float>>& logit_bias,
                                  std::int32_t vocab_size) {
  if (logit_bias.empty()) return {};
  std::vector<std::pair<TokenId, float>>& biases = logit_bias.edit();
  std::stable_sort(biases.begin(), biases.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::pair<TokenId, float>> kept;
  std::vector<TokenId> tokens;
  for (auto& [token, bias] : biases) {
    if (std::isnan(bias)) return out_of_range("logit_bias", bias, "a number");
    bias = std::clamp(bias, -kMaxBias, kMaxBias);
    if (!tokens.empty() && tokens.back() == token) {
      kept.back().second = bias;
    } else {
      tokens.push_back(token);
      kept.emplace_back(token, bias);
    }
  }
  biases = std::move(kept);
  return check_token_ids("logit_bias", tokens, vocab_size);
}

}  // namespace

Result<void> normalize_sampling_params(SamplingParams& params, const SamplingLimits& limits) {
  if (!params.greedy() && params.temperature < kMinTemperature && params.temperature > 0) {
    params.temperature = kMinTemperature;
  }
  if (params.seed == -1) params.seed.reset();
  remove_repeated(params.stop_token_ids);
  remove_repeated(params.logprob_token_ids);
  if (params.top_k == -1) params.top_k = 0;

  RETURN_IF_ERROR(check_at_least("n", params.n, 1));
  if (params.n > limits.max_num_samples) {
    return out_of_range("n", params.n, "at most " + std::to_string(limits.max_num_samples));
  }
  RETURN_IF_ERROR(check_numbers(params));
  RETURN_IF_ERROR(check_num_logprobs("logprobs", params.logprobs, limits.max_logprobs));
  RETURN_IF_ERROR(
      check_num_logprobs("prompt_logprobs", params.prompt_logprobs, limits.max_logprobs));
  RETURN_IF_ERROR(check_stop_and_words(params));
  RETURN_IF_ERROR(check_token_ids("stop_token_ids", params.stop_token_ids, limits.vocab_size));
  RETURN_IF_ERROR(
      check_token_ids("allowed_token_ids", params.allowed_token_ids, limits.vocab_size));
  sort_unique(params.allowed_token_ids);
  RETURN_IF_ERROR(check_listed_logprobs(params, limits));
  RETURN_IF_ERROR(normalize_logit_bias(params.logit_bias, limits.vocab_size));
  RETURN_IF_ERROR(check_repetition_detection(params));
  RETURN_IF_ERROR(check_thinking_budget(params));

  if (params.greedy()) {
    if (params.n > 1) {
      return invalid_argument(
          "n is " + std::to_string(params.n) + ", it must be 1 when temperature is 0 (greedy)",
          "n");
    }
    params.top_p = 1;
    params.top_k = 0;
    params.min_p = 0;
  }
  return {};
}

Result<std::vector<std::vector<TokenId>>> tokenize_bad_words(const Tokenizer& tokenizer,
                                                             const std::vector<std::string>& words,
                                                             const WorkLimits& limits) {
  std::vector<std::vector<TokenId>> sequences;
  for (const std::string& word : words) {
    const std::size_t start = word.find_first_not_of(" \t\n\v\f\r");
    if (start == std::string::npos) {
      // A word of white space is taken literally.
      ASSIGN_OR_RETURN(auto ids, tokenizer.encode(word, false, limits));
      if (!ids.empty()) sequences.push_back(std::move(ids));
      continue;
    }
    ASSIGN_OR_RETURN(auto bare,
                     tokenizer.encode(std::string_view(word).substr(start), false, limits));
    ASSIGN_OR_RETURN(auto spaced, tokenizer.encode(' ' + word.substr(start), false, limits));
    if (bare.empty()) continue;
    const bool keep_spaced = spaced.size() == bare.size() && spaced.front() != bare.front();
    sequences.push_back(std::move(bare));
    if (keep_spaced) sequences.push_back(std::move(spaced));
  }
  return sequences;
}

}  // namespace troupe
