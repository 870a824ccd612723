#pragma once
// Makers of the kinds of logits processors; each gives null if its kind is not asked for.

#include "runtime/worker/logits_processors/logits_processor.hpp"

namespace troupe {

using MakeLogitsProcessor = std::unique_ptr<LogitsProcessor>(const LogitsProcessorInputs& inputs);

MakeLogitsProcessor make_allowed_token_ids;
MakeLogitsProcessor make_bad_words;
MakeLogitsProcessor make_min_tokens;
MakeLogitsProcessor make_logit_bias;
MakeLogitsProcessor make_penalties;
MakeLogitsProcessor make_thinking_budget;
MakeLogitsProcessor make_transcription_rules;

}  // namespace troupe
