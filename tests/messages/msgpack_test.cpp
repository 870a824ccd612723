#include "messages/msgpack.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

struct Point {
  std::int32_t x = 0;
  std::optional<std::string> name;
};
TROUPE_MESSAGE(Point, x, name)

struct Named {
  static constexpr const char* kTag = "Named";
  std::vector<Point> points;
  msgspec::Omittable<double> weight;
  std::optional<bool> flag;
};
TROUPE_MESSAGE(Named, points, weight, flag)

std::string bytes(std::initializer_list<int> values) { return {values.begin(), values.end()}; }

BOOST_AUTO_TEST_CASE(a_struct_is_an_array_of_its_fields) {
  BOOST_TEST(msgspec::encode(Point{.x = -1}) == bytes({0x92, 0xff, 0xc0}));
  BOOST_TEST(msgspec::encode(Point{.x = 300, .name = "a"}) ==
             bytes({0x92, 0xcd, 0x01, 0x2c, 0xa1, 'a'}));
}

BOOST_AUTO_TEST_CASE(a_tagged_struct_is_a_map_without_what_has_no_value) {
  const std::string head =
      bytes({0xa4}) + "type" + bytes({0xa5}) + "Named" + bytes({0xa6}) + "points";
  const std::string flag = bytes({0xa4}) + "flag";
  BOOST_TEST(msgspec::encode(Named{}) ==
             bytes({0x83}) + head + bytes({0x90}) + flag + bytes({0xc0}));
  Named full{.points = {{.x = 1}}, .flag = true};
  full.weight = 0.5;
  BOOST_TEST(msgspec::encode(full) == bytes({0x84}) + head + bytes({0x91, 0x92, 0x01, 0xc0, 0xa6}) +
                                          "weight" + bytes({0xcb, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0}) +
                                          flag + bytes({0xc3}));
  BOOST_TEST(msgspec::encode(2.0) == bytes({0xcb, 0x40, 0, 0, 0, 0, 0, 0, 0}));
}

BOOST_AUTO_TEST_CASE(variants_are_untagged_and_bytes_are_not_text) {
  using Value = std::variant<std::monostate, std::uint64_t, msgspec::Bytes,
                             std::pair<std::string, std::int32_t>>;
  BOOST_TEST(msgspec::encode(Value{}) == bytes({0xc0}));
  BOOST_TEST(msgspec::encode(Value{~std::uint64_t{0}}) == bytes({0xcf}) + std::string(8, '\xff'));
  BOOST_TEST(msgspec::encode(Value{msgspec::Bytes{"ab"}}) == bytes({0xc4, 2, 'a', 'b'}));
  BOOST_TEST(msgspec::encode(Value{std::pair<std::string, std::int32_t>("k", -5)}) ==
             bytes({0x92, 0xa1, 'k', 0xfb}));
}

}  // namespace
}  // namespace troupe
