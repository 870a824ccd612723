#include "runtime/tokenizer/pre_tokenizer.hpp"

#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/byte_level.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/pattern.hpp"
#include "runtime/tokenizer/splitters.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

using json_fields::Json;
using PreTokenizerPtr = std::unique_ptr<const PreTokenizer>;

/// What a split does with its matches: "a-b" on "-" gives a b | a - b | a- b | a -b | a - b (runs
/// as one).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Result<SplitBehavior> behavior_from(const Json& json, const char* fallback) {
  ASSIGN_OR_RETURN(const std::optional<std::string> given,
                   json_fields::optional_text(json, "behavior"));
  const std::string name = given.value_or(fallback);
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return json_fields::malformed("split behavior \"" + name + "\" is unknown");
}

/// Collects the pieces of one split from matches and gaps.
class PieceCollector {
 public:
  PieceCollector(SplitBehavior behavior, std::vector<ByteRange>& pieces)
      : behavior_(behavior), pieces_(pieces) {}

  void begin_piece() {
    first_ = pieces_.size();
    previous_is_match_ = false;
  }

  void add(ByteRange range, bool is_match) {
    const bool has_previous = pieces_.size() > first_;
    bool joins_previous = false;
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        if (is_match) return;
        break;
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kMergedWithPrevious:
        joins_previous = is_match && !previous_is_match_;
        break;
      case SplitBehavior::kMergedWithNext:
        joins_previous = !is_match && previous_is_match_;
        break;
      case SplitBehavior::kContiguous:
        joins_previous = is_match == previous_is_match_;
        break;
    }
    previous_is_match_ = is_match;
    if (joins_previous && has_previous) {
      pieces_.back().end = range.end;
    } else if (!range.empty()) {
      pieces_.push_back(range);
    }
  }

 private:
  SplitBehavior behavior_;
  std::vector<ByteRange>& pieces_;
  std::size_t first_ = 0;
  bool previous_is_match_ = false;
};

/// Splits every piece at the matches of `find`.
template <class Find>
void split_pieces(PreTokenizedText& text, const Find& find, SplitBehavior behavior, bool invert,
                  WorkBudget& work) {
  work.charge(1 + text.text.view().size() / 4);
  std::vector<ByteRange> pieces;
  pieces.reserve(text.pieces.size() + text.text.view().size() / 4);
  PieceCollector collector(behavior, pieces);
  for (const ByteRange piece : text.pieces) {
    work.charge();
    collector.begin_piece();
    for_each_match(text.text.view(piece), find, [&](ByteRange range, bool is_match) {
      work.charge();
      collector.add({piece.begin + range.begin, piece.begin + range.end}, is_match != invert);
    });
  }
  text.pieces = std::move(pieces);
}

/// A match is one character for which `predicate` holds.
template <class Predicate>
auto find_character(Predicate predicate) {
  return [predicate](std::string_view text, std::size_t from) -> std::optional<ByteRange> {
    while (from < text.size()) {
      const std::size_t begin = from;
      if (predicate(unicode::next(text, from))) return ByteRange{begin, from};
    }
    return std::nullopt;
  };
}

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<PreTokenizerPtr> steps) : steps_(std::move(steps)) {}
  void apply(PreTokenizedText& text, WorkBudget& work) const override {
    for (const PreTokenizerPtr& step : steps_) step->apply(text, work);
  }

 private:
  std::vector<PreTokenizerPtr> steps_;
};

class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)),
        splitter_(splitter_for(pattern_.expression())),
        behavior_(behavior),
        invert_(invert) {}

  void apply(PreTokenizedText& text, WorkBudget& work) const override {
    if (splitter_ != nullptr) return split_pieces(text, splitter_, behavior_, invert_, work);
    split_pieces(
        text,
        [&](std::string_view piece, std::size_t from) { return pattern_.find(piece, from, work); },
        behavior_, invert_, work);
  }

 private:
  Pattern pattern_;
  Splitter splitter_;  ///< an equivalent, faster matcher for pattern_; null: none
  SplitBehavior behavior_;
  bool invert_;
};

template <class Predicate>
class CharacterPreTokenizer : public PreTokenizer {
 public:
  CharacterPreTokenizer(Predicate predicate, SplitBehavior behavior)
      : predicate_(std::move(predicate)), behavior_(behavior) {}
  void apply(PreTokenizedText& text, WorkBudget& work) const override {
    split_pieces(text, find_character(predicate_), behavior_, false, work);
  }

 private:
  Predicate predicate_;
  SplitBehavior behavior_;
};

template <class Predicate>
PreTokenizerPtr split_at_characters(Predicate predicate, SplitBehavior behavior) {
  return std::make_unique<CharacterPreTokenizer<Predicate>>(std::move(predicate), behavior);
}

