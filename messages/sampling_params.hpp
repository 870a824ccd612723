#pragma once
// The parameters of sampling and of the returned text. Names, defaults and ranges are vLLM's.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "messages/ids.hpp"
#include "messages/reflect.hpp"
#include "messages/shared_vector.hpp"

namespace troupe {

inline constexpr float kGreedyTemperature = 1e-5f;  ///< below it: greedy
inline constexpr float kMinTemperature = 0.01f;     ///< smaller non-greedy ones are raised to it
/// Repetition penalties within these keep a multiplied or divided logit finite.
inline constexpr float kMinRepetitionPenalty = 0.01f;
inline constexpr float kMaxRepetitionPenalty = 100;
inline constexpr std::int32_t kAllLogprobs = -1;  ///< logprobs of the whole vocabulary
inline constexpr std::size_t kMaxLogprobTokenIds = 128;

enum class OutputKind : std::uint8_t { kCumulative = 0, kDelta = 1, kFinalOnly = 2 };

struct RepetitionDetection {
  std::int32_t max_pattern_size = 0;
  std::int32_t min_pattern_size = 0;
  std::int32_t min_count = 0;
  bool operator==(const RepetitionDetection&) const = default;
};
TROUPE_MESSAGE(RepetitionDetection, max_pattern_size, min_pattern_size, min_count)

/// The structure of the output: only tokens that its grammar accepts are sampled.
enum class StructuredOutputKind : std::uint8_t {
  kJsonSchema,
  kJsonObject,
  kRegex,
  kChoice,
  kGrammar,
  kStructuralTag
};

struct StructuredOutputsParams {
  StructuredOutputKind kind{};
  SharedVector<std::string> texts;  ///< kChoice: the choices; kJsonObject: none; else one: the
                                    ///< schema, pattern, grammar (EBNF) or tags
  // Of JSON:
  bool disable_any_whitespace = false;            ///< no whitespace between tokens
  bool disable_additional_properties = false;     ///< unless a schema says otherwise
  bool any_order = false;                         ///< of properties; else that of the schema
  std::optional<std::string> whitespace_pattern;  ///< regex of the whitespace between tokens
  std::string field = "structured_outputs";       ///< of the request, for errors

  bool operator==(const StructuredOutputsParams&) const = default;
};
TROUPE_MESSAGE(StructuredOutputsParams, kind, texts, disable_any_whitespace,
               disable_additional_properties, any_order, whitespace_pattern, field)

/// Ends the reasoning once it has this many tokens.
struct ThinkingBudget {
  std::int32_t num_tokens = 0;
  bool starts_inside = false;      ///< the output starts inside the reasoning, `begin` is optional
  std::string begin;               ///< start marker of the reasoning
  SharedVector<std::string> ends;  ///< end markers
  std::string forced_end;          ///< forced once the budget is spent

  // Filled by the InputProcessor: the same as tokens.
  SharedVector<TokenId> begin_token_ids;
  SharedVector<std::vector<TokenId>> end_token_ids;
  SharedVector<TokenId> forced_token_ids;

  bool operator==(const ThinkingBudget&) const = default;
};
TROUPE_MESSAGE(ThinkingBudget, num_tokens, starts_inside, begin, ends, forced_end, begin_token_ids,
               end_token_ids, forced_token_ids)

/// Cheap to copy for each sample: variable-size members are shared.
struct SamplingParams {
  std::int32_t n = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  float temperature = 1;
  float top_p = 1;
  std::int32_t top_k = 0;  ///< 0 and -1: off
  float min_p = 0;
  std::optional<std::int64_t> seed;
  SharedVector<std::string> stop;
  SharedVector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  std::optional<std::int32_t> max_tokens =
      16;  ///< none: as many as fit; always set after the InputProcessor
  std::int32_t min_tokens = 0;
  std::optional<std::int32_t> logprobs;
  SharedVector<TokenId> logprob_token_ids;  ///< return their logprobs instead of the top ones
  std::optional<std::int32_t> prompt_logprobs;
  bool detokenize = true;
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;
  bool include_stop_str_in_output = false;
  OutputKind output_kind = OutputKind::kCumulative;
  std::int32_t stream_interval = 1;
  SharedVector<std::pair<TokenId, float>> logit_bias;
  SharedVector<TokenId> allowed_token_ids;
  SharedVector<std::string> bad_words;
  bool skip_reading_prefix_cache = false;
  std::optional<RepetitionDetection> repetition_detection;
  std::optional<StructuredOutputsParams> structured_outputs;
  std::optional<ThinkingBudget> thinking_budget;

  // Filled by the InputProcessor from the tokenizer and the model's generation config.
  std::optional<TokenId> eos_token_id;       ///< none if ignore_eos
  SharedVector<TokenId> all_stop_token_ids;  ///< stop ids and every eos id: what min_tokens masks
  SharedVector<std::vector<TokenId>> bad_words_token_ids;
  std::uint64_t philox_key = 0;  ///< the seed of the sampler: `seed`, or a random one that the
                                 ///< Frontend chose for the request

  [[nodiscard]] bool greedy() const noexcept { return temperature < kGreedyTemperature; }
  bool operator==(const SamplingParams&) const = default;
};
TROUPE_MESSAGE(SamplingParams, n, presence_penalty, frequency_penalty, repetition_penalty,
               temperature, top_p, top_k, min_p, seed, stop, stop_token_ids, ignore_eos, max_tokens,
               min_tokens, logprobs, prompt_logprobs, detokenize, skip_special_tokens,
               spaces_between_special_tokens, include_stop_str_in_output, output_kind,
               stream_interval, logit_bias, allowed_token_ids, bad_words, skip_reading_prefix_cache,
               repetition_detection, eos_token_id, all_stop_token_ids, bad_words_token_ids,
               philox_key, structured_outputs, thinking_budget, logprob_token_ids)

}  // namespace troupe
