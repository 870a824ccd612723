// Unicode normalization forms with origin tracking.

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "runtime/tokenizer/normalizer.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

struct FormRules {
  bool compatibility;
  bool composes;
};

FormRules rules_of(UnicodeForm form) {
  return {form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd,
          form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc};
}

/// Characters newer than the forms' Unicode version are treated as unassigned.
const utf8proc_property_t& properties(char32_t c) {
  constexpr utf8proc_int32_t kUnassigned = 0x378;
  const utf8proc_property_t& property = *utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  const bool is_plain = property.decomp_seqindex == UINT16_MAX && property.combining_class == 0 &&
                        property.category != UTF8PROC_CATEGORY_MC &&
                        property.category != UTF8PROC_CATEGORY_MN;
  return is_plain || unicode::is_assigned_since(c, unicode::kNormalizationVersion)
             ? property
             : *utf8proc_get_property(kUnassigned);
}

bool is_hangul_jamo(char32_t c) { return c >= 0x1100 && c <= 0x11FF; }
bool is_hangul_syllable(char32_t c) { return c >= 0xAC00 && c <= 0xD7A3; }

/// Whether the form leaves `c` unchanged and `c` cannot interact with preceding characters.
bool is_inert(char32_t c, FormRules rules) {
  if (c < (rules.compatibility ? 0xA0 : rules.composes ? 0x300 : 0xC0)) return true;
  if (is_hangul_syllable(c)) return rules.composes;
  const utf8proc_property_t& property = properties(c);
  return property.decomp_seqindex == UINT16_MAX && property.combining_class == 0 &&
         !unicode::is_mark(c) && !is_hangul_jamo(c);
}

void decompose(std::string_view text, FormRules rules, std::vector<ChangedCharacter>& out) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (rules.compatibility ? UTF8PROC_COMPAT : 0));
  utf8proc_int32_t parts[32];
  for (std::size_t i = 0; i < text.size();) {
    int boundary = 0;
    const char32_t character = unicode::next(text, i);
    if (properties(character).decomp_seqindex == UINT16_MAX && !is_hangul_syllable(character)) {
      out.push_back({character, 0});
      continue;
    }
    const auto c = static_cast<utf8proc_int32_t>(character);
    const auto num_parts = utf8proc_decompose_char(c, parts, std::size(parts), options, &boundary);
    for (utf8proc_ssize_t k = 0; k < num_parts; ++k) {
      out.push_back({static_cast<char32_t>(parts[k]), k == 0 ? 0 : 1});
    }
  }
  // Canonical order: marks between two starters, stably by combining class.
  const auto is_starter = [](const ChangedCharacter& c) {
    return properties(c.character).combining_class == 0;
  };
  for (auto begin = out.begin(); begin != out.end();) {
    begin = std::find_if_not(begin, out.end(), is_starter);
    const auto end = std::find_if(begin, out.end(), is_starter);
    std::stable_sort(begin, end, [](const ChangedCharacter& a, const ChangedCharacter& b) {
      return properties(a.character).combining_class < properties(b.character).combining_class;
    });
    begin = end;
  }
}

/// The primary composite of two characters, or 0.
char32_t composite(char32_t first, char32_t second) {
  utf8proc_int32_t pair[2] = {static_cast<utf8proc_int32_t>(first),
                              static_cast<utf8proc_int32_t>(second)};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  return utf8proc_normalize_utf32(pair, 2, options) == 1 ? static_cast<char32_t>(pair[0]) : 0;
}

void compose(std::vector<ChangedCharacter>& characters) {
  constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t starter = kNone;
  int last_class =
      -1;  // combining class of the character kept before this one, -1 right after the starter
  std::size_t kept = 0;
  for (const ChangedCharacter current : characters) {
    const int combining_class = properties(current.character).combining_class;
    if (starter != kNone && last_class < combining_class) {
      if (const char32_t c = composite(characters[starter].character, current.character)) {
        characters[starter].character = c;
        characters[starter].change += current.change - 1;
        continue;
      }
    }
    if (combining_class == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = combining_class;
    }
    characters[kept++] = current;
  }
  characters.resize(kept);
}

}  // namespace

void write_changes(TextRewriter& rewriter, std::string_view old,
                   const std::vector<ChangedCharacter>& characters) {
  const std::size_t end = rewriter.cursor() + old.size();
  std::size_t position = 0;
  const auto skip_characters = [&](int count) {
    const std::size_t begin = position;
    for (; count > 0 && position < old.size(); --count) {
      static_cast<void>(unicode::next(old, position));
    }
    return position - begin;
  };
  for (const auto& [character, change] : characters) {
    const std::string utf8 = unicode::to_utf8(character);
    if (change > 0) {
      rewriter.insert(utf8);
    } else {
      rewriter.replace(utf8, skip_characters(1 - change));
    }
  }
  rewriter.skip(end - rewriter.cursor());
}

void normalize_unicode(AlignedText& text, UnicodeForm form, WorkBudget& work) {
  const FormRules rules = rules_of(form);
  const std::string_view old = text.view();
  work.charge(old.size());
  const auto find_active = [&](std::size_t from) {
    while (from < old.size()) {
      const std::size_t begin = from;
      if (!is_inert(unicode::next(old, from), rules)) return begin;
    }
    return old.size();
  };
  std::size_t active = find_active(0);
  if (active == old.size()) return;

  TextRewriter rewriter(text, work);
  std::vector<ChangedCharacter> characters;
  while (active < old.size()) {
    // The previous character can be the starter of a composition.
    std::size_t begin = active;
    if (begin > rewriter.cursor()) static_cast<void>(unicode::previous(old, begin));
    std::size_t end = active;
    while (end < old.size() && !is_inert(unicode::decode_at(old, end), rules)) {
      static_cast<void>(unicode::next(old, end));
    }
    rewriter.keep(begin - rewriter.cursor());
    const std::string_view run = old.substr(begin, end - begin);
    work.charge(4 * run.size());
    characters.clear();
    decompose(run, rules, characters);
    if (rules.composes) compose(characters);
    write_changes(rewriter, run, characters);
    active = find_active(end);
  }
  rewriter.keep(old.size() - rewriter.cursor());
  rewriter.finish();
}

}  // namespace troupe
