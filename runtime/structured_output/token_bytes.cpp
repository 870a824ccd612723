#include <algorithm>
#include <string>
#include <utility>

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

std::string bytes_of(const Tokenizer& tokenizer, TokenId id) {
  if (tokenizer.is_special(id)) return {};
  const std::string_view text = tokenizer.lone_text(id);
  if (!text.empty()) return std::string(text);
  const auto spelling = tokenizer.id_to_token(id);
  if (!spelling) return {};
  if (tokenizer.is_added(id)) return std::string(*spelling);
  std::string byte = fallback_byte(*spelling);
  if (!byte.empty()) return byte;
  // Parts of characters, which are no text by themselves.
  auto bytes = byte_level::bytes_of(*spelling);
  if (!bytes || !has_other_than_ascii(*bytes)) return {};
  return std::move(*bytes);
}

}  // namespace

std::shared_ptr<const GrammarVocabulary> GrammarVocabulary::from_tokenizer(
    const Tokenizer& tokenizer, std::size_t size) {
  std::vector<std::string> token_bytes(std::min(size, tokenizer.id_limit()));
  for (std::size_t id = 0; id < token_bytes.size(); ++id)
    token_bytes[id] = bytes_of(tokenizer, static_cast<TokenId>(id));
  return make(std::move(token_bytes), size);
}

}  // namespace troupe
