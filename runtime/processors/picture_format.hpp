#pragma once
// How a model's prompts hold pictures, by its configuration and its tokenizer.

#include "runtime/base/result.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/multimodal/picture_inputs.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

/// Errors: kCorrupt, the tokenizer has not the tokens.
[[nodiscard]] Result<PictureFormat> picture_format(const ImageTokens& tokens,
                                                   const Tokenizer& tokenizer);

}  // namespace troupe
