// A tokenizer.json whose components do much more to a text than real ones fails with an error that
// says so; it neither hangs nor takes the memory of the process.
#include <boost/test/unit_test.hpp>

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {
namespace {

using Json = nlohmann::json;

Json replace(const char* kind, const std::string& pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}
Json sequence(const Json& step, int times) {
  Json steps = Json::array();
  for (int i = 0; i < times; ++i) steps.push_back(step);
  return {{"type", "Sequence"}, {"normalizers", steps}};
}
Json file(const Json& normalizer, const Json& more = Json::object()) {
  Json json = {
      {"normalizer", normalizer},
      {"added_tokens", Json::array()},
      {"model",
       {{"type", "WordLevel"}, {"vocab", {{"[UNK]", 0}, {"a", 1}}}, {"unk_token", "[UNK]"}}}};
  json.update(more);
  return json;
}
Error error_of(const Json& json, const std::string& text, const WorkLimits& limits = {}) {
  const auto tokenizer = Tokenizer::from_json(json.dump());
  BOOST_REQUIRE_MESSAGE(tokenizer.ok(), json.dump().substr(0, 300));
  const auto ids = (*tokenizer)->encode(text, false, limits);
  return ids.ok() ? Error{ErrorCode::kOk, "", ""} : ids.error();
}

BOOST_AUTO_TEST_SUITE(tokenizer_work)

BOOST_AUTO_TEST_CASE(hostile_components_end_with_an_error) {
  const std::string many(200'000, 'a');
  const Json doubling = sequence(replace("String", "a", "aa"), 40);
  const std::pair<Json, std::string> cases[] = {
      {doubling, "a"},
      {sequence(replace("Regex", "a", "aa"), 40), "a"},
      {replace("Regex", "", std::string(1'000'000, 'x')), many},
      {replace("Regex", "(a+)+$", "b"), std::string(60, 'a') + "c"},
      {replace("Regex", "(a|aa)+$", "b"), std::string(60, 'a') + "c"},
      {sequence({{"type", "Prepend"}, {"prepend", std::string(1'000, 'x')}}, 1'000), "a"},
      {sequence({{"type", "NFKD"}}, 20'000), std::string(20'000, 'a') + "\u00e9"},
  };
  for (const auto& [normalizer, text] : cases) {
    const Error error = error_of(file(normalizer), text);
    BOOST_TEST((error.code == ErrorCode::kInvalidArgument), normalizer.dump().substr(0, 120));
    BOOST_TEST(error.message.find("more steps than are allowed") != std::string::npos);
  }
  // A normalizer is applied to added tokens when the file is loaded.
  const Json added = {{{"id", 5}, {"content", "aaa"}, {"normalized", true}}};
  const auto loaded = Tokenizer::from_json(file(doubling, {{"added_tokens", added}}).dump());
  BOOST_REQUIRE(!loaded.ok());
  BOOST_TEST(loaded.error().message.find("at \"aaa\"") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(searches_that_would_take_the_square_of_a_text_end) {
  const std::string many(200'000, 'a');
  const Json long_token = {{{"id", 5}, {"content", std::string(50'000, 'a') + "b"}}};
  BOOST_TEST((error_of(file(nullptr, {{"added_tokens", long_token}}), many).code ==
              ErrorCode::kInvalidArgument));
  const Json pieces = {{"type", "WordPiece"},
                       {"vocab", {{"[UNK]", 0}, {"b", 1}}},
                       {"unk_token", "[UNK]"},
                       {"max_input_chars_per_word", 100'000'000}};
  BOOST_TEST(
      (error_of(file(nullptr, {{"model", pieces}}), many).code == ErrorCode::kInvalidArgument));
  const Json unigram = {
      {"type", "Unigram"},
      {"unk_id", 0},
      {"vocab", Json::array({Json::array({"[UNK]", 0.0}),
                             Json::array({std::string(50'000, 'a') + "b", -1.0})})}};
  BOOST_TEST(
      (error_of(file(nullptr, {{"model", unigram}}), many).code == ErrorCode::kInvalidArgument));
  // Many pieces under a Metaspace that finds no space in any of them: linear.
  const Json cut = {{"type", "Sequence"},
                    {"pretokenizers",
                     {{{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Isolated"}},
                      {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "never"}}}}};
  BOOST_TEST((error_of(file(nullptr, {{"pre_tokenizer", cut}}), many).code == ErrorCode::kOk));
}

BOOST_AUTO_TEST_CASE(encoding_stops_when_it_is_cancelled_or_its_time_is_up) {
  const std::string many(1'000'000, 'a');
  const Json slow = replace("Regex", "(?=.*+c)b", "x");  // looks to the end from each place
  const auto cancelled = std::make_shared<std::atomic<bool>>(true);
  BOOST_TEST((error_of(file(slow), many, {.cancelled = cancelled, .deadline = {}}).code ==
              ErrorCode::kAborted));
  const auto now = std::chrono::steady_clock::now();
  BOOST_TEST(
      (error_of(file(slow), many, {.cancelled = {}, .deadline = now}).code == ErrorCode::kTimeout));
}

BOOST_AUTO_TEST_CASE(a_search_in_stretches_finds_what_one_search_finds) {
  // So long that the places where a match may begin are tried in several calls.
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += "\u00e9\u65e5";
  text += "xyz";
  const Json normalizer = replace("Regex", "(?<=\u65e5)x|z", "Q");
  const Json letters = {
      {"type", "WordLevel"}, {"vocab", {{"[UNK]", 0}, {"Q", 1}, {"y", 2}}}, {"unk_token", "[UNK]"}};
  const Json cut = {{"type", "Split"}, {"pattern", {{"Regex", "[Qy]"}}}, {"behavior", "Isolated"}};
  const auto tokenizer =
      Tokenizer::from_json(file(normalizer, {{"model", letters}, {"pre_tokenizer", cut}}).dump());
  const auto ids = (*tokenizer)->encode(text, false);
  BOOST_REQUIRE(ids.ok());
  BOOST_TEST(*ids == (std::vector<TokenId>{0, 1, 2, 1}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
