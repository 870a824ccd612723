#include "runtime/structured_output/compiled_grammar.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/structured_output/grammar_conversion.hpp"

namespace troupe {
namespace {

/// Masks that are kept for one grammar.
constexpr std::size_t kMaxMaskBytes = std::size_t{16} << 20;
constexpr ExpressionId kNothing = Expressions::kNothing;

/// Without the ends of lines, which a pattern's '.' does not take.
const CodePointSet& plain_characters() {
  static const CodePointSet set{
      {0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x2027}, {0x202A, CodePointSet::kMax}};
  return set;
}

}  // namespace

class CompiledGrammar::Access {
 public:
  explicit Access(CompiledGrammar& grammar) : grammar_(grammar), lock_(grammar.mutex_) {
    grammar.expressions_.begin_call();
  }
  ~Access() { grammar_.num_bytes_ = grammar_.expressions_.num_bytes() + grammar_.mask_bytes_; }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

 private:
  CompiledGrammar& grammar_;
  std::lock_guard<std::mutex> lock_;
};

CompiledGrammar::CompiledGrammar(std::shared_ptr<const GrammarBuilder> source,
                                 Expressions expressions, ExpressionId start,
                                 ExpressionId plain_character,
                                 std::shared_ptr<const GrammarVocabulary> vocabulary)
    : source_(std::move(source)),
      expressions_(std::move(expressions)),
      start_(start),
      plain_character_(plain_character),
      vocabulary_(std::move(vocabulary)),
      max_bytes_(source_->limits().max_bytes),
      walk_(vocabulary_->tree().max_depth() + 1),
      walk_states_(vocabulary_->tree().max_depth() + 1) {
  const Access first(*this);
}

std::shared_ptr<CompiledGrammar> CompiledGrammar::compile(
    std::shared_ptr<const GrammarBuilder> source,
    std::shared_ptr<const GrammarVocabulary> vocabulary) {
  const GrammarBuilder& builder = *source;
  GrammarBuilder plain;
  const GrammarNodeId plain_node = plain.code_points(plain_characters());
  std::vector<ByteSet> sets = builder.sets();
  sets.insert(sets.end(), plain.sets().begin(), plain.sets().end());
  if (std::ranges::any_of(builder.nodes(), [](const GrammarNode& node) {
        return node.kind == GrammarNodeKind::kMultiple;
      })) {
    for (const char c : std::string_view("-.0123456789"))
      sets.push_back(ByteSet().set(static_cast<unsigned char>(c)));
  }
  Expressions expressions(ByteClasses(sets), builder.limits());
  const ExpressionId plain_character = to_expression(plain, plain_node, expressions);
  set_rules(source, expressions);
  const ExpressionId start = expressions.body(0);
  if (start == kNothing) throw GrammarRefused("no text fits the grammar");
  return std::shared_ptr<CompiledGrammar>(new CompiledGrammar(
      std::move(source), std::move(expressions), start, plain_character, std::move(vocabulary)));
}

Result<std::shared_ptr<CompiledGrammar>> CompiledGrammar::compile(
    GrammarBuilder builder, std::shared_ptr<const GrammarVocabulary> vocabulary) {
  CHECK(!builder.bodies().empty());
  try {
    return compile(std::make_shared<const GrammarBuilder>(std::move(builder)),
                   std::move(vocabulary));
  } catch (const GrammarRefused& refused) {
    return refused.error();
  }
}

std::shared_ptr<CompiledGrammar> CompiledGrammar::successor() {
  if (auto other = line_->latest_but(this)) return other;
  auto made = compile(source_, vocabulary_);
  made->line_ = line_;
  const std::lock_guard lock(line_->mutex);
  if (auto other = line_->latest.lock(); other != nullptr && other.get() != this) return other;
  line_->latest = made;
  return made;
}

std::vector<GrammarState> CompiledGrammar::states_in(CompiledGrammar& successor,
                                                     std::span<const GrammarState> states) {
  const Access from(*this);
  const Access to(successor);
  std::unordered_map<ExpressionId, ExpressionId> known;
  std::vector<GrammarState> result;
  for (const GrammarState state : states)
    result.push_back(successor.expressions_.import(expressions_, state, known));
  return result;
}

std::shared_ptr<CompiledGrammar> CompiledGrammar::latest(std::shared_ptr<CompiledGrammar> grammar) {
  auto other = grammar->line_->latest_but(grammar.get());
  return other != nullptr ? other : grammar;
}

std::optional<GrammarState> CompiledGrammar::advance(GrammarState state, std::string_view bytes) {
  const Access access(*this);
  for (const char c : bytes) {
    state = expressions_.step(state, static_cast<unsigned char>(c));
    if (state == kNothing) return std::nullopt;
  }
  return state;
}

bool CompiledGrammar::may_end(GrammarState state) {
  const std::lock_guard lock(mutex_);
  return expressions_.nullable(state);
}

void CompiledGrammar::fill_bitmask(GrammarState state, std::span<std::int32_t> row) {
  const Access access(*this);
  const Mask& known = mask(state);
  if (!known.words.empty()) {
    std::ranges::copy(known.words, row.begin());
    return;
  }
  if (known.slice != nullptr) {
    std::ranges::copy(known.slice->tokens, row.begin());
  } else {
    std::ranges::fill(row, 0);
  }
  for (const TokenId token : known.tokens) {
    auto& word = row[static_cast<std::size_t>(token) / 32];
    word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) |
                                     1u << static_cast<unsigned>(token) % 32);
  }
}

