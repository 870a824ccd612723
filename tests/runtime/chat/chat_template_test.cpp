#include "runtime/chat/chat_template.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

#include "runtime/chat/chat_messages.hpp"
#include "runtime/chat/chat_renderer.hpp"
#include "tests/support/replay.hpp"

namespace troupe {
namespace {

const std::string kConversation =
    R"([{"role":"system","content":"Be kind."},{"role":"user","content":"Hi"}])";

Result<RenderedPrompt> render(const std::string& source, ChatTemplateInput input = {},
                              const ChatTemplateLimits& limits = {}) {
  if (input.messages_json.empty()) input.messages_json = kConversation;
  ASSIGN_OR_RETURN(const auto compiled, ChatTemplate::compile(source, limits));
  return compiled->render(input);
}

std::string text(const std::string& source, ChatTemplateInput input = {}) {
  const auto result = render(source, std::move(input));
  return result.ok() ? result->text : "error: " + result.error().message;
}

ContentFormat format_of(const std::string& source) {
  return ChatTemplate::compile(source).value()->content_format();
}

BOOST_AUTO_TEST_CASE(the_reference_templates_render_exactly) {
  const ReplayReport report =
      replay_templates(std::filesystem::path(TROUPE_GOLDEN_DIR) / "templates");
  for (const std::string& difference : report.differences) BOOST_ERROR(difference);
  BOOST_TEST(report.num_cases > 700u);
  BOOST_TEST(report.num_mismatches == 0u);
}

BOOST_AUTO_TEST_CASE(the_templates_own_message_is_the_error) {
  const auto result = render("{{ raise_exception('roles must alternate') }}");
  BOOST_REQUIRE(!result.ok());
  BOOST_TEST((result.error().code == ErrorCode::kInvalidArgument));
  BOOST_TEST(result.error().message == "roles must alternate");
}

BOOST_AUTO_TEST_CASE(a_syntax_error_names_its_line) {
  const auto result = ChatTemplate::compile("a\nb\n{{ 1 + }}");
  BOOST_REQUIRE(!result.ok());
  BOOST_TEST(result.error().message.find("line 3") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(hostile_templates_run_into_a_limit) {
  const char* sources[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
      "{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}"
      "{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
      "{{ 'a' * 10000000000 }}",
      "{{ '%999999999d' % 1 }}",
      "{{ range(100001) | list }}",
      "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
      "{% set ns = namespace(x='a') %}{% for i in range(9999) %}{% set ns.x = ns.x | map('upper') "
      "%}"
      "{% endfor %}",
  };
  for (const char* source : sources) {
    const auto result = render(source);
    BOOST_TEST_CONTEXT(source) { BOOST_TEST(!result.ok()); }
  }
  BOOST_TEST(!ChatTemplate::compile("{{ " + std::string(100000, '(') + " }}").ok());
  BOOST_TEST(!ChatTemplate::compile("{{ 1" + std::string(100000, '+') + "1 }}").ok());
}

BOOST_AUTO_TEST_CASE(cycles_through_namespaces_and_macros_are_taken_apart) {
  BOOST_TEST(text("{% set ns = namespace() %}{% set ns.me = [ns] %}"
                  "{% macro m() %}{{ ns.x }}{% endmacro %}{% set ns.m = m %}ok") == "ok");
}

BOOST_AUTO_TEST_CASE(input_json_keeps_order_and_large_integers) {
  ChatTemplateInput input;
  input.template_kwargs_json =
      R"({"d":{"z":123456789012345678901234567890,"a":18446744073709551615,"f":1.0}})";
  BOOST_TEST(text("{{ d | tojson }}", input) ==
             R"({"z": 123456789012345678901234567890, "a": 18446744073709551615, "f": 1.0})");
}

BOOST_AUTO_TEST_CASE(reasoning_reaches_templates_under_the_names_that_they_read) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    ChatTemplateInput input;
    input.messages_json = R"([{"role":"assistant","content":"x","tool_calls":null,")" +
                          std::string(name) + R"(":"why"}])";
    BOOST_TEST(text("{% set m = messages[0] %}{{ m.thinking }} {{ m.reasoning_content }} "
                    "{{ m.reasoning }} {{ 'tool_calls' in m }}",
                    input) == "why why why False",
               name);
  }
}

BOOST_AUTO_TEST_CASE(content_format_follows_loops_over_content) {
  BOOST_TEST(
      (format_of("{% for m in messages %}{{ m.content }}{% endfor %}") == ContentFormat::kString));
  BOOST_TEST((format_of("{% for m in messages %}{% for c in m['content'] %}{{ c.text }}"
                        "{% endfor %}{% endfor %}") == ContentFormat::kOpenAi));
  BOOST_TEST((format_of("{% macro r(parts) %}{% for p in parts %}{{ p }}{% endfor %}{% endmacro %}"
                        "{% for m in messages %}{{ r(m.content) }}{% endfor %}") ==
              ContentFormat::kOpenAi));
  BOOST_TEST((format_of("{% for m in messages %}{% set x = m.content %}{% for p in x %}{{ p }}"
                        "{% endfor %}{% endfor %}") == ContentFormat::kOpenAi));
}

