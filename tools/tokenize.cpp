// troupe tokenize, troupe render: tokenize text, render a chat template, JSON lines in and out, for
// debugging prompts. Only tokenizer and chat template are loaded.
#include <iostream>

#include "runtime/base/ordered_json.hpp"
#include "runtime/chat/chat_renderer.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tools/commands.hpp"

namespace troupe::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTokenizeUsage =
    "usage: troupe tokenize FOLDER < lines.jsonl\n\n"
    "Each input line is a JSON string or {\"text\": ..., \"add_special_tokens\": true}, and its\n"
    "output is {\"tokens\", \"token_strs\", \"offsets\"}; or {\"tokens\": [...],\n"
    "\"skip_special_tokens\": false}, and its output is {\"text\"}. Invalid lines give "
    "{\"error\"}.\n";
constexpr const char* kRenderUsage =
    "usage: troupe render FOLDER < lines.jsonl\n\n"
    "Each input line is an array of messages, or an object with messages, tools, documents,\n"
    "chat_template_kwargs, add_generation_prompt, continue_final_message. Each output line is\n"
    "{\"prompt\", \"tokens\"} or {\"error\"}.\n";

Json tokenize_line(const Tokenizer& tokenizer, const Json& line) {
  if (line.is_object() && line.contains("tokens")) {
    const auto ids = line.at("tokens").get<std::vector<TokenId>>();
    return {{"text", tokenizer.decode(ids, line.value("skip_special_tokens", false))}};
  }
  const auto text = line.is_string() ? line.get<std::string>() : line.at("text").get<std::string>();
  const bool special = !line.is_object() || line.value("add_special_tokens", true);
  const auto encoded = tokenizer.encode_with_offsets(text, special);
  if (!encoded.ok()) return {{"error", encoded.error().message}};
  const Encoding& encoding = *encoded;
  Json strings = Json::array(), offsets = Json::array();
  for (const TokenId id : encoding.ids)
    strings.push_back(std::string(tokenizer.id_to_token(id).value_or("")));
  for (const TextOffsets& range : encoding.offsets) offsets.push_back({range.begin, range.end});
  return {{"tokens", encoding.ids}, {"token_strs", strings}, {"offsets", offsets}};
}

std::string dump_if_present(const Json& line, const char* key) {
  return line.is_object() && line.contains(key) && !line.at(key).is_null() ? line.at(key).dump()
                                                                           : std::string();
}

Json render_line(const Tokenizer& tokenizer, ChatRenderer& renderer, const Json& line) {
  ChatPrompt prompt;
  prompt.messages_json = line.is_array() ? line.dump() : line.at("messages").dump();
  prompt.tools_json = dump_if_present(line, "tools");
  prompt.documents_json = dump_if_present(line, "documents");
  prompt.template_kwargs_json = dump_if_present(line, "chat_template_kwargs");
  if (line.is_object()) {
    prompt.continue_final_message = line.value("continue_final_message", false);
    prompt.add_generation_prompt =
        line.value("add_generation_prompt", !prompt.continue_final_message);
    prompt.chat_template = line.value("chat_template", "");
  }
  auto rendered = renderer.render(prompt, ChatClock::now());
  if (!rendered.ok()) return {{"error", rendered.error().message}};
  const auto tokens = tokenizer.encode(rendered->text, false);
  if (!tokens.ok()) return {{"error", tokens.error().message}};
  return {{"prompt", rendered->text}, {"tokens", *tokens}};
}

/// Writes an output line for each line of standard input; a failed line outputs its error and does
/// not affect the others.
template <class Answer>
int answer_lines(Answer&& answer) {
  int code = kExitOk;
  for (std::string text; std::getline(std::cin, text);) {
    Json reply;
    try {
      reply = answer(Json::parse(text));
    } catch (const Json::exception& error) {
      reply = {{"error", error.what()}};
    }
    if (reply.contains("error")) code = kExitFailure;
    std::cout << reply.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
  }
  return code;
}

/// The folder on the command line; nullopt after help or an error has been printed.
std::optional<std::string> folder_argument(Arguments arguments, const char* usage, int& code) {
  code = kExitOk;
  if (help_request(arguments)) {
    std::cout << usage;
    return std::nullopt;
  }
  OptionSet none;
  const auto given = none.parse_command_line(arguments);
  if (!given.ok()) {
    code = fail(given.error());
  } else if (given->positionals.size() != 1) {
    code = kExitUsage;
    std::cerr << usage;
  } else if (auto folder = locate_model(given->positionals[0], {}); !folder.ok()) {
    code = fail(folder.error());
  } else {
    return std::move(folder).value();
  }
  return std::nullopt;
}

}  // namespace

int tokenize(Arguments arguments) {
  int code = kExitOk;
  const auto folder = folder_argument(arguments, kTokenizeUsage, code);
  if (!folder) return code;
  auto tokenizer = Tokenizer::load(*folder);
  if (!tokenizer.ok()) return fail(tokenizer.error());
  return answer_lines([&](const Json& line) { return tokenize_line(**tokenizer, line); });
}

int render(Arguments arguments) {
  int code = kExitOk;
  const auto folder = folder_argument(arguments, kRenderUsage, code);
  if (!folder) return code;
  auto tokenizer = Tokenizer::load(*folder);
  if (!tokenizer.ok()) return fail(tokenizer.error());
  auto files = load_chat_files(*folder);
  if (!files.ok()) return fail(files.error());
  auto renderer = ChatRenderer::create(std::move(files).value(), {});
  if (!renderer.ok()) return fail(renderer.error());
  return answer_lines([&](const Json& line) { return render_line(**tokenizer, **renderer, line); });
}

}  // namespace troupe::tools
