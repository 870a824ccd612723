#include <algorithm>

#include "runtime/reasoning/find_format.hpp"
#include "runtime/reasoning/reasoning_format.hpp"

namespace troupe {
namespace {

// clang-format off
const std::vector<ReasoningFormat> kFormats = {
    {.name = "deepseek_r1", .begin = "<think>", .end = "</think>", .starts_inside = true},
    {.name = "deepseek_v3", .aliases = {"deepseek_v31", "deepseek_v32"}, .begin = "<think>", .end = "</think>",
     .starts_inside = true, .switch_variable = "thinking", .is_off_by_default = true},
    {.name = "qwen3", .begin = "<think>", .end = "</think>", .implicit_ends = {"<tool_call>"},
     .starts_inside = true, .switch_variable = "enable_thinking"},
    {.name = "glm45", .aliases = {"glm47"}, .begin = "<think>", .end = "</think>",
     .switch_variable = "enable_thinking"},
    {.name = "kimi_k2", .begin = "<think>", .end = "</think>", .implicit_ends = {"<|tool_calls_section_begin|>"},
     .starts_inside = true, .switch_variable = "thinking"},
    {.name = "minimax_m2", .begin = "<think>", .end = "</think>", .starts_inside = true},
    {.name = "seed_oss", .begin = "<seed:think>", .end = "</seed:think>"},
    {.name = "mistral", .begin = "[THINK]", .end = "[/THINK]", .has_special_tokens = true},
    {.name = "granite", .begin = "Here is my thought process:", .end = "Here is my response:"},
    {.name = "openai_gptoss", .aliases = {"gpt_oss", "harmony"},
     .begin = "<|channel|>analysis<|message|>", .end = "<|end|>", .repeats = true,
     .behind = "<|start|>assistant", .text_begin = "<|channel|>final<|message|>", .has_special_tokens = true},
};
// clang-format on

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t number = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size()))
    ++number;
  return number;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace

std::span<const ReasoningFormat> reasoning_formats() { return kFormats; }

const ReasoningFormat* find_reasoning_format(std::string_view name) {
  return find_format(reasoning_formats(), name);
}

void note_special_tokens(ReasoningFormat& format, std::span<const std::string> special_tokens) {
  std::vector<std::string_view> texts = {format.begin, format.end};
  texts.insert(texts.end(), format.implicit_ends.begin(), format.implicit_ends.end());
  format.has_special_tokens |= std::ranges::any_of(special_tokens, [&](const std::string& token) {
    return std::ranges::any_of(texts, [&](std::string_view text) { return contains(text, token); });
  });
}

std::optional<ReasoningFormat> detect_reasoning_format(std::string_view chat_template) {
  if (contains(chat_template, "<|channel|>") && contains(chat_template, "analysis"))
    return *find_reasoning_format("openai_gptoss");
  if (contains(chat_template, "[THINK]")) return *find_reasoning_format("mistral");
  if (contains(chat_template, "<seed:think>")) return *find_reasoning_format("seed_oss");
  if (contains(chat_template, "Here is my thought process:"))
    return *find_reasoning_format("granite");
  if (!contains(chat_template, "<think>")) return std::nullopt;
  // The model may get the first tag from the template, or write it itself.
  ReasoningFormat format = *find_reasoning_format("qwen3");
  const std::size_t generation = chat_template.rfind("add_generation_prompt");
  const std::string_view prompt =
      generation == chat_template.npos ? std::string_view() : chat_template.substr(generation);
  format.starts_inside = count(prompt, "<think>") > count(prompt, "</think>");
  if (!contains(chat_template, "enable_thinking")) {
    format.switch_variable = contains(chat_template, "thinking") ? "thinking" : "";
  }
  return format;
}

}  // namespace troupe