/// Whitespace: runs of word characters and runs of other visible ones.
class WhitespacePreTokenizer : public PreTokenizer {
 public:
  void apply(PreTokenizedText& text, WorkBudget& work) const override {
    const auto kind = [](char32_t c) {
      return unicode::is_word(c) ? 2 : unicode::is_whitespace(c) ? 0 : 1;
    };
    const auto find = [kind](std::string_view piece, std::size_t from) -> std::optional<ByteRange> {
      while (from < piece.size()) {
        const std::size_t begin = from;
        const int run = kind(unicode::next(piece, from));
        if (run == 0) continue;
        while (from < piece.size() && kind(unicode::decode_at(piece, from)) == run) {
          static_cast<void>(unicode::next(piece, from));
        }
        return ByteRange{begin, from};
      }
      return std::nullopt;
    };
    split_pieces(text, find, SplitBehavior::kRemoved, true, work);
  }
};

/// Rewrites all pieces in one pass: rewrite_piece(rewriter, piece) writes a piece's new form.
template <class RewritePiece>
void rewrite_pieces(PreTokenizedText& text, WorkBudget& work, const RewritePiece& rewrite_piece) {
  TextRewriter rewriter(text.text, work);
  for (ByteRange& piece : text.pieces) {
    rewriter.skip(piece.begin - rewriter.cursor());
    const std::size_t begin = rewriter.written();
    rewrite_piece(rewriter, piece);
    piece = {begin, rewriter.written()};
  }
  rewriter.finish();
}

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, bool use_regex, bool leaves_bytes)
      : add_prefix_space_(add_prefix_space), use_regex_(use_regex), leaves_bytes_(leaves_bytes) {}

  void apply(PreTokenizedText& text, WorkBudget& work) const override {
    if (add_prefix_space_) add_prefix_spaces(text, work);
    if (use_regex_) {
      split_pieces(text, splitter_for(byte_level::kPattern), SplitBehavior::kIsolated, false, work);
    }
    if (!leaves_bytes_) spell_bytes(text, work);
  }

 private:
  static void add_prefix_spaces(PreTokenizedText& text, WorkBudget& work) {
    rewrite_pieces(text, work, [&](TextRewriter& rewriter, ByteRange piece) {
      if (text.text.view(piece).front() != ' ') rewriter.insert_before(" ");
      rewriter.keep(piece.size());
    });
  }

  static void spell_bytes(PreTokenizedText& text, WorkBudget& work) {
    rewrite_pieces(text, work, [&](TextRewriter& rewriter, ByteRange piece) {
      const std::string_view bytes = text.text.view();
      for (std::size_t i = piece.begin; i < piece.end; ++i) {
        rewriter.replace(byte_level::spelling(static_cast<unsigned char>(bytes[i])), 1);
      }
    });
  }

  bool add_prefix_space_;
  bool use_regex_;
  bool leaves_bytes_;
};

/// Metaspace: replaces spaces by a visible mark, optionally adds one in front of the text, and
/// starts a piece at each mark.
class MetaspacePreTokenizer : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  MetaspacePreTokenizer(char32_t mark, Prepend prepend, bool split)
      : mark_(unicode::to_utf8(mark)), prepend_(prepend), split_(split) {}

  void apply(PreTokenizedText& text, WorkBudget& work) const override {
    rewrite_pieces(text, work, [&](TextRewriter& rewriter, ByteRange piece) {
      const std::string_view old = text.text.view();
      if (prepends_to(text.text, piece)) rewriter.insert_before(mark_);
      for (std::size_t i = piece.begin; i < piece.end;) {
        const std::size_t length = old.substr(i, piece.end - i).find(' ');
        const std::size_t space = length == std::string_view::npos ? piece.end : i + length;
        rewriter.keep(space - i);
        i = space;
        if (i < piece.end) {
          rewriter.replace(mark_, 1);
          ++i;
        }
      }
    });
    if (!split_) return;
    const auto find_mark = [this](std::string_view piece,
                                  std::size_t from) -> std::optional<ByteRange> {
      const std::size_t begin = piece.find(mark_, from);
      if (begin == std::string_view::npos) return std::nullopt;
      return ByteRange{begin, begin + mark_.size()};
    };
    split_pieces(text, find_mark, SplitBehavior::kMergedWithNext, false, work);
  }

 private:
  [[nodiscard]] bool prepends_to(const AlignedText& text, ByteRange piece) const {
    const std::string_view content = text.view(piece);
    if (prepend_ == Prepend::kNever || content.starts_with(' ') || content.starts_with(mark_)) {
      return false;
    }
    return prepend_ == Prepend::kAlways || text.origin(piece).begin == 0;
  }

  std::string mark_;
  Prepend prepend_;
  bool split_;
};

Result<MetaspacePreTokenizer::Prepend> prepend_scheme_from(const Json& json) {
  using Prepend = MetaspacePreTokenizer::Prepend;
  ASSIGN_OR_RETURN(const std::optional<std::string> scheme,
                   json_fields::optional_text(json, "prepend_scheme"));
  // Files older than prepend_scheme have add_prefix_space.
  ASSIGN_OR_RETURN(const bool adds_prefix, json_fields::boolean(json, "add_prefix_space", true));
  if (!adds_prefix || scheme == "never") return Prepend::kNever;
  if (!scheme || scheme == "always") return Prepend::kAlways;
  if (scheme == "first") return Prepend::kFirst;
  return json_fields::malformed("prepend_scheme \"" + *scheme + "\" is unknown");
}

