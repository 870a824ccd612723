#pragma once
// The placeholders of images in a model's prompts, by its configuration and its tokenizer.

#include "runtime/base/result.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/multimodal/image_inputs.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

/// Errors: kCorrupt, the tokenizer lacks the tokens.
[[nodiscard]] Result<ImageTokenFormat> image_token_format(const ImageTokens& tokens,
                                                          const Tokenizer& tokenizer);

}  // namespace troupe
