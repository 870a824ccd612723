// How much one request may ask for.
#include <boost/test/unit_test.hpp>

#include "runtime/http/openai_request.hpp"
#include "tests/runtime/http/request_defaults.hpp"

namespace troupe {
namespace {

std::string repeated(const std::string& text, std::size_t count, const char* separator = ",") {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += (i > 0 ? separator : "") + text;
  return all;
}

std::string conversation(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"a"}])" + fields + "}";
}

/// The message of the refusal; it names the parameter.
template <class Request>
std::string refusal(const Result<Request>& request, const std::string& param) {
  BOOST_REQUIRE(!request.ok());
  BOOST_TEST(request.error().param == param);
  return request.error().message;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

BOOST_AUTO_TEST_CASE(prompts_times_n_is_limited) {
  const std::string body = R"({"prompt":[)" + repeated(R"("a")", 512) + R"(],"n":)";
  BOOST_TEST(parse_completion_request(body + "2}", defaults()).ok());
  const std::string text = refusal(parse_completion_request(body + "3}", defaults()), "n");
  BOOST_TEST(has(text, "1536 samples"));
  BOOST_TEST(has(text, "1024"));
  BOOST_TEST(has(text, "max_request_samples"));
  BOOST_TEST(has(refusal(parse_chat_request(conversation(R"(,"n":1025)"), defaults()), "n"),
                 "max_request_samples"));
  ServerDefaults generous = defaults();
  generous.size.max_samples = 2000;
  BOOST_TEST(parse_completion_request(body + "3}", generous).ok());
}

BOOST_AUTO_TEST_CASE(the_tokens_of_all_samples_are_limited_but_one_may_have_what_fits) {
  ServerDefaults small = defaults();
  small.size.max_tokens = 2000;
  const std::string prompt = R"({"prompt":[)" + repeated("1", 900) + "]";
  BOOST_TEST(parse_completion_request(prompt + R"(,"n":2,"max_tokens":100})", small).ok());
  BOOST_TEST(
      has(refusal(parse_completion_request(prompt + R"(,"n":2,"max_tokens":101})", small), "n"),
          "max_request_tokens"));
  small.size.max_tokens = 10;
  BOOST_TEST(parse_completion_request(prompt + "}", small).ok());
}

BOOST_AUTO_TEST_CASE(what_an_answer_repeats_of_its_prompts_is_limited) {
  ServerDefaults small = defaults();
  small.size.max_echo_bytes = 10000;
  const std::string prompt = R"({"prompt":")" + std::string(1000, 'x') + R"(","echo":true)";
  BOOST_TEST(parse_completion_request(prompt + R"(,"n":10})", small).ok());
  BOOST_TEST(
      has(refusal(parse_completion_request(prompt + R"(,"n":11})", small), "n"), "11000 bytes"));
  BOOST_TEST(
      has(refusal(parse_completion_request(prompt + R"(,"logprobs":2})", small), "prompt_logprobs"),
          "max_echo_bytes"));
  const std::string talk = R"({"messages":[{"role":"assistant","content":")" +
                           std::string(1000, 'x') +
                           R"("}],"echo":true,"add_generation_prompt":false,"n":)";
  BOOST_TEST(parse_chat_request(talk + "9}", small).ok());
  refusal(parse_chat_request(talk + "11}", small), "n");
}

BOOST_AUTO_TEST_CASE(a_body_has_so_many_values_and_no_more) {
  const std::string many = repeated("{}", 600'000);
  const std::string text =
      refusal(parse_chat_request("{\"messages\":[" + many + "]}", defaults()), "body");
  BOOST_TEST(has(text, "at most 1048576"));
  const std::string empty = repeated("{}", 30'000);
  const std::string listed =
      refusal(parse_chat_request("{\"messages\":[" + empty + "]}", defaults()), "messages.0.role");
  BOOST_TEST(listed.starts_with("30000 validation errors:"));
  BOOST_TEST(std::count(listed.begin(), listed.end(), '\n') == 10);
}

BOOST_AUTO_TEST_CASE(what_a_template_is_given_is_limited) {
  const std::string turns = repeated(R"({"role":"user","content":""})", 40'000);
  BOOST_TEST(
      has(refusal(parse_chat_request("{\"messages\":[" + turns + "]}", defaults()), "messages"),
          "the limit is 65536"));
  BOOST_TEST(has(refusal(parse_chat_request(conversation(R"(,"chat_template_kwargs":{"x":[)" +
                                                         repeated("1", 70'000) + "]}"),
                                            defaults()),
                         "messages"),
                 "values"));
}

BOOST_AUTO_TEST_CASE(fields_that_are_not_sampling_parameters_are_range_checked) {
  for (const char* field :
       {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"}) {
    const std::string body = conversation(std::string(",\"") + field + "\":1e-44");
    BOOST_TEST_CONTEXT(field) { BOOST_TEST(parse_chat_request(body, defaults()).ok()); }
  }
}

}  // namespace
}  // namespace troupe
