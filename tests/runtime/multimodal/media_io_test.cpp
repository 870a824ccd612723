#include "runtime/multimodal/media_io.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

std::string io_error(std::string_view of_server, std::string_view of_request = {}) {
  const auto io = parse_media_io_kwargs(of_server, of_request);
  return io.ok() ? "" : io.error().message;
}

BOOST_AUTO_TEST_CASE(a_request_replaces_what_the_server_says_of_images) {
  const ImageIo none = parse_media_io_kwargs("", R"({"video":{"num_frames":4}})").value();
  BOOST_TEST((none.background == kWhite));
  BOOST_TEST(none.kwargs.empty());
  constexpr const char* kServer =
      R"({"image":{"rgba_background_color":[0,10,255],"image_mode":"RGB"}})";
  BOOST_TEST((parse_media_io_kwargs(kServer, "").value().background == ImageColor{0, 10, 255}));
  const ImageIo both =
      parse_media_io_kwargs(kServer, R"({"image":{"rgba_background_color":[1,2,3]}})").value();
  BOOST_TEST((both.background == ImageColor{1, 2, 3}));
  BOOST_TEST(both.kwargs == R"({"rgba_background_color":[1,2,3],"image_mode":"RGB"})");
}

BOOST_AUTO_TEST_CASE(what_is_not_known_is_refused_by_its_name) {
  BOOST_TEST(io_error("[]") == "media_io_kwargs: it is not a JSON object");
  BOOST_TEST(io_error("", R"({"image":3})") == "media_io_kwargs: image is not a JSON object");
  BOOST_TEST(io_error("", R"({"images":{}})") == "media_io_kwargs: images is not a kind of media");
  BOOST_TEST(io_error(R"({"image":{"gamma":2}})") == "media_io_kwargs: image.gamma is not known");
  BOOST_TEST(io_error(R"({"image":{"image_mode":"L"}})") ==
             "media_io_kwargs: image.image_mode must be \"RGB\", it is \"L\"");
  for (const char* color : {"[1,2]", "[1,2,256]", "[1,2,-1]", "[1,2,3.5]", "\"red\"", "null"})
    BOOST_TEST(io_error("", std::string(R"({"image":{"rgba_background_color":)") + color + "}}") ==
               std::string("media_io_kwargs: image.rgba_background_color must be 3 numbers from 0 to "
                           "255, it is ") +
                   color);
}

}  // namespace
}  // namespace troupe
