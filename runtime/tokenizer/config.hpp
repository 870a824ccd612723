#pragma once
// What the files beside tokenizer.json say about the tokenizer. Chat templates and the special
// tokens that they use are read by runtime/chat.

#include <optional>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

/// The texts of the files that a folder may have beside tokenizer.json.
struct TokenizerFiles {
  std::optional<std::string> config_json;              ///< tokenizer_config.json
  std::optional<std::string> special_tokens_map_json;  ///< special_tokens_map.json
};

/// tokenizer_config.json wins. Unknown keys and keys of an unexpected type are passed over: these
/// files carry settings for many programs. Errors: kCorrupt if a file is not a JSON object.
Result<TokenRoles> read_token_roles(const TokenizerFiles& files);

}  // namespace troupe
