#include "runtime/base/json_depth.hpp"

#include <boost/test/unit_test.hpp>
#include <string>

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(only_brackets_that_are_open_at_once_and_outside_of_strings_count) {
  BOOST_TEST(!is_nested_deeper("[[]]", 2));
  BOOST_TEST(is_nested_deeper("[[]]", 1));
  BOOST_TEST(is_nested_deeper(R"({"a":[{}]})", 2));
  BOOST_TEST(!is_nested_deeper("[[],[],{}]", 2));
  BOOST_TEST(!is_nested_deeper(R"(["[[{{", "\"[[", "\\"])", 1));
  BOOST_TEST(is_nested_deeper(R"(["\\",[]])", 1));
  BOOST_TEST(!is_nested_deeper("1", 0));
}

BOOST_AUTO_TEST_CASE(texts_that_are_no_json_have_a_depth_too) {
  BOOST_TEST(!is_nested_deeper("", 0));
  BOOST_TEST(!is_nested_deeper("]]][", 1));
  BOOST_TEST(!is_nested_deeper("\"\\", 0));
  BOOST_TEST(is_nested_deeper(std::string(1'000'000, '['), 64));
}

}  // namespace
}  // namespace troupe
