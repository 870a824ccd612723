#pragma once
// Grammars for the fake worker: one token in each place. Three of four are those that the worker
// would have taken anyway, so that drafts are accepted too.

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "runtime/scheduler/grammar.hpp"
#include "tests/support/exact_grammar.hpp"
#include "tests/support/fake_worker.hpp"

namespace troupe::testing {

/// The token that the grammar of a request requires at a position.
[[nodiscard]] inline TokenId grammar_token(RequestId id, std::int32_t position) {
  const TokenId free = fake_token(id, position);
  return position % 4 == 3 ? 300 + (free - 300 + 500) % 1000 : free;
}

class FakeGrammar final : public GrammarMasker {
 public:
  FakeGrammar(RequestId id, std::int32_t prompt_size) : id_(id), position_(prompt_size) {}
  bool accept(TokenId token) override {
    if (position_ >= end_ || token != grammar_token(id_, position_)) return false;
    ++position_;
    return true;
  }
  void rollback(std::size_t num_tokens) override {
    position_ -= static_cast<std::int32_t>(num_tokens);
  }
  [[nodiscard]] std::size_t words_per_row() const { return 42; }  // 1344 tokens
  void fill_bitmask(std::span<std::int32_t> row) override {
    std::fill(row.begin(), row.end(), 0);
    if (position_ >= end_) return;
    const auto token = static_cast<std::size_t>(grammar_token(id_, position_));
    row[token / 32] = static_cast<std::int32_t>(std::uint32_t{1} << (token % 32));
  }
  [[nodiscard]] std::optional<Error> why_nothing_fits() const override { return why_nothing_fits_; }
  /// No token has this position or one behind it.
  void end_at(std::int32_t position, std::optional<Error> why) {
    end_ = position;
    why_nothing_fits_ = std::move(why);
  }

 private:
  RequestId id_;
  std::int32_t position_;
  std::int32_t end_ = std::numeric_limits<std::int32_t>::max();
  std::optional<Error> why_nothing_fits_;
};

/// Sampling parameters of a request with such a grammar.
[[nodiscard]] inline SamplingParams structured(RequestId id, std::int32_t prompt_size) {
  SamplingParams params;
  params.structured_outputs.emplace().texts = {to_string(id) + " " + std::to_string(prompt_size)};
  return params;
}

/// Compiles at once, or when the test says so.
class FakeGrammarCompiler final : public GrammarCompiler {
 public:
  bool hold = false;
  bool hold_masks = false;
  std::optional<std::int32_t> last_position;  ///< of grammars that end
  std::optional<Error> why_nothing_fits;      ///< of those
  void compile(const SamplingParams& params, Done done) override {
    held_.emplace_back(params.structured_outputs->texts.front(), std::move(done));
    if (!hold) release();
  }
  [[nodiscard]] std::size_t num_held() const { return held_.size(); }
  /// The oldest.
  void release() {
    const auto [text, done] = std::move(held_.front());
    held_.pop_front();
    const std::size_t blank = text.find(' ');
    if (blank == std::string::npos) return done(invalid_argument("not a grammar: " + text));
    FakeGrammar grammar(RequestId{std::stoull(text)}, std::stoi(text.substr(blank + 1)));
    if (last_position) grammar.end_at(*last_position, why_nothing_fits);
    done(exact_grammar(std::move(grammar)));
  }
  void fill(GrammarStep step, Filled filled) override {
    GrammarMasks masks = fill_masks(std::move(step));
    if (!hold_masks) return filled(std::move(masks));
    held_masks_.emplace_back(std::move(masks), std::move(filled));
  }
  [[nodiscard]] std::size_t num_held_masks() const { return held_masks_.size(); }
  /// The oldest.
  void release_masks() {
    auto [masks, filled] = std::move(held_masks_.front());
    held_masks_.pop_front();
    filled(std::move(masks));
  }

 private:
  std::deque<std::pair<std::string, Done>> held_;
  std::deque<std::pair<GrammarMasks, Filled>> held_masks_;
};

}  // namespace troupe::testing
