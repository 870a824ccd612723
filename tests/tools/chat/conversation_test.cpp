#include "tools/chat/conversation.hpp"

#include <boost/test/unit_test.hpp>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "tools/chat/terminal_input.hpp"

namespace troupe::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Answers "<last message>!", unless there are more messages than it takes.
class FakeSource final : public AnswerSource {
 public:
  Result<Answer> answer(const std::string& body,
                        const std::function<void(const std::string&)>& on_text,
                        Interrupt&) override {
    bodies.push_back(Json::parse(body));
    const Json& messages = bodies.back()["messages"];
    const Json& content = messages.back()["content"];
    const auto text = (content.is_array() ? content.back()["text"] : content).get<std::string>();
    if (text == "broken") return Error{ErrorCode::kUnavailable, "the server is gone"};
    if (messages.size() > most_messages || text == "long")
      return invalid_argument("prompt has 99 tokens, max_model_len is 9");
    if (text == "stopped") return Answer{};
    on_text(text + "!");
    return Answer{.text = text + "!", .finish_reason = "stop"};
  }
  std::string name() const override { return "fake"; }

  std::size_t most_messages = 100;
  std::vector<Json> bodies;
};

struct Chat {
  explicit Chat(ChatOptions given = {}) : options(std::move(given)) {}
  FakeSource source;
  ChatOptions options;
  Interrupt interrupt{false};
  Conversation conversation{source, options};
  std::string shown;

  auto say(const std::string& text) {
    return conversation.say(
        text, [&](const std::string& piece) { shown += piece; }, interrupt);
  }
  [[nodiscard]] std::vector<std::string> last_sent() const {
    std::vector<std::string> texts;
    for (const Json& message : source.bodies.back()["messages"])
      texts.push_back(message["content"]);
    return texts;
  }
};

BOOST_AUTO_TEST_CASE(an_image_stands_before_the_next_message_and_stays_there) {
  Chat chat;
  chat.conversation.attach("data:a");
  chat.conversation.attach("data:b");
  BOOST_REQUIRE(chat.say("what?").ok());
  BOOST_REQUIRE(chat.say("and now?").ok());
  const Json& messages = chat.source.bodies.back()["messages"];
  BOOST_TEST(messages[0]["content"] ==
             Json::parse(R"([{"type":"image_url","image_url":{"url":"data:a"}},
                             {"type":"image_url","image_url":{"url":"data:b"}},
                             {"type":"text","text":"what?"}])"));
  BOOST_TEST(messages[2]["content"] == "and now?");
  chat.conversation.attach("data:c");
  chat.conversation.clear();
  BOOST_REQUIRE(chat.say("anew").ok());
  BOOST_TEST(chat.last_sent() == (std::vector<std::string>{"anew"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_file_becomes_a_data_url) {
  BOOST_TEST(image_file_url(TROUPE_GOLDEN_DIR "/images/tiny.png")
                 .value()
                 .starts_with("data:image/*;base64,iVBORw0KGgo"));
  BOOST_TEST(!image_file_url("/no/such/file").ok());
}

BOOST_AUTO_TEST_CASE(an_answer_is_part_of_what_is_asked_next) {
  Chat chat({.system = "be kind", .temperature = 0.5, .max_tokens = 7});
  BOOST_REQUIRE(chat.say("one").ok());
  BOOST_REQUIRE(chat.say("two").ok());
  BOOST_TEST((chat.last_sent() == std::vector<std::string>{"be kind", "one", "one!", "two"}));
  BOOST_TEST(chat.source.bodies.back()["temperature"] == 0.5);
  BOOST_TEST(chat.source.bodies.back()["max_tokens"] == 7);
  BOOST_TEST(chat.shown == "one!two!");
  chat.conversation.clear();
  BOOST_REQUIRE(chat.say("three").ok());
  BOOST_TEST((chat.last_sent() == std::vector<std::string>{"be kind", "three"}));
}

BOOST_AUTO_TEST_CASE(a_full_context_forgets_the_oldest_but_not_the_system_message) {
  Chat chat({.system = "be kind"});
  for (const char* text : {"one", "two", "three"}) BOOST_REQUIRE(chat.say(text).ok());
  chat.source.most_messages = 5;
  const auto said = chat.say("four");
  BOOST_REQUIRE(said.ok());
  BOOST_TEST(said->num_forgotten == 2u);
  BOOST_TEST((chat.last_sent() == std::vector<std::string>{"be kind", "three", "three!", "four"}));
  BOOST_TEST(chat.conversation.num_pairs() == 2u);
}

BOOST_AUTO_TEST_CASE(what_fails_or_is_stopped_before_it_began_leaves_the_conversation_as_it_was) {
  Chat chat;
  BOOST_REQUIRE(chat.say("one").ok());
  for (const char* text : {"long", "broken"}) {
    BOOST_TEST(!chat.say(text).ok());
    BOOST_TEST(chat.conversation.num_pairs() == 1u);
  }
  BOOST_TEST(chat.say("stopped").ok());
  BOOST_TEST(chat.conversation.num_pairs() == 1u);
  BOOST_REQUIRE(chat.say("two").ok());
  BOOST_TEST((chat.last_sent() == std::vector<std::string>{"one", "one!", "two"}));
}

BOOST_AUTO_TEST_CASE(a_full_context_is_known_by_what_servers_say) {
  for (const char* message :
       {"prompt has 2049 tokens, max_model_len is 2048",
        "HTTP 400: This model's maximum context length is 4096 tokens.",
        "HTTP 400: the request exceeds the available context size. try increasing it",
        "HTTP 400: too long (context_length_exceeded)"})
    BOOST_TEST(is_too_long({ErrorCode::kInvalidArgument, message}), message);
  BOOST_TEST(!is_too_long({ErrorCode::kInvalidArgument, "temperature is 3"}));
}

BOOST_AUTO_TEST_CASE(a_paste_is_text_without_control_characters) {
  BOOST_TEST((clean_paste(L"one\r\ntwo\rthree\n\tfour\x1b[31m\x07\x7f\u0085é") ==
              L"one\ntwo\nthree\n\tfour[31mé"));
}

}  // namespace
}  // namespace troupe::tools
