#include "runtime/structured_output/grammar_vocabulary.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/base/utf8.hpp"

namespace troupe {
namespace {

/// Longer tokens are taken by no grammar; real ones have up to a few hundred bytes.
constexpr std::size_t kMaxTokenBytes = 4096;
constexpr std::array<std::uint32_t, 5> kSliceCharacters{2, 4, 8, 16,
                                                        std::numeric_limits<std::uint32_t>::max()};

/// Length of the character at the beginning of `text`; 0 if it is none.
std::size_t character_length(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  const std::size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i)
    if (!unicode::is_continuation(at(i))) return 0;
  // Neither longer than need be, nor a surrogate, nor above U+10FFFF.
  if ((lead == 0xE0 && at(1) < 0xA0) || (lead == 0xED && at(1) > 0x9F) ||
      (lead == 0xF0 && at(1) < 0x90) || (lead == 0xF4 && at(1) > 0x8F))
    return 0;
  return size;
}

/// The spelling of a special token, by what stands for it; empty if it is none.
std::string_view special_spelling(std::string_view bytes) {
  constexpr char kMark = GrammarVocabulary::kSpecialMark;
  if (bytes.size() < 3 || bytes.front() != kMark || bytes.back() != kMark) return {};
  return bytes.substr(1, bytes.size() - 2);
}

/// How many characters the text has, if all of them may stand in a JSON string as they are and are
/// no ends of lines (U+2028 and U+2029 may stand there, but patterns tell them apart).
std::optional<std::uint32_t> plain_characters(std::string_view text) {
  std::uint32_t count = 0;
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    if (first < 0x20 || first == '"' || first == '\\') return std::nullopt;
    const std::size_t length = character_length(text);
    if (length == 0 || text.starts_with("\u2028") || text.starts_with("\u2029"))
      return std::nullopt;
    text.remove_prefix(length);
    ++count;
  }
  return count;
}

}  // namespace

TokenBytesTree::TokenBytesTree(std::span<const std::string> token_bytes,
                               std::span<const TokenId> tokens) {
  std::vector<std::uint32_t> open;  // the nodes of the last token's bytes
  std::string_view last;
  const auto close = [&](std::size_t depth) {
    while (open.size() > depth) {
      nodes_[open.back()].end = static_cast<std::uint32_t>(nodes_.size());
      open.pop_back();
    }
  };
  for (const TokenId token : tokens) {
    const std::string_view bytes = token_bytes[static_cast<std::size_t>(token)];
    const auto differ = std::ranges::mismatch(bytes, last);
    close(static_cast<std::size_t>(differ.in1 - bytes.begin()));
    for (std::size_t i = open.size(); i < bytes.size(); ++i) {
      open.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back(
          {.depth = static_cast<std::uint16_t>(i), .byte = static_cast<unsigned char>(bytes[i])});
    }
    nodes_.back().token = token;
    last = bytes;
    max_depth_ = std::max(max_depth_, bytes.size());
  }
  close(0);
}

std::shared_ptr<const GrammarVocabulary> GrammarVocabulary::make(
    std::vector<std::string> token_bytes, std::size_t size) {
  CHECK(size >= token_bytes.size(), size, token_bytes.size());
  const std::shared_ptr<GrammarVocabulary> made(new GrammarVocabulary());
  GrammarVocabulary& vocabulary = *made;
  vocabulary.size_ = size;
  vocabulary.token_bytes_ = std::move(token_bytes);
  auto& texts = vocabulary.token_bytes_;
  texts.resize(size);
  std::vector<TokenId> sorted;
  for (std::size_t id = 0; id < size; ++id) {
    if (texts[id].size() > kMaxTokenBytes) texts[id].clear();
    if (texts[id].empty()) continue;
    sorted.push_back(static_cast<TokenId>(id));
    if (const auto spelling = special_spelling(texts[id]); !spelling.empty())
      vocabulary.special_tokens_.emplace_back(spelling);
  }
  const auto text_of = [&](TokenId id) -> const std::string& {
    return texts[static_cast<std::size_t>(id)];
  };
  std::ranges::sort(sorted, [&](TokenId a, TokenId b) {
    const int order = text_of(a).compare(text_of(b));
    return order != 0 ? order < 0 : a < b;
  });
  // One of those with the same bytes stands for all.
  std::vector<TokenId> distinct;
  for (const TokenId id : sorted) {
    if (distinct.empty() || text_of(distinct.back()) != text_of(id)) {
      distinct.push_back(id);
      continue;
    }
    auto& same = vocabulary.same_bytes_;
    same.resize(size, -1);
    same[static_cast<std::size_t>(id)] =
        std::exchange(same[static_cast<std::size_t>(distinct.back())], id);
  }
  vocabulary.tree_ = TokenBytesTree(texts, distinct);
  std::vector<std::optional<std::uint32_t>> plain(size);
  for (const TokenId id : distinct)
    plain[static_cast<std::size_t>(id)] = plain_characters(text_of(id));
  for (const std::uint32_t max_characters : kSliceCharacters) {
    Slice slice{.max_characters = max_characters};
    slice.tokens.resize(vocabulary.num_words());
    std::vector<TokenId> others;
    for (const TokenId id : distinct) {
      const auto count = plain[static_cast<std::size_t>(id)];
      if (!count || *count > max_characters) {
        others.push_back(id);
        continue;
      }
      for (TokenId same = id; same >= 0; same = vocabulary.same_bytes(same))
        slice.tokens[static_cast<std::size_t>(same) / 32] |= 1u << static_cast<unsigned>(same) % 32;
    }
    slice.others = TokenBytesTree(texts, others);
    vocabulary.slices_.push_back(std::move(slice));
  }
  return made;
}

std::string GrammarVocabulary::special_bytes(std::string_view spelling) {
  std::string bytes(1, kSpecialMark);
  bytes += spelling;
  bytes += kSpecialMark;
  return bytes;
}

std::string_view GrammarVocabulary::bytes(TokenId token) const {
  return token_bytes_[static_cast<std::size_t>(token)];
}

}  // namespace troupe
