#include <boost/test/unit_test.hpp>

#include <set>
#include <string>

#include "runtime/multimodal/media_hasher.hpp"

using namespace troupe;

namespace {

std::string identifier(std::string_view uuid, std::string_view kwargs,
                       MediaHashAlgorithm algorithm = MediaHashAlgorithm::kBlake3) {
  return picture_identifier("model", std::as_bytes(std::span(std::string_view("picture"))), uuid,
                            kwargs, {}, algorithm);
}

constexpr std::string_view kKwargs =
    R"({"size": {"width": -7, "height": 5}, "do_pan_and_scan": true, "r": 1.5, "n": null, "l": [1, "a"]})";

}  // namespace

// The expected values were made with Python's hashlib and PyPI's blake3 from the same rules.
BOOST_AUTO_TEST_CASE(a_pictures_identifier_is_the_hash_of_its_framed_bytes_and_the_models_name) {
  BOOST_TEST(identifier("", "") ==
             "d88d154d5a8693962d7d66a3fce0fa9dfd414a49a84c2dcc636e50b9bfdb072a");
  BOOST_TEST(identifier("", "{}") == identifier("", ""));
  BOOST_TEST(identifier("", "", MediaHashAlgorithm::kSha256) ==
             "3e8133d2699fd69eb7a059696d24034c5c27eed3b7a9fffe69136460f3ef6ff7");
  BOOST_TEST(identifier("", "", MediaHashAlgorithm::kSha512) ==
             "c1f3dbe7e0a0937d5d40b915d6aeece4ce794e43164c63cbf6e8a7ca95325d2a"
             "82f94345eaa85293905e6aacea5b9f606d72f4c7732fe10a407a69ffc2d88515");
}

BOOST_AUTO_TEST_CASE(kwargs_of_the_processor_change_the_identifier) {
  BOOST_TEST(identifier("", kKwargs) ==
             "0ccb72e36c7ad770f6fdf467708667ce60854fea052d52b7bbd5ca49be0c2d28");
  BOOST_TEST(identifier("", R"({"do_pan_and_scan": true})") !=
             identifier("", R"({"do_pan_and_scan": false})"));
}

BOOST_AUTO_TEST_CASE(a_clients_uuid_is_the_identifier_unless_there_are_kwargs) {
  BOOST_TEST(identifier("my-picture", "") == "my-picture");
  BOOST_TEST(identifier("my-picture", "{}") == "my-picture");
  BOOST_TEST(identifier("my-picture", kKwargs) ==
             "67355ad92540698f3a58c81f172eb0e7607811a86f501575c5e22159992e1fe0");
}

BOOST_AUTO_TEST_CASE(no_picture_has_the_identifier_of_a_part) {
  BOOST_TEST(part_identifier("a", 0) == "a");
  BOOST_TEST(part_identifier("a", 12) == "a~part12");
  BOOST_TEST(picture_of_part("a~part12") == "a");
  BOOST_TEST(picture_of_part("a~part1~part2") == "a~part1");
  for (const char* uuid : {"a", "a-1", "1", "", "part1", "a~part", "a~part1b",
                           "550e8400-e29b-41d4-a716-446655440000"}) {
    BOOST_TEST(picture_of_part(uuid) == uuid);
    if (*uuid != 0) BOOST_TEST(identifier(uuid, "") == uuid);
  }
  for (const char* uuid : {"a~part1", "~part0", "a~part1~part2"})
    BOOST_TEST(identifier(uuid, "").size() == 64u);
}

BOOST_AUTO_TEST_CASE(values_that_look_alike_have_different_hashes) {
  std::set<std::string> hashes;
  std::size_t num_values = 0;
  for (const char* kwargs :
       {R"({"a": 1})", R"({"a": 1.0})", R"({"a": "1"})", R"({"a": true})", R"({"a": [1]})",
        R"({"a": null})", R"({"a": {"1": 1}})", R"({"a": []})", R"({"a": [1, 1]})",
        R"({"a": [[1], 1]})", R"({"a": [[1, 1]]})", R"({"a": ""})", R"({"a1": 1})"}) {
    hashes.insert(identifier("", kwargs));
    ++num_values;
  }
  BOOST_TEST(hashes.size() == num_values);
}

BOOST_AUTO_TEST_CASE(algorithms_have_names) {
  BOOST_TEST((parse_media_hash_algorithm("sha512") == MediaHashAlgorithm::kSha512));
  BOOST_TEST((parse_media_hash_algorithm("blake3") == MediaHashAlgorithm::kBlake3));
  BOOST_TEST(!parse_media_hash_algorithm("md5"));
}
