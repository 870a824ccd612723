#include "runtime/http/json_text.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>

namespace troupe {
namespace {

std::string quoted(std::string_view text) {
  std::string json;
  append_json_string(json, text);
  return json;
}

BOOST_AUTO_TEST_CASE(strings_are_escaped_as_json_wants_and_no_more) {
  BOOST_TEST(quoted("") == R"("")");
  BOOST_TEST(quoted("a/b\"c\\d\n\r\t\b\f") == R"("a/b\"c\\d\n\r\t\b\f")");
  BOOST_TEST(quoted(std::string_view("\0\x1f\x7f", 3)) == "\"\\u0000\\u001f\x7f\"");
  BOOST_TEST(quoted("grün 漢字 🙂") == "\"grün 漢字 🙂\"");
}

BOOST_AUTO_TEST_CASE(bytes_that_are_not_utf8_become_the_replacement_character) {
  const std::string replacement = "\xEF\xBF\xBD";
  BOOST_TEST(quoted("a\xFFz") == "\"a" + replacement + "z\"");
  BOOST_TEST(quoted("\xC3") == "\"" + replacement + "\"");
  BOOST_TEST(quoted("\xC0\xAF") == "\"" + replacement + replacement + "\"");
  BOOST_TEST(quoted("\xED\xA0\x80") == "\"" + replacement + replacement + replacement + "\"");
  BOOST_TEST(quoted("\xF4\x90\x80\x80").size() == 2 + 4 * 3);
  BOOST_TEST(quoted("\xE2\x82"
                    "A") == "\"" + replacement + replacement + "A\"");
}

BOOST_AUTO_TEST_CASE(floats_read_back_exactly_and_look_like_floats) {
  const auto text = [](float value) {
    std::string json;
    append_json_float(json, value);
    return json;
  };
  BOOST_TEST(text(0.0f) == "0.0");
  BOOST_TEST(text(-9999.0f) == "-9999.0");
  BOOST_TEST(text(-0.1f) == "-0.1");
  BOOST_TEST(std::stof(text(1.17549435e-38f)) == 1.17549435e-38f);
  BOOST_TEST(std::stof(text(std::numeric_limits<float>::max())) ==
             std::numeric_limits<float>::max());
}

}  // namespace
}  // namespace troupe