Result<PreTokenizerPtr> make_metaspace(const Json& json) {
  ASSIGN_OR_RETURN(const char32_t mark, json_fields::character(json, "replacement"));
  ASSIGN_OR_RETURN(const auto prepend, prepend_scheme_from(json));
  ASSIGN_OR_RETURN(const bool split, json_fields::boolean(json, "split", true));
  return PreTokenizerPtr(std::make_unique<MetaspacePreTokenizer>(mark, prepend, split));
}

Result<PreTokenizerPtr> make_byte_level(const Json& json, bool leaves_bytes) {
  ASSIGN_OR_RETURN(const bool prefix, json_fields::boolean(json, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool use_regex, json_fields::boolean(json, "use_regex", true));
  return PreTokenizerPtr(std::make_unique<ByteLevelPreTokenizer>(prefix, use_regex, leaves_bytes));
}

Result<PreTokenizerPtr> make_split(const Json& json) {
  if (!json.contains("pattern")) return json_fields::malformed("Split has no \"pattern\"");
  ASSIGN_OR_RETURN(Pattern pattern, Pattern::from_json(json["pattern"]));
  ASSIGN_OR_RETURN(const SplitBehavior behavior, behavior_from(json, ""));
  ASSIGN_OR_RETURN(const bool invert, json_fields::boolean(json, "invert", false));
  return PreTokenizerPtr(std::make_unique<SplitPreTokenizer>(std::move(pattern), behavior, invert));
}

Result<PreTokenizerPtr> make_sequence(const Json& json, bool leaves_bytes) {
  ASSIGN_OR_RETURN(const Json* list, json_fields::array(json, "pretokenizers"));
  std::vector<PreTokenizerPtr> steps;
  for (const Json& step : *list) {
    const bool is_last = &step == &list->back();
    ASSIGN_OR_RETURN(PreTokenizerPtr made, make_pre_tokenizer(step, leaves_bytes && is_last));
    steps.push_back(std::move(made));
  }
  return PreTokenizerPtr(std::make_unique<SequencePreTokenizer>(std::move(steps)));
}

}  // namespace

bool ends_in_byte_level(const Json& json) {
  if (!json.is_object()) return false;
  if (json.value("type", Json()) == "ByteLevel") return true;
  const auto list = json.find("pretokenizers");
  return list != json.end() && list->is_array() && !list->empty() &&
         ends_in_byte_level(list->back());
}

bool depends_on_origin(const Json& json) {
  if (!json.is_object()) return false;
  if (json.value("type", Json()) == "Metaspace") {
    return json.value("prepend_scheme", Json()) == "first";
  }
  const auto list = json.find("pretokenizers");
  if (list == json.end() || !list->is_array()) return false;
  return std::any_of(list->begin(), list->end(), depends_on_origin);
}

Result<PreTokenizerPtr> make_pre_tokenizer(const Json& json, bool leaves_bytes) {
  if (json.is_null()) {
    return PreTokenizerPtr(std::make_unique<SequencePreTokenizer>(std::vector<PreTokenizerPtr>()));
  }
  ASSIGN_OR_RETURN(const std::string type, json_fields::type_of(json, "pre_tokenizer"));
  if (type == "Sequence") return make_sequence(json, leaves_bytes);
  if (type == "ByteLevel") return make_byte_level(json, leaves_bytes);
  if (type == "Split") return make_split(json);
  if (type == "Metaspace") return make_metaspace(json);
  if (type == "Whitespace") return PreTokenizerPtr(std::make_unique<WhitespacePreTokenizer>());
  if (type == "WhitespaceSplit") {
    return split_at_characters(unicode::is_whitespace, SplitBehavior::kRemoved);
  }
  if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool one_by_one, json_fields::boolean(json, "individual_digits", false));
    return split_at_characters(unicode::is_numeric,
                               one_by_one ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    ASSIGN_OR_RETURN(const SplitBehavior behavior, behavior_from(json, "Isolated"));
    return split_at_characters(unicode::is_punctuation, behavior);
  }
  if (type == "CharDelimiterSplit") {
    ASSIGN_OR_RETURN(const char32_t delimiter, json_fields::character(json, "delimiter"));
    return split_at_characters([delimiter](char32_t c) { return c == delimiter; },
                               SplitBehavior::kRemoved);
  }
  if (type == "BertPreTokenizer") {
    std::vector<PreTokenizerPtr> steps;
    steps.push_back(split_at_characters(unicode::is_whitespace, SplitBehavior::kRemoved));
    steps.push_back(split_at_characters(unicode::is_punctuation, SplitBehavior::kIsolated));
    return PreTokenizerPtr(std::make_unique<SequencePreTokenizer>(std::move(steps)));
  }
  return json_fields::unsupported("pre_tokenizer " + type);
}

}  // namespace troupe
