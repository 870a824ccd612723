#pragma once
// Decoders: they join the spellings of tokens into text.

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
  /// Turns the list of spellings into the next form; the texts joined are the result.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

/// Appends what a token stands for to a ByteLevel decoder: the bytes it spells, or itself if some
/// character of it spells none.
void append_byte_level(std::string& bytes, std::string_view token);

/// The decoder of a tokenizer.json; null JSON joins the tokens with spaces. Errors: kUnsupported
/// (the type's name), kCorrupt.
Result<std::unique_ptr<const TokenDecoder>> make_decoder(const nlohmann::json& json);

/// True if the decoder turns each token into text by itself and joins the texts, except for tokens
/// that spell single bytes of a character. Pre: make_decoder() accepts `json`.
[[nodiscard]] bool decodes_tokens_apart(const nlohmann::json& json);

}  // namespace troupe
