#include "runtime/base/log.hpp"

#include <boost/test/unit_test.hpp>

#include "runtime/base/control_characters.hpp"
#include "tests/support/standard_error.hpp"

namespace troupe {
namespace {

BOOST_AUTO_TEST_SUITE(logs)

BOOST_AUTO_TEST_CASE(control_characters_and_line_separators_are_escaped) {
  const auto shown = [](std::string_view text) { return without_control_characters(text); };
  BOOST_TEST(shown("plain = text \"\\") == "plain = text \"\\");
  BOOST_TEST(shown("gr\u00fc\u00df \u4f60\u597d \U0001F600") ==
             "gr\u00fc\u00df \u4f60\u597d \U0001F600");
  BOOST_TEST(shown(std::string_view("a\0b\n\r\t\x1B[2J\x7F", 11)) ==
             "a\\x00b\\x0a\\x0d\\x09\\x1b[2J\\x7f");
  BOOST_TEST(shown("\u0085\u009b31m") == "\\xc2\\x85\\xc2\\x9b31m");            // C1
  BOOST_TEST(shown("a\u2028b\u202Ec") == "a\\xe2\\x80\\xa8b\\xe2\\x80\\xaec");  // a line, a turn
  BOOST_TEST(shown("\x9B"
                   "31m\xC3") == "\\x9b31m\\xc3");             // no UTF-8
  BOOST_TEST(shown("\xC0\x9B\xE0\x82\x9B\xED\xA0\x80\xF5") ==  // too long, half
             "\\xc0\\x9b\\xe0\\x82\\x9b\\xed\\xa0\\x80\\xf5");
}

BOOST_AUTO_TEST_CASE(an_event_is_one_line_whatever_its_values_hold) {
  StandardError captured;
  log_warning("some event", kv("value", std::string("a\nb\r\x1B[31mred")), kv("number", 7));
  const std::string text = captured.take();
  BOOST_TEST(text.find("some event value=") != std::string::npos);
  BOOST_TEST(text.find("\\n") != std::string::npos);
  BOOST_TEST(text.find("\\r") != std::string::npos);
  BOOST_TEST(text.find("\\x1b[31mred") != std::string::npos);
  BOOST_TEST(text.find("number=7\n") == text.size() - 9);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
