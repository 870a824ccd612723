#include <boost/test/unit_test.hpp>

#include <string>

#include "runtime/multimodal/data_url.hpp"

using namespace troupe;

namespace {

std::string decoded_url(std::string_view url, std::size_t max_bytes = 100) {
  const auto bytes = decode_data_url(url, max_bytes);
  if (!bytes.ok()) {
    BOOST_TEST((bytes.error().code == ErrorCode::kInvalidArgument));
    return "error: " + bytes.error().message;
  }
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

}  // namespace

BOOST_AUTO_TEST_CASE(base64_of_every_length_is_decoded) {
  BOOST_TEST(decoded_url("data:image/png;base64,") == "");
  BOOST_TEST(decoded_url("data:image/png;base64,Zg==") == "f");
  BOOST_TEST(decoded_url("data:image/png;base64,Zm8=") == "fo");
  BOOST_TEST(decoded_url("data:image/png;base64,Zm9v") == "foo");
  BOOST_TEST(decoded_url("data:;base64,Zm9vYg==") == "foob");
  BOOST_TEST(decoded_url("DATA:image/png;charset=utf-8;BASE64,+/+/") == "\xfb\xff\xbf");
}

BOOST_AUTO_TEST_CASE(what_is_not_base64_is_refused_by_name) {
  BOOST_TEST(decoded_url("http://a/b") == "error: the URL is not a data URL");
  BOOST_TEST(decoded_url("data:image/png;base64") ==
             "error: the data URL has no comma between its media type and its content");
  for (const char* url :
       {"data:image/png,abc", "data:,", "data:image/png;base32,abcd", "data:base64,Zm9v"})
    BOOST_TEST(decoded_url(url).find("is not base64: supported is") != std::string::npos, url);
  BOOST_TEST(decoded_url("data:;base64,Zm9vY") ==
             "error: the data URL is not base64: its content has 5 characters, which is not a "
             "multiple of 4");
  BOOST_TEST(decoded_url("data:;base64,Zm9vYm-h") ==
             "error: the data URL is not base64: character 7 of its content (code 45)");
  for (const char* content :
       {"Zg=a", "Z===", "====", "Zg==Zg==", "Zm 9", "Zm9\n", "%2B%2", "Zm\x80v"})
    BOOST_TEST(decoded_url("data:;base64," + std::string(content)).starts_with("error"), content);
}

BOOST_AUTO_TEST_CASE(the_limit_is_checked_before_decoding) {
  BOOST_TEST(decoded_url("data:;base64,Zm9v", 3) == "foo");
  BOOST_TEST(decoded_url("data:;base64,Zm9v", 2) ==
             "error: the data URL has 3 bytes of content, the limit is 2");
  BOOST_TEST(decoded_url("data:;base64," + std::string(4000, '?'), 100) ==
             "error: the data URL has 3000 bytes of content, the limit is 100");
}
