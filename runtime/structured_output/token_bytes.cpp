#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "runtime/base/utf8.hpp"
#include "runtime/structured_output/grammar_vocabulary.hpp"
#include "runtime/tokenizer/byte_level.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {
namespace {

/// The byte of a token "<0xNN>", which stands for one byte of a character; empty if it is none.
std::string fallback_byte(std::string_view spelling) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return {};
  const std::size_t high = kDigits.find(spelling[3]);
  const std::size_t low = kDigits.find(spelling[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return {};
  return std::string(1, static_cast<char>(high * 16 + low));
}

bool has_other_than_ascii(std::string_view bytes) {
  for (const char c : bytes)
    if (static_cast<unsigned char>(c) >= 0x80) return true;
  return false;
}

/// What tokens stand for behind other text. At its beginning some decoders leave out a space.
class TokenTexts {
 public:
  explicit TokenTexts(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    for (std::size_t id = 0; id < tokenizer.id_limit() && before_text_.empty(); ++id) {
      const std::array<TokenId, 1> before{static_cast<TokenId>(id)};
      if (tokenizer.is_special(before[0]) || tokenizer.is_added(before[0])) continue;
      std::string text = tokenizer.decode(before, /*skip_special_tokens=*/false);
      if (text.size() != 1 || text[0] <= ' ' || has_other_than_ascii(text)) continue;
      before_ = before[0];
      before_text_ = std::move(text);
      decodes_apart_ = !tokenizer.lone_text(before_).empty();
    }
  }

  /// Empty if it does not stand for certain bytes.
  [[nodiscard]] std::string bytes_of(TokenId id) const {
    if (tokenizer_.is_special(id)) {
      const auto spelling = tokenizer_.id_to_token(id);
      return spelling ? GrammarVocabulary::special_bytes(*spelling) : std::string();
    }
    std::string bytes = text_bytes_of(id);
    // That byte is in no text; it marks special tokens.
    if (bytes.find(GrammarVocabulary::kSpecialMark) != std::string::npos) bytes.clear();
    return bytes;
  }

 private:
  [[nodiscard]] std::string text_bytes_of(TokenId id) const {
    const std::string_view text = tokenizer_.lone_text(id);
    if (!text.empty()) return std::string(text);
    const auto spelling = tokenizer_.id_to_token(id);
    if (!spelling) return {};
    if (tokenizer_.is_added(id)) {
      std::string bytes = behind_text(id);
      return bytes.empty() ? std::string(*spelling) : bytes;
    }
    std::string byte = fallback_byte(*spelling);
    if (!byte.empty()) return byte;
    if (!decodes_apart_) return behind_text(id);
    // Parts of characters, which are no text by themselves.
    auto bytes = byte_level::bytes_of(*spelling);
    if (!bytes || !has_other_than_ascii(*bytes)) return {};
    return std::move(*bytes);
  }
  [[nodiscard]] std::string behind_text(TokenId id) const {
    if (before_text_.empty()) return {};
    const std::string text = tokenizer_.decode(std::array{before_, id}, false);
    if (!text.starts_with(before_text_) || text.find(unicode::kReplacement) != std::string::npos)
      return {};
    return text.substr(before_text_.size());
  }

  const Tokenizer& tokenizer_;
  TokenId before_ = 0;
  std::string before_text_;     ///< of that token: one character
  bool decodes_apart_ = false;  ///< the text of a token does not depend on others
};

}  // namespace

std::shared_ptr<const GrammarVocabulary> GrammarVocabulary::from_tokenizer(
    const Tokenizer& tokenizer, std::size_t size) {
  std::vector<std::string> token_bytes(std::min(size, tokenizer.id_limit()));
  const TokenTexts texts(tokenizer);
  for (std::size_t id = 0; id < token_bytes.size(); ++id)
    token_bytes[id] = texts.bytes_of(static_cast<TokenId>(id));
  return make(std::move(token_bytes), size);
}

}  // namespace troupe
