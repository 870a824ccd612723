#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "runtime/base/ordered_json.hpp"
#include "runtime/chat/chat_template.hpp"
#include "tests/support/replay.hpp"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// "2024-07-26T12:34:56.789012" as the clock of a server whose local time it is.
ChatClock parse_clock(const std::string& text) {
  std::tm parts{};
  int micros = 0;
  if (std::sscanf(text.c_str(), "%d-%d-%dT%d:%d:%d.%6d", &parts.tm_year, &parts.tm_mon,
                  &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &micros) < 6) {
    throw std::runtime_error("context.json: cannot read now: " + text);
  }
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  return {std::int64_t{timegm(&parts)} * 1'000'000 + micros, 0};
}

std::string dump_field(const Json& row, const char* name) {
  return row.contains(name) && !row[name].is_null() ? row[name].dump() : std::string();
}

struct Context {
  ChatClock clock;
  std::map<std::string, std::string> special_tokens;
  Json json;
};

ChatTemplateInput input_of(const Json& row, const Context& context) {
  ChatTemplateInput input;
  input.messages_json = row.at("messages").dump();
  input.tools_json = dump_field(row, "tools");
  input.documents_json = dump_field(row, "documents");
  input.template_kwargs_json = dump_field(row, "kwargs");
  input.add_generation_prompt = row.value("add_generation_prompt", false);
  input.continue_final_message = row.value("continue_final_message", false);
  input.special_tokens = context.special_tokens;
  input.clock = context.clock;
  return input;
}

Result<RenderedPrompt> compile_and_render(const std::string& source,
                                          const ChatTemplateInput& input) {
  ASSIGN_OR_RETURN(const auto compiled, ChatTemplate::compile(source));
  return compiled->render(input);
}

/// What differs from the row's expectation; empty if nothing does.
std::string compare(const Json& row, const Result<RenderedPrompt>& result) {
  if (row.contains("error")) {
    if (result.ok()) return "no error, but rendered " + Json(result->text).dump();
    const Json& error = row["error"];
    if (error.at("type") != "TemplateError" || error.at("message") == result.error().message) {
      return {};
    }
    return "error " + result.error().message + ", expected " + error.dump();
  }
  if (!result.ok()) return "error: " + result.error().message;
  if (result->text != row.at("rendered").get<std::string>()) {
    return "rendered\n" + Json(result->text).dump() + "\nexpected\n" + row["rendered"].dump();
  }
  if (!row.contains("generation_spans")) return {};
  Json spans = Json::array();
  for (const TextSpan& span : result->generation_spans) spans.push_back({span.start, span.end});
  if (spans == row["generation_spans"]) return {};
  return "generation spans " + spans.dump() + ", expected " + row["generation_spans"].dump();
}

void add(ReplayReport& report, const std::string& name, const std::string& difference) {
  report.add(difference.empty() ? difference : name + ": " + difference);
}

template <class Visit>
void for_each_row(const std::filesystem::path& path, Visit visit) {
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) visit(Json::parse(line));
  }
}

}  // namespace

ReplayReport replay_templates(const std::filesystem::path& folder) {
  Context context;
  context.json = Json::parse(read_file(folder / "context.json"));
  context.clock = parse_clock(context.json.at("now"));
  context.json.at("special_tokens").get_to(context.special_tokens);

  ReplayReport report;
  std::vector<std::filesystem::path> templates;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".jinja") templates.push_back(entry.path());
  }
  std::sort(templates.begin(), templates.end());
  for (const std::filesystem::path& path : templates) {
    const std::string source = read_file(path);
    std::filesystem::path cases = path;
    for_each_row(cases.replace_extension(".cases.jsonl"), [&](const Json& row) {
      add(report, path.stem().string() + "/" + row.at("name").get<std::string>(),
          compare(row, compile_and_render(source, input_of(row, context))));
    });
  }
  for (const char* name : {"snippets.jsonl", "builtins.jsonl"}) {
    if (!std::filesystem::exists(folder / name)) continue;
    Json shared{{"messages", context.json.at("snippet_messages")},
                {"kwargs", context.json.at("snippet_kwargs")},
                {"add_generation_prompt", context.json.at("snippet_add_generation_prompt")}};
    const ChatTemplateInput input = input_of(shared, context);
    for_each_row(folder / name, [&](const Json& row) {
      const auto source = row.at("template").get<std::string>();
      add(report, "snippet " + source, compare(row, compile_and_render(source, input)));
    });
  }
  return report;
}

}  // namespace troupe
