#include "runtime/processors/token_strings.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/utf8.hpp"

namespace troupe {

namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581: a space in SentencePiece

}  // namespace

TokenStrings::TokenStrings(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)) {}

std::string TokenStrings::text(TokenId id, std::span<const TokenId> context) {
  const std::string& alone = text_alone(id);
  return alone.ends_with(unicode::kReplacement) ? completed_text(id, context) : alone;
}

const std::string& TokenStrings::text_alone(TokenId id) {
  const auto [entry, is_new] = texts_.try_emplace(id);
  if (is_new) {
    entry->second = tokenizer_->decode({&id, 1}, false);
    // SentencePiece-style decoders drop the space at the start of a text.
    const auto token = tokenizer_->id_to_token(id);
    if (token && token->starts_with(kMetaspace) && !entry->second.starts_with(' ')) {
      entry->second.insert(0, 1, ' ');
    }
  }
  return entry->second;
}

std::string TokenStrings::completed_text(TokenId id, std::span<const TokenId> context) {
  std::vector<TokenId> ids;
  for (std::size_t count = 1; count <= std::min(kMaxContext, context.size()); ++count) {
    const std::span<const TokenId> before = context.last(count);
    ids.assign(before.begin(), before.end());
    ids.push_back(id);
    const std::string whole = tokenizer_->decode(ids, false);
    if (whole.ends_with(unicode::kReplacement)) continue;
    // Preceding tokens without text of their own belong to this one.
    std::size_t num_complete = count;
    while (num_complete > 0 &&
           text_alone(before[num_complete - 1]).ends_with(unicode::kReplacement)) {
      --num_complete;
    }
    const std::string complete = tokenizer_->decode(before.first(num_complete), false);
    const auto [end, unused] =
        std::mismatch(whole.begin(), whole.end(), complete.begin(), complete.end());
    return {end, whole.end()};
  }
  return {};
}

}  // namespace troupe
