#pragma once
// Decoders: join tokens into text.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  /// Transforms the list of token texts; joined, they are the result.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

/// Appends the bytes that a token represents for a ByteLevel decoder, or the token itself if some
/// character represents no byte.
void append_byte_level(std::string& bytes, std::string_view token);

/// The decoder of a tokenizer.json; null JSON joins the tokens with spaces. Errors: kUnsupported
/// (the type's name), kCorrupt.
Result<std::unique_ptr<const TokenDecoder>> make_decoder(const nlohmann::json& json);

/// Whether the decoder turns each token into text independently and joins the texts, except for
/// tokens that are single bytes of a character. Pre: make_decoder() accepts `json`.
[[nodiscard]] bool decodes_tokens_apart(const nlohmann::json& json);

}  // namespace troupe
