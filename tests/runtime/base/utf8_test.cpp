#include "runtime/base/utf8.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(code_points_are_counted_as_python_counts_them) {
  BOOST_TEST(unicode::count("") == 0u);
  BOOST_TEST(unicode::count("abc") == 3u);
  BOOST_TEST(unicode::count("ü漢🙂") == 3u);
}

}  // namespace
}  // namespace troupe
