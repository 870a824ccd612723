#pragma once
// Pre-tokenizers: they cut a normalized text into the pieces that the model sees one by one.

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "runtime/base/result.hpp"
#include "runtime/tokenizer/aligned_text.hpp"

namespace troupe {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Cuts each piece further, or rewrites the text under them.
  /// Throws WorkStopped where `work` ends it.
  virtual void apply(PreTokenizedText& text, WorkBudget& work) const = 0;
};

/// True if the last step spells bytes (ByteLevel). A model that works on bytes can then skip that
/// spelling.
[[nodiscard]] bool ends_in_byte_level(const nlohmann::json& json);
/// True if a piece's place in the input matters to the result (Metaspace that marks the first piece
/// only).
[[nodiscard]] bool depends_on_origin(const nlohmann::json& json);

/// The pre-tokenizer of a tokenizer.json; null JSON gives one that does nothing. With
/// `leaves_bytes` the final ByteLevel leaves the pieces as raw bytes. Errors: kUnsupported (the
/// type's name), kCorrupt.
Result<std::unique_ptr<const PreTokenizer>> make_pre_tokenizer(const nlohmann::json& json,
                                                               bool leaves_bytes);

}  // namespace troupe