std::optional<char> CompiledGrammar::only_byte(GrammarState state) {
  if (expressions_.nullable(state)) return std::nullopt;
  const ByteClasses& classes = expressions_.classes();
  std::optional<char> only;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    if (expressions_.step(state, classes.representative(c)) == kNothing) continue;
    if (only || classes.num_bytes(c) > 1) return std::nullopt;
    only = static_cast<char>(classes.representative(c));
  }
  return only;
}

std::string CompiledGrammar::forced_text(GrammarState state, std::size_t max_bytes) {
  const Access access(*this);
  std::string text;
  while (text.size() < max_bytes) {
    const std::optional<char> next = only_byte(state);
    if (!next) break;
    text += *next;
    state = expressions_.step(state, static_cast<unsigned char>(*next));
  }
  return text;
}

const CompiledGrammar::Mask& CompiledGrammar::mask(GrammarState state) {
  const auto known = masks_.find(state);
  if (known != masks_.end()) return known->second;
  Mask made = compute_mask(state);
  if (made.slice == nullptr && made.tokens.size() > vocabulary_->num_words() / 2) {
    made.words.resize(vocabulary_->num_words());
    for (const TokenId token : made.tokens)
      made.words[static_cast<std::size_t>(token) / 32] |= 1u << static_cast<unsigned>(token) % 32;
    made.tokens.clear();
  }
  made.tokens.shrink_to_fit();
  const std::size_t num_bytes = sizeof(Mask) + made.tokens.size() * sizeof(TokenId) +
                                made.words.size() * sizeof(made.words[0]);
  if (mask_bytes_ + num_bytes > kMaxMaskBytes) {
    masks_.clear();
    mask_bytes_ = 0;
  }
  mask_bytes_ += num_bytes;
  return masks_.emplace(state, std::move(made)).first->second;
}

bool CompiledGrammar::takes_plain(ExpressionId e) {
  if (!expressions_.node(e).is_finite) return false;
  const auto [known, is_new] = takes_plain_.try_emplace(e, false);
  if (is_new) known->second = expressions_.contains(e, plain_character_);
  return known->second;
}

std::uint32_t CompiledGrammar::num_plain_characters(ExpressionId e, int depth) {
  constexpr int kMaxDepth = 16;
  if (depth > kMaxDepth) return 0;
  const Expressions::Node node = expressions_.node(e);
  using Kind = Expressions::Kind;
  switch (node.kind) {
    case Kind::kSequence:
      return num_plain_characters(node.a, depth + 1);
    case Kind::kRepeat:
      return takes_plain(node.a) ? node.max : 0;
    case Kind::kChoice: {
      std::uint32_t most = 0;
      for (std::uint32_t i = 0; i < node.b; ++i)
        most = std::max(
            most, num_plain_characters(expressions_.children(expressions_.node(e))[i], depth + 1));
      return most;
    }
    case Kind::kIntersection:
      return num_common_plain_characters(e, depth);
    default:
      return 0;
  }
}

