#include "runtime/tokenizer/normalizer.hpp"

#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/byte_level.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/pattern.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

using json_fields::Json;
using NormalizerPtr = std::unique_ptr<const Normalizer>;

/// Rewrites character by character: rewrite(rewriter, character, num_bytes) handles the one at the
/// cursor.
template <class Rewrite>
void rewrite_characters(AlignedText& text, WorkBudget& work, const Rewrite& rewrite) {
  const std::string_view old = text.view();
  TextRewriter rewriter(text, work);
  for (std::size_t i = 0; i < old.size();) {
    const std::size_t begin = i;
    const char32_t character = unicode::next(old, i);
    rewrite(rewriter, character, i - begin);
  }
  rewriter.finish();
}

template <class Predicate>
void remove_characters(AlignedText& text, WorkBudget& work, const Predicate& predicate) {
  rewrite_characters(text, work, [&](TextRewriter& rewriter, char32_t c, std::size_t num_bytes) {
    if (predicate(c)) {
      rewriter.skip(num_bytes);
    } else {
      rewriter.keep(num_bytes);
    }
  });
}

void lowercase(AlignedText& text, WorkBudget& work) {
  std::string lower;
  rewrite_characters(text, work, [&](TextRewriter& rewriter, char32_t c, std::size_t num_bytes) {
    lower.clear();
    unicode::append_lowercase(lower, c);
    rewriter.replace(lower, num_bytes);
  });
}

/// A normalizer that is one function.
template <class Function>
class FunctionNormalizer : public Normalizer {
 public:
  explicit FunctionNormalizer(Function function) : function_(std::move(function)) {}
  void apply(AlignedText& text, WorkBudget& work) const override { function_(text, work); }

 private:
  Function function_;
};

template <class Function>
NormalizerPtr from_function(Function function) {
  return std::make_unique<FunctionNormalizer<Function>>(std::move(function));
}

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<NormalizerPtr> steps) : steps_(std::move(steps)) {}
  void apply(AlignedText& text, WorkBudget& work) const override {
    for (const NormalizerPtr& step : steps_) {
      work.charge_bytes(text.view().size());
      step->apply(text, work);
    }
  }

 private:
  std::vector<NormalizerPtr> steps_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(AlignedText& text, WorkBudget& work) const override {
    TextRewriter rewriter(text, work);
    for_each_match(
        text.view(),
        [&](std::string_view old, std::size_t from) { return pattern_.find(old, from, work); },
        [&](ByteRange range, bool is_match) {
          if (!is_match) return rewriter.keep(range.size());
          rewriter.skip(range.size());
          rewriter.insert(content_);
        });
    rewriter.finish();
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}

  void apply(AlignedText& text, WorkBudget& work) const override {
    const std::string_view old = text.view();
    std::size_t begin = 0;
    while (left_ && begin < old.size() && unicode::is_whitespace(unicode::decode_at(old, begin))) {
      static_cast<void>(unicode::next(old, begin));
    }
    std::size_t end = old.size();
    while (right_ && end > begin) {
      std::size_t last = end;
      if (!unicode::is_whitespace(unicode::previous(old, last))) break;
      end = last;
    }
    if (begin == 0 && end == old.size()) return;
    TextRewriter rewriter(text, work);
    rewriter.skip(begin);
    rewriter.keep(end - begin);
    rewriter.finish();
  }

 private:
  bool left_;
  bool right_;
};

struct BertOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};

void normalize_for_bert(AlignedText& text, BertOptions options, WorkBudget& work) {
  if (options.clean_text) {
    rewrite_characters(text, work, [](TextRewriter& rewriter, char32_t c, std::size_t num_bytes) {
      if (c == 0 || c == 0xFFFD || unicode::is_other(c)) {
        rewriter.skip(num_bytes);
      } else if (unicode::is_whitespace(c)) {
        rewriter.replace(" ", num_bytes);
      } else {
        rewriter.keep(num_bytes);
      }
    });
  }
  if (options.handle_chinese_chars) {
    rewrite_characters(text, work, [](TextRewriter& rewriter, char32_t c, std::size_t num_bytes) {
      const bool is_cjk = unicode::is_cjk_ideograph(c);
      if (is_cjk) rewriter.insert_before(" ");
      rewriter.keep(num_bytes);
      if (is_cjk) rewriter.insert(" ");
    });
  }
  if (options.strip_accents) {
    normalize_unicode(text, UnicodeForm::kNfd, work);
    remove_characters(text, work, unicode::is_nonspacing_mark);
  }
  if (options.lowercase) lowercase(text, work);
}

