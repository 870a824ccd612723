#include "runtime/http/multipart.hpp"

#include <boost/test/unit_test.hpp>
#include <string>

namespace troupe {
namespace {

/// The parts of a body that arrives in pieces of `size` bytes: "name(filename)=content;".
std::string form_parts(const std::string& body, std::size_t size, Result<void>& result) {
  std::string parts;
  MultipartParser parser("xYz", {.begin =
                                     [&](const FormPart& part) {
                                       parts += (parts.empty() ? "" : ";") + part.name + "(" +
                                                part.filename + ")=";
                                     },
                                 .content = [&](std::string_view bytes) { parts += bytes; }});
  for (std::size_t at = 0; at < body.size(); at += size) parser.feed(body.substr(at, size));
  result = parser.finish();
  return parts;
}

const std::string kFormBody =
    "--xYz\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
    "--xYz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a%22b.jsonl\"\r\n"
    "Content-Type: application/octet-stream\r\n\r\n{\"a\":1}\r\n--xY\r\n\r\n--xYz\r\n"
    "Content-Disposition: form-data; name=empty\r\n\r\n\r\n--xYz--\r\n";

BOOST_AUTO_TEST_CASE(a_form_is_the_same_however_it_arrives) {
  const std::string expected = "purpose()=batch;file(a\"b.jsonl)={\"a\":1}\r\n--xY\r\n;empty()=";
  for (const std::size_t size : {1, 2, 3, 7, 64, 1000}) {
    Result<void> result;
    BOOST_TEST(form_parts(kFormBody, size, result) == expected, size);
    BOOST_TEST(result.ok());
  }
}

BOOST_AUTO_TEST_CASE(a_form_with_something_wrong_is_refused) {
  const auto error = [](const std::string& body) {
    Result<void> result;
    form_parts(body, 5, result);
    return result.ok() ? "no error" : result.error().message;
  };
  BOOST_TEST(error("").ends_with("it ends before its last boundary"));
  BOOST_TEST(
      error(kFormBody.substr(0, kFormBody.size() - 5)).ends_with("before its last boundary"));
  BOOST_TEST(error("--xYzq\r\n").ends_with("a boundary has something behind it"));
  BOOST_TEST(error("--xYz\r\nA: b\r\n\r\nc").ends_with("a part has no Content-Disposition"));
  BOOST_TEST(error("--xYz\r\nContent-Disposition: form-data\r\n\r\n").ends_with("has no name"));
  BOOST_TEST(error("--xYz\r\n" + std::string(10000, 'x'))
                 .ends_with("the head of a part is larger than 8192 bytes"));
  std::string many;
  for (int i = 0; i < 70; ++i) many += "--xYz\r\nContent-Disposition: x; name=a\r\n\r\nb\r\n";
  BOOST_TEST(error(many).ends_with("it has more than 64 parts"));
}

BOOST_AUTO_TEST_CASE(the_boundary_is_in_the_content_type) {
  const auto boundary = [](const std::string& type) {
    const auto found = MultipartParser::boundary_of(type);
    return found.ok() ? *found : "error: " + found.error().message;
  };
  BOOST_TEST(boundary("multipart/form-data; boundary=abc") == "abc");
  BOOST_TEST(boundary("Multipart/Form-Data;charset=utf-8; boundary=\"a b\"") == "a b");
  BOOST_TEST(boundary("multipart/form-data").starts_with("error: Content-Type has no boundary"));
  BOOST_TEST(
      boundary("application/json").starts_with("error: Content-Type is \"application/json\""));
}

BOOST_AUTO_TEST_CASE(names_of_files_may_have_any_letters) {
  Result<void> result;
  BOOST_TEST(form_parts("--xYz\r\nContent-Disposition: form-data; name=\"file\"; "
                        "filename*=UTF-8''na%C3%AFve.jsonl\r\n\r\nx\r\n--xYz--",
                        100, result) == "file(na\xC3\xAFve.jsonl)=x");
  BOOST_TEST(result.ok());
}

}  // namespace
}  // namespace troupe
