#include "runtime/structured_output/request_grammar.hpp"

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {
namespace {

/// More would be cut for nothing: a token has four bytes and more.
constexpr std::size_t kMaxForcedBytes = 256;

/// The tokens of `text` as the tokenizer cuts it behind a line break, which no token of other text
/// joins. None of a part whose tokens stand for something else.
std::vector<TokenId> cut(const Tokenizer& tokenizer, const GrammarVocabulary& vocabulary,
                         std::string_view text) {
  std::vector<TokenId> tokens;
  const std::string behind_break = "\n" + std::string(text);
  const auto ids = tokenizer.encode(behind_break, /*add_special_tokens=*/false);
  if (!ids.ok()) return tokens;
  std::string_view left = behind_break;
  for (const TokenId id : *ids) {
    std::string_view bytes;
    if (id >= 0 && static_cast<std::size_t>(id) < vocabulary.size()) bytes = vocabulary.bytes(id);
    if (left.size() == behind_break.size() && bytes == " ") continue;  // the decoder's own
    if (bytes.empty() || !left.starts_with(bytes)) return tokens;
    const bool is_break = left.size() == behind_break.size();
    if (is_break && bytes.size() > 1) return tokens;
    left.remove_prefix(bytes.size());
    if (!is_break) tokens.push_back(id);
  }
  return tokens;
}

/// The tokens of `text`, special ones between their marks. The last one is left out if what follows
/// the text may be part of it.
std::vector<TokenId> forced_tokens_of(const Tokenizer& tokenizer,
                                      const GrammarVocabulary& vocabulary, std::string_view text) {
  constexpr char kMark = GrammarVocabulary::kSpecialMark;
  std::vector<TokenId> tokens;
  while (!text.empty()) {
    if (text.front() == kMark) {
      const std::size_t end = text.find(kMark, 1);
      if (end == std::string_view::npos) return tokens;
      const auto special = tokenizer.token_to_id(text.substr(1, end - 1));
      if (!special) return tokens;
      tokens.push_back(*special);
      text.remove_prefix(end + 1);
      continue;
    }
    const std::string_view plain = text.substr(0, text.find(kMark));
    const std::vector<TokenId> cut_tokens = cut(tokenizer, vocabulary, plain);
    std::size_t num_bytes = 0;
    for (const TokenId token : cut_tokens) num_bytes += vocabulary.bytes(token).size();
    tokens.insert(tokens.end(), cut_tokens.begin(), cut_tokens.end());
    if (num_bytes < plain.size()) return tokens;
    text.remove_prefix(plain.size());
    const auto last = static_cast<unsigned char>(plain.back());
    const bool is_open = last <= ' ' || last >= 0x80 || std::isalnum(last) != 0;
    if (text.empty() && is_open && !tokens.empty()) tokens.pop_back();
  }
  return tokens;
}

}  // namespace

/// Used by one masker after another.
struct RequestGrammar::Shared {
  GrammarMatcher matcher;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<TokenId> refused = std::nullopt;  ///< a token of the request that was not accepted
};

class RequestGrammar::Masker final : public GrammarMasker {
 public:
  Masker(std::shared_ptr<Shared> shared, std::vector<TokenId> tokens)
      : shared_(std::move(shared)), tokens_(std::move(tokens)) {}

  bool accept(TokenId token) override {
    take_tokens();
    return !shared_->refused && shared_->matcher.accept(token);
  }
  void rollback(std::size_t num_tokens) override {
    if (num_tokens > 0) shared_->matcher.rollback(num_tokens);
  }
  void fill_bitmask(std::span<std::int32_t> row) override {
    take_tokens();
    if (shared_->refused) {
      std::ranges::fill(row, 0);
      return;
    }
    const std::vector<TokenId> forced = forced_tokens();
    if (forced.empty()) {
      shared_->matcher.fill_bitmask(row);
      return;
    }
    std::ranges::fill(row, 0);
    const auto token = static_cast<std::uint32_t>(forced.front());
    row[token / 32] = static_cast<std::int32_t>(1u << token % 32);
  }
  std::vector<TokenId> likely_tokens(std::size_t max_tokens) override {
    take_tokens();
    if (shared_->refused) return {};
    std::vector<TokenId> tokens = forced_tokens();
    tokens.resize(std::min(tokens.size(), max_tokens));
    return tokens;
  }
  [[nodiscard]] std::optional<Error> why_nothing_fits() const override {
    if (shared_->matcher.failure()) return shared_->matcher.failure();
    if (shared_->refused) {
      return Error{ErrorCode::kInternal,
                   "token " + std::to_string(*shared_->refused) +
                       " was generated, which the grammar does not allow",
                   {}};
    }
    if (shared_->matcher.may_end()) return std::nullopt;
    return invalid_argument(
        "no token of the model's vocabulary continues the text as its grammar asks");
  }

 private:
  /// A model may spell what it has no choice of letter by letter; drafts of it would not come true.
  [[nodiscard]] std::vector<TokenId> forced_tokens() const {
    if (shared_->tokenizer == nullptr) return {};
    const std::string text = shared_->matcher.forced_text(kMaxForcedBytes);
    return forced_tokens_of(*shared_->tokenizer, shared_->matcher.vocabulary(), text);
  }

  void take_tokens() {
    for (const TokenId token : std::exchange(tokens_, {})) {
      if (!shared_->refused && !shared_->matcher.accept(token)) shared_->refused = token;
    }
  }

  std::shared_ptr<Shared> shared_;
  std::vector<TokenId> tokens_;  ///< that the matcher has not got yet
};

RequestGrammar::RequestGrammar(GrammarMatcher matcher, std::shared_ptr<const Tokenizer> tokenizer)
    : shared_(std::make_shared<Shared>(Shared{std::move(matcher), std::move(tokenizer)})),
      words_per_row_(shared_->matcher.words_per_row()) {}

bool RequestGrammar::accept(TokenId token) {
  tokens_.push_back(token);
  return true;
}

void RequestGrammar::rollback(std::size_t num_tokens) {
  CHECK(num_tokens <= tokens_.size(), num_tokens, tokens_.size());
  tokens_.resize(tokens_.size() - num_tokens);
}

std::unique_ptr<GrammarMasker> RequestGrammar::masker() {
  return std::make_unique<Masker>(shared_, std::exchange(tokens_, {}));
}

}  // namespace troupe
