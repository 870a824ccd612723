#include <boost/test/unit_test.hpp>

#include <string>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/multimodal/image_decoder.hpp"
#include "runtime/multimodal/media_hasher.hpp"
#include "runtime/multimodal/media_io.hpp"

using namespace troupe;

namespace {

std::string identifier(std::string_view uuid, std::string_view kwargs) {
  return image_identifier({.model_id = "model",
                           .encoded = std::as_bytes(std::span(std::string_view("image"))),
                           .uuid = uuid,
                           .processor_kwargs = kwargs});
}

}  // namespace

// tests/golden/images/identifiers.json was made with vLLM 0.32's own classes ("generator" in it).
BOOST_AUTO_TEST_CASE(identifiers_are_those_of_vllm) {
  const std::string folder = TROUPE_GOLDEN_DIR "/images/";
  const nlohmann::json golden =
      nlohmann::json::parse(read_file(folder + "identifiers.json").value());
  BOOST_TEST(golden["cases"].size() > 100u);
  for (const nlohmann::json& line : golden["cases"]) {
    const std::string file = line["file"];
    const std::string encoded = read_file(folder + file).value();
    const std::string kwargs = hashed_processor_kwargs({}, line.value("kwargs", ""));
    const ImageIo io = parse_media_io_kwargs({}, line.value("io", "")).value();
    ImageFactors factors{
        .model_id = "demo",
        .encoded = std::as_bytes(std::span(encoded)),
        .background = io.background,
        .processor_kwargs = kwargs,
        .media_io_kwargs = io.kwargs,
        .algorithm = parse_media_hash_algorithm(line.value("algorithm", "blake3")).value()};
    const std::string uuid = line.value("uuid", "");
    factors.uuid = uuid;
    if (stored_as_rgb(factors.encoded)) factors.background.reset();
    BOOST_TEST_CONTEXT(line.dump())
    BOOST_TEST(image_identifier(factors) == line["identifier"].get<std::string>());
  }
}

BOOST_AUTO_TEST_CASE(a_clients_uuid_is_the_identifier_unless_there_are_kwargs) {
  BOOST_TEST(identifier("my-picture", "") == "my-picture");
  BOOST_TEST(identifier("my-picture", "{}") == "my-picture");
  BOOST_TEST(identifier("", "{}") == identifier("", ""));
}

BOOST_AUTO_TEST_CASE(the_servers_kwargs_count_with_those_of_the_request) {
  BOOST_TEST(hashed_processor_kwargs("", "") == "{}");
  BOOST_TEST(hashed_processor_kwargs(R"({"a": 1, "size": {"height": 2, "width": 3}})",
                                     R"({"b": 4, "size": {"height": 5}, "videos_kwargs": {}})") ==
             R"({"a":1,"size":{"height":5,"width":3},"b":4})");
}

BOOST_AUTO_TEST_CASE(no_image_has_the_identifier_of_a_part) {
  BOOST_TEST(part_identifier("a", 0) == "a");
  BOOST_TEST(part_identifier("a", 12) == "a~part12");
  BOOST_TEST(image_of_part("a~part12") == "a");
  BOOST_TEST(image_of_part("a~part1~part2") == "a~part1");
  for (const char* uuid : {"a", "a-1", "1", "", "part1", "a~part", "a~part1b",
                           "550e8400-e29b-41d4-a716-446655440000"}) {
    BOOST_TEST(image_of_part(uuid) == uuid);
    if (*uuid != 0) BOOST_TEST(identifier(uuid, "") == uuid);
  }
  for (const char* uuid : {"a~part1", "~part0", "a~part1~part2"})
    BOOST_TEST(identifier(uuid, "").size() == 64u);
}

BOOST_AUTO_TEST_CASE(algorithms_have_names) {
  BOOST_TEST((parse_media_hash_algorithm("sha512") == MediaHashAlgorithm::kSha512));
  BOOST_TEST((parse_media_hash_algorithm("blake3") == MediaHashAlgorithm::kBlake3));
  BOOST_TEST(!parse_media_hash_algorithm("md5"));
}