Result<NormalizerPtr> make_bert(const Json& json) {
  BertOptions options;
  ASSIGN_OR_RETURN(options.clean_text, json_fields::boolean(json, "clean_text", true));
  ASSIGN_OR_RETURN(options.handle_chinese_chars,
                   json_fields::boolean(json, "handle_chinese_chars", true));
  ASSIGN_OR_RETURN(options.lowercase, json_fields::boolean(json, "lowercase", true));
  ASSIGN_OR_RETURN(options.strip_accents,
                   json_fields::boolean(json, "strip_accents", options.lowercase));
  return from_function(
      [options](AlignedText& text, WorkBudget& work) { normalize_for_bert(text, options, work); });
}

Result<NormalizerPtr> make_replace(const Json& json) {
  if (!json.contains("pattern")) return json_fields::malformed("Replace has no \"pattern\"");
  ASSIGN_OR_RETURN(Pattern pattern, Pattern::from_json(json["pattern"]));
  ASSIGN_OR_RETURN(std::string content, json_fields::text(json, "content"));
  return NormalizerPtr(std::make_unique<ReplaceNormalizer>(std::move(pattern), std::move(content)));
}

Result<NormalizerPtr> make_prepend(const Json& json) {
  ASSIGN_OR_RETURN(const std::string prefix, json_fields::text(json, "prepend"));
  return from_function([prefix](AlignedText& text, WorkBudget& work) {
    const std::size_t num_bytes = text.view().size();
    if (num_bytes == 0) return;
    TextRewriter rewriter(text, work);
    rewriter.insert_before(prefix);
    rewriter.keep(num_bytes);
    rewriter.finish();
  });
}

void spell_bytes(AlignedText& text, WorkBudget& work) {
  const std::string_view old = text.view();
  TextRewriter rewriter(text, work);
  for (const char byte : old) {
    rewriter.replace(byte_level::spelling(static_cast<unsigned char>(byte)), 1);
  }
  rewriter.finish();
}

std::optional<UnicodeForm> form_of(const std::string& type) {
  if (type == "NFC") return UnicodeForm::kNfc;
  if (type == "NFD") return UnicodeForm::kNfd;
  if (type == "NFKC") return UnicodeForm::kNfkc;
  if (type == "NFKD") return UnicodeForm::kNfkd;
  return std::nullopt;
}

}  // namespace

Result<NormalizerPtr> make_normalizer(const Json& json) {
  std::vector<NormalizerPtr> steps;
  if (json.is_null()) return NormalizerPtr(std::make_unique<SequenceNormalizer>(std::move(steps)));
  ASSIGN_OR_RETURN(const std::string type, json_fields::type_of(json, "normalizer"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const Json* list, json_fields::array(json, "normalizers"));
    for (const Json& step : *list) {
      ASSIGN_OR_RETURN(NormalizerPtr made, make_normalizer(step));
      steps.push_back(std::move(made));
    }
    return NormalizerPtr(std::make_unique<SequenceNormalizer>(std::move(steps)));
  }
  if (const auto form = form_of(type)) {
    return from_function(
        [form](AlignedText& text, WorkBudget& work) { normalize_unicode(text, *form, work); });
  }
  if (type == "Lowercase") return from_function(lowercase);
  if (type == "StripAccents") {
    return from_function([](AlignedText& text, WorkBudget& work) {
      remove_characters(text, work, unicode::is_mark);
    });
  }
  if (type == "Strip") {
    ASSIGN_OR_RETURN(const bool left, json_fields::boolean(json, "strip_left", true));
    ASSIGN_OR_RETURN(const bool right, json_fields::boolean(json, "strip_right", true));
    return NormalizerPtr(std::make_unique<StripNormalizer>(left, right));
  }
  if (type == "Replace") return make_replace(json);
  if (type == "Prepend") return make_prepend(json);
  if (type == "ByteLevel") return from_function(spell_bytes);
  if (type == "BertNormalizer") return make_bert(json);
  if (type == "Precompiled") return make_precompiled(json);
  return json_fields::unsupported("normalizer " + type);
}

}  // namespace troupe
