#pragma once
// Normalizers: rewrite a text before pre-tokenization.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/tokenizer/aligned_text.hpp"

namespace troupe {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Throws WorkStopped if `work` is exhausted or cancelled, or if the text grows too much.
  virtual void apply(AlignedText& text, WorkBudget& work) const = 0;
};

/// A character of the rewritten text and its effect on the old one: 1 inserts, 0 replaces one old
/// character, -n replaces one and drops n more.
struct ChangedCharacter {
  char32_t character;
  int change;
};
/// Writes `characters` for `old`, the text at the rewriter's cursor, and moves the cursor past it.
void write_changes(TextRewriter& rewriter, std::string_view old,
                   const std::vector<ChangedCharacter>& characters);

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

/// Normalizes a text to a Unicode normalization form (Unicode standard annex 15).
void normalize_unicode(AlignedText& text, UnicodeForm form, WorkBudget& work);

/// The normalizer of a tokenizer.json; null JSON gives one that does nothing. Errors: kUnsupported
/// (the type's name), kCorrupt.
Result<std::unique_ptr<const Normalizer>> make_normalizer(const nlohmann::json& json);
/// SentencePiece's compiled character map.
Result<std::unique_ptr<const Normalizer>> make_precompiled(const nlohmann::json& json);

}  // namespace troupe
