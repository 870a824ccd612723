#include "runtime/tokenizer/unicode.hpp"

#include <boost/test/unit_test.hpp>

#include "runtime/tokenizer/normalizer.hpp"

namespace troupe {
namespace {

std::string normalized(std::string_view text, UnicodeForm form) {
  AlignedText aligned(text, 0, false);
  WorkBudget work;
  normalize_unicode(aligned, form, work);
  return std::string(aligned.view());
}

BOOST_AUTO_TEST_SUITE(unicode_versions)

// A letter of Unicode 15.1, and a letter and a digit of Unicode 16.
BOOST_AUTO_TEST_CASE(expressions_know_the_characters_of_unicode_16) {
  for (const char32_t letter : {U'\U0002EBF0', U'\u1C89', U'\U00010D4A'}) {
    BOOST_TEST(unicode::is_letter(letter));
    BOOST_TEST(unicode::is_word(letter));
  }
  BOOST_TEST(unicode::is_numeric(U'\U00010D40'));
  BOOST_TEST(!unicode::is_letter(U'\U00016EA0'));  // of Unicode 17
}

BOOST_AUTO_TEST_CASE(letters_of_unicode_17_have_a_lower_case) {
  const auto lower = [](char32_t c) {
    std::string text;
    unicode::append_lowercase(text, c);
    return text;
  };
  BOOST_TEST(lower('A') == "a");
  BOOST_TEST(lower(0xA7CB) == "\u0264");
  BOOST_TEST(lower(0xA7DA) == "\uA7DB");
  BOOST_TEST(lower(0xA7DB) == "\uA7DB");
  BOOST_TEST(lower(0x10D50) == "\U00010D70");
  BOOST_TEST(lower(0x10D65) == "\U00010D85");
  BOOST_TEST(lower(0x16EB8) == "\U00016ED3");
  BOOST_TEST(lower(0x16EB9) == "\U00016EB9");
  BOOST_TEST(lower(0x130) == "i\u0307");
}

// The reference library's tables are those of Unicode 8 and 9.
BOOST_AUTO_TEST_CASE(marks_that_came_later_are_none) {
  BOOST_TEST(unicode::is_mark(0x301));
  BOOST_TEST(unicode::is_mark(0x8D4));   // of Unicode 9
  BOOST_TEST(!unicode::is_mark(0xAFD));  // of Unicode 10
  BOOST_TEST(unicode::is_mark(0x1CF2));  // a letter since Unicode 12
  BOOST_TEST(unicode::is_nonspacing_mark(0x301));
  BOOST_TEST(!unicode::is_nonspacing_mark(0x8D4));
  BOOST_TEST(unicode::is_nonspacing_mark(0x1734));  // spacing since Unicode 14
  BOOST_TEST(!unicode::is_mark('a'));
  BOOST_TEST(!unicode::is_mark(0x378));  // unassigned
}

BOOST_AUTO_TEST_CASE(controls_and_punctuation_that_came_later_are_none) {
  BOOST_TEST(unicode::is_other(0x200B));
  BOOST_TEST(!unicode::is_other(0x8E2));
  BOOST_TEST(!unicode::is_other(0x378));
  BOOST_TEST(!unicode::is_other('\n'));
  BOOST_TEST(unicode::is_punctuation(0x3001));
  BOOST_TEST(!unicode::is_punctuation(0x2E52));
  BOOST_TEST(unicode::is_punctuation(0x166D));  // a symbol since Unicode 12
}

BOOST_AUTO_TEST_CASE(normalization_knows_the_characters_of_unicode_9) {
  BOOST_TEST(normalized("a\u0301", UnicodeForm::kNfc) == "\u00E1");
  BOOST_TEST(normalized("\u00E1", UnicodeForm::kNfd) == "a\u0301");
  BOOST_TEST(normalized("\uD55C", UnicodeForm::kNfd) == "\u1112\u1161\u11AB");
  BOOST_TEST(normalized("\u2460", UnicodeForm::kNfkc) == "1");
  BOOST_TEST(normalized("\u32FF", UnicodeForm::kNfkc) == "\u32FF");  // of Unicode 12.1
  // Marks are ordered by combining class, 220 before 230, unless one of them is of Unicode 14.
  BOOST_TEST(normalized("q\u0301\u0323", UnicodeForm::kNfd) == "q\u0323\u0301");
  BOOST_TEST(normalized("q\u0898\u0323", UnicodeForm::kNfd) == "q\u0898\u0323");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
