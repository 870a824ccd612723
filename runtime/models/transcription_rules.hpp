#pragma once
// Which tokens a speech model may generate, by generation_config.json.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "messages/ids.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

struct TranscriptionRules {
  std::vector<TokenId> suppressed;        ///< suppress_tokens: never generated
  std::vector<TokenId> suppressed_first;  ///< begin_suppress_tokens: not as the first token
  /// eos_token_id: the end of a transcript; text tokens have smaller ids. Without the field, as
  /// no_timestamps.
  TokenId end = 0;
  /// no_timestamps_token_id: timestamps have the ids that follow. It ends the prompt of a
  /// transcript without timestamps. None: not known, timestamps follow no rules.
  std::optional<TokenId> no_timestamps;
  /// max_initial_timestamp_index: of the first timestamp, in steps; none: no limit.
  std::optional<std::int32_t> max_initial_timestamp;
};

/// Of a model folder; without generation_config.json, rules of nothing. Errors: kCorrupt, which
/// names the field.
[[nodiscard]] Result<TranscriptionRules> load_transcription_rules(
    const std::filesystem::path& model);

}  // namespace troupe
