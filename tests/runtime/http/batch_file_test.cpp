#include "runtime/http/batch_file.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <fstream>
#include <string>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

BOOST_AUTO_TEST_CASE(a_line_is_a_request_to_a_path_of_the_api) {
  const auto line = parse_batch_line(
      R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{"b":1,"a":[2.5,null]}})");
  BOOST_REQUIRE(line.ok());
  BOOST_TEST(line->custom_id == "a");
  BOOST_TEST(line->url == "/v1/completions");
  BOOST_TEST(line->body == R"({"b":1,"a":[2.5,null]})");
}

BOOST_AUTO_TEST_CASE(what_is_wrong_with_a_line_is_said) {
  const auto error = [](const std::string& text) {
    const auto line = parse_batch_line(text);
    return line.ok() ? "no error" : line.error().message;
  };
  const auto with = [](const std::string& id, const std::string& method, const std::string& url,
                       const std::string& body) {
    return R"({"custom_id":)" + id + R"(,"method":)" + method + R"(,"url":)" + url + R"(,"body":)" +
           body + "}";
  };
  const std::string url = R"("/v1/embeddings")", post = R"("POST")", id = R"("a")";
  BOOST_TEST(error(with(id, post, url, "{}")) == "no error");
  BOOST_TEST(error("[").starts_with("the line is not a JSON object"));
  BOOST_TEST(error(std::string(100000, '[')).starts_with("the line is not a JSON object"));
  BOOST_TEST(error("{}") == "custom_id must be a string");
  BOOST_TEST(error(with("\"\"", post, url, "{}")) ==
             "custom_id has 0 bytes, it must have 1 to 512");
  BOOST_TEST(error(with(id, R"("GET")", url, "{}")) == "method is \"GET\", must be POST");
  BOOST_TEST(error(with(id, post, R"("/health")", "{}"))
                 .starts_with("url is \"/health\", must be one of /v1/chat/completions, "));
  BOOST_TEST(error(with(id, post, url, "1")) == "body must be an object");
  BOOST_TEST(error(with(id, post, url, R"({"stream":true})")) ==
             "body: stream is not supported in batches");
}

BOOST_AUTO_TEST_CASE(results_are_lines_of_json) {
  using nlohmann::json;
  const json good = json::parse(batch_result_json("0f", "a\"b", 200, R"({"x":[1]})"));
  BOOST_TEST(good.dump() == R"({"custom_id":"a\"b","error":null,"id":"batch_req_0f","response":)"
                            R"({"body":{"x":[1]},"request_id":"0f","status_code":200}})");
  const json cut = json::parse(batch_result_json("0f", "a", 502, R"({"x":)"));
  BOOST_TEST(cut["response"]["body"] == R"({"x":)");
  const json none = json::parse(batch_failure_json("0f", "a", "no_response", "gone"));
  BOOST_TEST(none["response"].is_null());
  BOOST_TEST(none["error"]["code"] == "no_response");
}

BOOST_AUTO_TEST_CASE(a_file_of_results_says_what_is_done_and_loses_the_line_that_was_cut) {
  std::string path = (fs::temp_directory_path() / "troupe-batch-XXXXXX").string();
  BOOST_REQUIRE(mkdtemp(path.data()) != nullptr);
  const fs::path file = fs::path(path) / "results.jsonl";
  BOOST_TEST(take_finished(file).value().empty());
  const std::string whole = batch_result_json("1", "a", 200, "{}") + "\n" +
                            batch_failure_json("2", "b", "no_response", "gone") + "\n";
  std::ofstream(file) << whole << R"({"id":"batch_req_3","custom_id":"c","respon)";
  const auto ids = take_finished(file);
  BOOST_REQUIRE(ids.ok());
  BOOST_TEST((*ids == std::unordered_set<std::string>{"a", "b"}));
  BOOST_TEST(fs::file_size(file) == whole.size());
  // A whole line without its end counts for nothing, too: it is done again.
  std::ofstream(file, std::ios::app) << batch_result_json("4", "d", 200, "{}");
  BOOST_TEST(!take_finished(file)->contains("d"));
  std::ofstream(file, std::ios::app) << "something else\n";
  BOOST_TEST(take_finished(file).error().message.ends_with(
      "line 3 is not a result of a batch; choose another file, or remove it"));
  fs::remove_all(path);
}

}  // namespace
}  // namespace troupe
