#pragma once
// Tokenizer settings in files other than tokenizer.json. Chat templates and the special tokens that
// they use are read by runtime/chat.

#include <optional>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

/// The contents of the files next to tokenizer.json.
struct TokenizerFiles {
  std::optional<std::string> config_json;              ///< tokenizer_config.json
  std::optional<std::string> special_tokens_map_json;  ///< special_tokens_map.json
};

/// tokenizer_config.json takes precedence. Unknown keys and keys of an unexpected type are ignored:
/// these files have settings for many programs. Errors: kCorrupt if a file is not a JSON object.
Result<TokenRoles> read_token_roles(const TokenizerFiles& files);

}  // namespace troupe
