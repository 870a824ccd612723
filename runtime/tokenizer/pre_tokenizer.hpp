#pragma once
// Pre-tokenizers: split a normalized text into the pieces that the model encodes independently.

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "runtime/base/result.hpp"
#include "runtime/tokenizer/aligned_text.hpp"

namespace troupe {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Splits pieces further, or rewrites their text. Throws WorkStopped if `work` is exhausted or
  /// cancelled.
  virtual void apply(PreTokenizedText& text, WorkBudget& work) const = 0;
};

/// Whether the last step is ByteLevel. A model that works on bytes can then skip the byte-level
/// alphabet.
[[nodiscard]] bool ends_in_byte_level(const nlohmann::json& json);
/// Whether a piece's position in the input affects the result (Metaspace that marks the first piece
/// only).
[[nodiscard]] bool depends_on_origin(const nlohmann::json& json);

/// The pre-tokenizer of a tokenizer.json; null JSON gives one that does nothing. With
/// `leaves_bytes` the final ByteLevel leaves the pieces as raw bytes. Errors: kUnsupported (the
/// type's name), kCorrupt.
Result<std::unique_ptr<const PreTokenizer>> make_pre_tokenizer(const nlohmann::json& json,
                                                               bool leaves_bytes);

}  // namespace troupe