std::uint32_t CompiledGrammar::num_common_plain_characters(ExpressionId e, int depth) {
  const auto children = expressions_.children(expressions_.node(e));
  // Together they exclude less than there are plain characters, of which there are over 2^20.
  constexpr std::uint8_t kFewBits = 16;
  constexpr std::size_t kMaxExcluding = 16;
  std::vector<ExpressionId> parts;
  for (const ExpressionId child : children) {
    const Expressions::Node& node = expressions_.node(child);
    if (node.kind == Expressions::Kind::kIntersection) return 0;
    const bool excludes_few = node.kind == Expressions::Kind::kComplement &&
                              expressions_.node(node.a).text_bits <= kFewBits;
    if (!excludes_few) parts.push_back(child);
  }
  if (children.size() - parts.size() > kMaxExcluding) return 0;
  std::uint32_t least = Expressions::kUnbounded;
  if (parts.size() == 1) least = num_plain_characters(parts[0], depth + 1);
  if (parts.size() > 1) least = num_plain_characters_of_all(parts);
  // Behind all characters but the last, more texts go on than are excluded.
  return least == Expressions::kUnbounded || least == 0 ? least : least - 1;
}

std::uint32_t CompiledGrammar::num_plain_characters_of_all(std::span<const ExpressionId> parts) {
  // Each may go on and yet they have no text in common. Here a common text of the searches still
  // fits behind any plain characters, as long as the repetitions leave room for it.
  std::vector<ExpressionId> searches;
  std::optional<ExpressionId> repeated;
  std::uint32_t min = 0;
  std::uint32_t max = Expressions::kUnbounded;
  bool same_repeated = true;
  for (const ExpressionId part : parts) {
    const Expressions::Node node = expressions_.node(part);
    if (node.kind == Expressions::Kind::kRepeat && takes_plain(node.a)) {
      same_repeated = same_repeated && repeated.value_or(node.a) == node.a;
      repeated = node.a;
      min = std::max(min, node.min);
      max = std::min(max, node.max);
    } else if (const ExpressionId found = search_in(part); found != kNothing) {
      searches.push_back(found);
    } else {
      return 0;
    }
  }
  if (min > max) return 0;
  if (searches.empty()) return max;
  if (!same_repeated) return 0;
  constexpr std::uint32_t kMaxRoom = 64;
  for (std::uint32_t room = 1; room < max && room <= kMaxRoom; room *= 2) {
    std::vector<ExpressionId> together = searches;
    if (repeated) together.push_back(expressions_.repeat(*repeated, 0, room));
    if (expressions_.surely_have_common_text(std::move(together)))
      return max == Expressions::kUnbounded ? max : max - room;
  }
  return 0;
}

ExpressionId CompiledGrammar::search_in(ExpressionId e) {
  const auto is_search = [&](ExpressionId one) {
    const Expressions::Node& node = expressions_.node(one);
    if (node.kind != Expressions::Kind::kSequence) return false;
    const Expressions::Node& head = expressions_.node(node.a);
    return head.kind == Expressions::Kind::kRepeat && head.max == Expressions::kUnbounded &&
           takes_plain(head.a);
  };
  if (is_search(e)) return e;
  const Expressions::Node node = expressions_.node(e);
  for (std::uint32_t i = 0; node.kind == Expressions::Kind::kChoice && i < node.b; ++i) {
    const ExpressionId child = expressions_.children(node)[i];
    if (is_search(child)) return child;
  }
  return kNothing;
}

CompiledGrammar::Mask CompiledGrammar::compute_mask(GrammarState state) {
  Mask mask;
  const TokenBytesTree* tree = &vocabulary_->tree();
  const std::uint32_t num_plain = num_plain_characters(state);
  for (const GrammarVocabulary::Slice& slice : vocabulary_->slices()) {
    if (slice.max_characters <= num_plain || vocabulary_->tree().max_depth() <= num_plain) {
      mask.slice = &slice;
      tree = &slice.others;
    }
  }
  const auto& nodes = tree->nodes();
  const ByteClasses& classes = expressions_.classes();
  walk_[0] = expressions_.row(state);
  walk_states_[0] = state;
  for (std::size_t i = 0; i < nodes.size();) {
    const TokenBytesTree::Node& node = nodes[i];
    const std::uint8_t byte_class = classes.of(node.byte);
    ExpressionId next = walk_[node.depth][byte_class];
    if (next == Expressions::kUnknown)
      next = expressions_.derive_state(walk_states_[node.depth], byte_class);
    if (next == kNothing) {
      i = node.end;
      continue;
    }
    for (TokenId token = node.token; token >= 0; token = vocabulary_->same_bytes(token))
      mask.tokens.push_back(token);
    ++i;
    if (i < node.end) {  // it has children
      walk_[node.depth + 1u] = expressions_.row(next);
      walk_states_[node.depth + 1u] = next;
    }
  }
  return mask;
}

