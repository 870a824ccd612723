#include "runtime/tokenizer/added_vocabulary.hpp"

#include <algorithm>

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

using json_fields::Json;

Result<AddedToken> read_token(const Json& json) {
  AddedToken token;
  ASSIGN_OR_RETURN(token.content, json_fields::text(json, "content"));
  ASSIGN_OR_RETURN(token.special, json_fields::boolean(json, "special", false));
  ASSIGN_OR_RETURN(token.single_word, json_fields::boolean(json, "single_word", false));
  ASSIGN_OR_RETURN(token.lstrip, json_fields::boolean(json, "lstrip", false));
  ASSIGN_OR_RETURN(token.rstrip, json_fields::boolean(json, "rstrip", false));
  ASSIGN_OR_RETURN(token.normalized, json_fields::boolean(json, "normalized", !token.special));
  return token;
}

/// Budget of the normalizer for all added tokens together.
constexpr std::uint64_t kMaxLoadUnits = 200'000'000;
constexpr std::size_t kMaxShownBytes = 100;

bool touches_word(std::string_view text, ByteRange range) {
  std::size_t begin = range.begin;
  return (begin > 0 && unicode::is_word(unicode::previous(text, begin))) ||
         (range.end < text.size() && unicode::is_word(unicode::decode_at(text, range.end)));
}

std::size_t whitespace_begin(std::string_view text, std::size_t end, std::size_t lowest) {
  while (end > lowest) {
    std::size_t begin = end;
    if (!unicode::is_whitespace(unicode::previous(text, begin))) break;
    end = begin;
  }
  return end;
}

std::size_t whitespace_end(std::string_view text, std::size_t begin) {
  while (begin < text.size() && unicode::is_whitespace(unicode::decode_at(text, begin))) {
    static_cast<void>(unicode::next(text, begin));
  }
  return begin;
}

}  // namespace

Result<AddedVocabulary> AddedVocabulary::from_json(const Json& list, const Vocabulary& vocabulary,
                                                   const Normalizer& normalizer) {
  AddedVocabulary added;
  if (list.is_null()) return added;
  if (!list.is_array()) return json_fields::malformed("\"added_tokens\" is not an array");
  auto next_id = static_cast<TokenId>(vocabulary.size());
  WorkBudget work({}, kMaxLoadUnits);
  for (const Json& json : list) {
    ASSIGN_OR_RETURN(AddedToken token, read_token(json));
    if (token.content.empty() || added.by_content_.contains(token.content)) continue;
    if (const auto id = vocabulary.id_of(token.content)) {
      token.id = *id;
    } else {
      token.id = next_id;
      ++added.num_new_;
    }
    next_id = std::max(next_id, token.id + 1);
    if (token.id > Vocabulary::kMaxId) {
      return json_fields::malformed("more than " + std::to_string(Vocabulary::kMaxId) + " tokens");
    }
    token.shown = token.content;
    if (token.normalized) {
      AlignedText text(token.content, 0, false);
      try {
        normalizer.apply(text, work);
      } catch (const WorkStopped&) {
        return json_fields::malformed("the normalizer expands the added tokens too much, at \"" +
                                      token.content.substr(0, kMaxShownBytes) + "\"");
      }
      token.shown = text.view();
    }
    const std::size_t index = added.tokens_.size();
    (token.normalized ? added.normalized_ : added.raw_).add(token.shown, index);
    added.by_id_[token.id] = index;
    added.by_content_[token.content] = index;
    added.id_limit_ = std::max(added.id_limit_, static_cast<std::size_t>(token.id) + 1);
    added.tokens_.push_back(std::move(token));
  }
  return added;
}

std::vector<AddedSplit> AddedVocabulary::split(std::string_view text, const TokenTrie& trie,
                                               WorkBudget& work) const {
  std::vector<AddedSplit> splits;
  std::size_t begin = 0;  // end of the last split
  std::size_t from = 0;
  while (!trie.empty()) {
    const auto match = trie.find_longest(text, from, work);
    if (!match) break;
    from = match->end;
    const AddedToken& token = tokens_[match->value];
    ByteRange range{match->begin, match->end};
    if (token.single_word && touches_word(text, range)) continue;
    if (token.lstrip) {
      range.begin = range.begin < begin ? begin : whitespace_begin(text, range.begin, begin);
    }
    if (token.rstrip) range.end = whitespace_end(text, range.end);
    work.charge(range.size());
    if (begin < range.begin) splits.push_back({{begin, range.begin}, nullptr});
    splits.push_back({range, &token});
    begin = range.end;
  }
  if (begin < text.size()) splits.push_back({{begin, text.size()}, nullptr});
  return splits;
}

const AddedToken* AddedVocabulary::find(TokenId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &tokens_[it->second];
}

std::optional<TokenId> AddedVocabulary::id_of(std::string_view content) const {
  const auto it = by_content_.find(content);
  if (it == by_content_.end()) return std::nullopt;
  return tokens_[it->second].id;
}

}  // namespace troupe