BOOST_AUTO_TEST_CASE(string_content_joins_texts_and_puts_images_first) {
  const auto result = normalize_messages(
      R"([{"role":"user","content":[{"type":"text","text":"a"},
          {"type":"image_url","image_url":{"url":"u"}},{"type":"text","text":"b"}]}])",
      {.image_placeholder = "<image>"});
  BOOST_REQUIRE(result.ok());
  BOOST_TEST(result->messages_json == R"([{"role":"user","content":"<image>\na\nb"}])");
  BOOST_REQUIRE(result->media.size() == 1u);
  BOOST_TEST(result->media[0].url == "u");
}

BOOST_AUTO_TEST_CASE(openai_content_becomes_typed_parts) {
  const auto result = normalize_messages(
      R"([{"role":"user","content":"x"},{"role":"tool","content":[{"type":"text","text":"1"},
          {"type":"text","text":"2"}]}])",
      {.content_format = ContentFormat::kOpenAi});
  BOOST_REQUIRE(result.ok());
  BOOST_TEST(result->messages_json == R"([{"role":"user","content":[{"type":"text","text":"x"}]},)"
                                      R"({"role":"tool","content":"1\n2"}])");
}

BOOST_AUTO_TEST_CASE(developer_messages_and_tool_arguments_are_brought_into_form) {
  const auto result = normalize_messages(
      R"([{"role":"system","content":"a"},{"role":"developer","content":"b"},
          {"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"k\":1}"}},
          {"function":{"name":"g","arguments":"oops"}}]},{"role":"user","content":"","tool_calls":[]}])",
      {});
  BOOST_REQUIRE(result.ok());
  BOOST_TEST(
      result->messages_json ==
      R"([{"role":"system","content":"a\n\nb"},{"role":"assistant","content":"","tool_calls":)"
      R"([{"function":{"name":"f","arguments":{"k":1}}},)"
      R"({"function":{"name":"g","arguments":"oops"}}]},{"role":"user","content":""}])");
}