// ---- GrammarMatcher --------------------------------------------------------------------------

GrammarMatcher::GrammarMatcher(std::shared_ptr<CompiledGrammar> grammar,
                               std::vector<TokenId> stop_tokens)
    : grammar_(std::move(grammar)),
      stop_tokens_(std::move(stop_tokens)),
      states_{grammar_->start()} {}

bool GrammarMatcher::is_stop(TokenId token) const {
  return std::find(stop_tokens_.begin(), stop_tokens_.end(), token) != stop_tokens_.end();
}

bool GrammarMatcher::has_ended() const noexcept { return states_.back() == kEnded; }

bool GrammarMatcher::may_end() const { return has_ended() || grammar_->may_end(states_.back()); }

bool GrammarMatcher::accept(TokenId token) {
  auto next = state_behind(token);
  if (!next && is_stop(token) && may_end()) next = kEnded;
  if (!next) return false;
  // Old states would be moved for nothing; they go many at a time.
  if (states_.size() >= 2 * kMaxRollback)
    states_.erase(states_.begin(), states_.end() - static_cast<std::ptrdiff_t>(kMaxRollback));
  states_.push_back(*next);
  return true;
}

std::optional<GrammarState> GrammarMatcher::state_behind(TokenId token) {
  const GrammarVocabulary& vocabulary = grammar_->vocabulary();
  if (has_ended() || token < 0 || static_cast<std::size_t>(token) >= vocabulary.size())
    return std::nullopt;
  const std::string_view bytes = vocabulary.bytes(token);
  if (bytes.empty()) return std::nullopt;
  std::optional<GrammarState> next;
  with_grammar(
      [&](CompiledGrammar& grammar, GrammarState state) { next = grammar.advance(state, bytes); });
  return next;
}

template <class Use>
bool GrammarMatcher::with_grammar(const Use& use) {
  failure_.reset();
  constexpr int kMaxMoves = 2;  // others may have filled the first successor
  for (int moves = 0;; ++moves) {
    try {
      use(*grammar_, states_.back());
      failure_.reset();
      return true;
    } catch (const GrammarRefused& refused) {
      failure_ = refused.error();
    }
    if (moves == kMaxMoves || !grammar_->is_full()) return false;
    try {
      move_to(CompiledGrammar::latest(grammar_->successor()));
    } catch (const GrammarRefused& refused) {
      failure_ = refused.error();
      return false;
    }
  }
}

void GrammarMatcher::move_to(const std::shared_ptr<CompiledGrammar>& grammar) {
  states_ = grammar_->states_in(*grammar, states_);
  grammar_ = grammar;
}

void GrammarMatcher::rollback(std::size_t num_tokens) {
  CHECK(num_tokens < states_.size(), num_tokens, states_.size());
  states_.resize(states_.size() - num_tokens);
}

std::string GrammarMatcher::forced_text(std::size_t max_bytes) {
  std::string text;
  if (has_ended()) return text;
  const bool done = with_grammar([&](CompiledGrammar& grammar, GrammarState state) {
    text = grammar.forced_text(state, max_bytes);
  });
  failure_.reset();  // masks tell of it
  return done ? text : std::string();
}

std::size_t GrammarMatcher::words_per_row() const { return grammar_->vocabulary().num_words(); }

void GrammarMatcher::fill_bitmask(std::span<std::int32_t> row) {
  CHECK(row.size() == words_per_row(), row.size(), words_per_row());
  const auto fill = [&](CompiledGrammar& grammar, GrammarState state) {
    grammar.fill_bitmask(state, row);
  };
  if (has_ended() || !with_grammar(fill)) std::ranges::fill(row, 0);
  if (!may_end()) return;
  for (const TokenId token : stop_tokens_) {
    if (token < 0 || static_cast<std::size_t>(token) >= grammar_->vocabulary().size()) continue;
    auto& word = row[static_cast<std::size_t>(token) / 32];
    word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) |
                                     1u << static_cast<unsigned>(token) % 32);
  }
}

}  // namespace troupe