BOOST_AUTO_TEST_CASE(arguments_that_are_nested_too_deeply_stay_text) {
  const auto normalize = [](std::size_t depth) {
    const std::string arrays = std::string(depth, '[') + std::string(depth, ']');
    return normalize_messages(
               R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"k\":)" +
                   arrays + R"(}"}}]}])",
               {})
        .value()
        .messages_json;
  };
  BOOST_TEST(normalize(63).find(R"("arguments":{"k":[[)") != std::string::npos);
  BOOST_TEST(normalize(64).find(R"("arguments":"{\"k\":[[)") != std::string::npos);
  BOOST_TEST(normalize(1'000'000).find(R"("arguments":"{\"k\":[[)") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_message_without_content_has_that_of_no_parts) {
  const std::string calls = R"("tool_calls":[{"function":{"name":"f","arguments":{}}}])";
  for (const std::string content : {"", R"("content":null,)"}) {
    const std::string message = R"([{"role":"assistant",)" + content + calls + "}]";
    BOOST_TEST(normalize_messages(message, {})->messages_json ==
               R"([{"role":"assistant","content":"",)" + calls + "}]");
    BOOST_TEST(
        normalize_messages(message, {.content_format = ContentFormat::kOpenAi})->messages_json ==
        R"([{"role":"assistant","content":[],)" + calls + "}]");
    // What published templates do with it.
    ChatRendererOptions options;
    options.chat_template =
        "{% for m in messages %}{{ m.content.split('</think>')[-1] + '|' + (m.content | trim) }}"
        "{% if 'x' in m.content %}x{% endif %}{{ m['content'] | length }}{% endfor %}";
    const auto renderer = ChatRenderer::create({}, options).value();
    BOOST_TEST(renderer->render({.messages_json = message}, {})->text == "|0");
  }
}

BOOST_AUTO_TEST_CASE(empty_texts_of_parts_add_no_line) {
  const std::string message =
      R"([{"role":"user","content":[{"type":"text","text":""},{"type":"text","text":"a"},)"
      R"({"type":"text","text":""},{"type":"text","text":"b"}]}])";
  BOOST_TEST(normalize_messages(message, {})->messages_json ==
             R"([{"role":"user","content":"a\nb"}])");
}

BOOST_AUTO_TEST_CASE(the_developer_role_stays_where_the_template_has_it_as_a_word) {
  const auto role_in = [](const std::string& source) {
    ChatRendererOptions options;
    options.chat_template = source + "{{ messages[0].role }}";
    const auto renderer = ChatRenderer::create({}, options).value();
    return renderer->render({.messages_json = R"([{"role":"developer","content":"x"}])"}, {})->text;
  };
  BOOST_TEST(role_in("{% if messages[0].role == 'developer' %}{% endif %}") == "developer");
  BOOST_TEST(role_in("{% if messages[0].role == \"developer\" %}{% endif %}") == "developer");
  BOOST_TEST(role_in("{# made by a developer #}") == "system");
  BOOST_TEST(role_in("") == "system");
}

BOOST_AUTO_TEST_CASE(malformed_messages_are_refused) {
  for (const char* json : {"{}", "[1]", R"([{"content":"x"}])", R"([{"role":"user","content":5}])",
                           R"([{"role":"user","content":[{"type":"smell"}]}])", "[", ""}) {
    BOOST_TEST(!normalize_messages(json, {}).ok());
  }
}

BOOST_AUTO_TEST_CASE(the_renderer_chooses_among_the_models_templates) {
  ChatFiles files;
  files.templates = {{"default", "D{{ bos_token }}"}, {"tool_use", "T"}, {"rag", "R"}};
  files.special_tokens = {{"bos_token", "<s>"}};
  auto renderer = ChatRenderer::create(files, {.max_cached_templates = 2}).value();
  ChatPrompt prompt{.messages_json = kConversation};
  BOOST_TEST(renderer->render(prompt, {})->text == "D<s>");
  prompt.tools_json = "[{}]";
  BOOST_TEST(renderer->render(prompt, {})->text == "T");
  prompt.chat_template = "rag";
  BOOST_TEST(renderer->render(prompt, {})->text == "R");
  for (int i = 0; i < 5; ++i) {
    prompt.chat_template = "own " + std::to_string(i % 3) + " {{ messages[1].content }}";
    BOOST_TEST(renderer->render(prompt, {})->text == "own " + std::to_string(i % 3) + " Hi");
  }
}

/// A model folder that is gone when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("troupe-chat-test-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

BOOST_AUTO_TEST_CASE(the_files_of_a_model_give_special_tokens_and_templates) {
  const TemporaryFolder folder;
  folder.write("special_tokens_map.json", R"({"bos_token":"<old>","unk_token":"<unk>"})");
  folder.write("tokenizer_config.json",
               R"({"bos_token":{"content":"<s>"},"pad_token":null,"add_bos_token":true,
                   "image_token":"<img>","model_specific_special_tokens":{"audio":"<sound>"},
                   "chat_template":[{"name":"default","template":"D"},
                                    {"name":"tool_use","template":"T"}]})");
  const ChatFiles files = load_chat_files(folder.path()).value();
  const std::map<std::string, std::string> tokens = {
      {"audio", "<sound>"}, {"bos_token", "<s>"}, {"image_token", "<img>"}, {"unk_token", "<unk>"}};
  BOOST_TEST((files.special_tokens == tokens));
  BOOST_TEST(files.templates.at("default") == "D");
  BOOST_TEST(files.templates.at("tool_use") == "T");
}

BOOST_AUTO_TEST_CASE(a_separate_template_file_takes_precedence) {
  const TemporaryFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template":"in the configuration"})");
  BOOST_TEST(load_chat_files(folder.path())->templates.at("default") == "in the configuration");
  folder.write("chat_template.json", R"({"chat_template":"in JSON"})");
  BOOST_TEST(load_chat_files(folder.path())->templates.at("default") == "in JSON");
  folder.write("chat_template.jinja", "alone");
  folder.write("additional_chat_templates/rag.jinja", "with sources");
  const ChatFiles files = load_chat_files(folder.path()).value();
  BOOST_TEST(files.templates.at("default") == "alone");
  BOOST_TEST(files.templates.at("rag") == "with sources");
  folder.write("chat_template.json", "[]");
  BOOST_TEST((load_chat_files(folder.path()).error().code == ErrorCode::kCorrupt));
}

BOOST_AUTO_TEST_CASE(a_template_that_cannot_be_reached_is_an_error_that_names_it) {
  for (const char* name : {"chat_template.jinja", "additional_chat_templates"}) {
    const TemporaryFolder folder;
    std::filesystem::create_symlink(name, folder.path() / name);  // leads to itself
    const auto files = load_chat_files(folder.path());
    BOOST_REQUIRE(!files.ok());
    BOOST_TEST((files.error().code == ErrorCode::kIo));
    BOOST_TEST(files.error().message.find((folder.path() / name).string()) != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(a_model_without_template_needs_one_from_the_request) {
  auto renderer = ChatRenderer::create({}, {}).value();
  BOOST_TEST(!renderer->render({.messages_json = kConversation}, {}).ok());
}

}  // namespace
}  // namespace troupe
