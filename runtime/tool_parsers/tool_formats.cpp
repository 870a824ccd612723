#include <algorithm>

#include "runtime/reasoning/find_format.hpp"
#include "runtime/tool_parsers/tool_format.hpp"

namespace troupe {
namespace {

/// Around the messages of Harmony.
const std::vector<std::string_view> kHarmonyMarkers = {
    "<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>",
    "<|end|>", "<|return|>"};
const ToolFormat kHarmonyTexts = {
    .name = "openai", .markers = kHarmonyMarkers, .has_special_tokens = true};

// clang-format off
/// Formats whose chat templates have more markers come before those with a part of them.
const std::vector<ToolFormat> kFormats = {
    {.name = "qwen3_coder", .aliases = {"qwen3_xml"},
     .patterns = {"<tool_call>\n<function={name}>\n{parameters}\n</function>\n</tool_call>",
                  "<function={name}>\n{parameters}\n</function>\n</tool_call>"},
     .parameter = "<parameter={key}>\n{value}\n</parameter>\n",
     .templates = {{"<tool_call>", "<function="}}},
    {.name = "seed_oss",
     .patterns = {"<seed:tool_call>\n<function={name}>\n{parameters}\n</function>\n</seed:tool_call>"},
     .parameter = "<parameter={key}>{value}</parameter>\n",
     .templates = {{"<seed:tool_call>"}}},
    {.name = "glm45", .aliases = {"glm47"},
     .patterns = {"<tool_call>{name}\n{parameters}\n</tool_call>"},
     .parameter = "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
     .templates = {{"<tool_call>", "<arg_key>"}}},
    {.name = "minimax_m2",
     .patterns = {"<invoke name=\"{name}\">\n{parameters}\n</invoke>"},
     .parameter = "<parameter name=\"{key}\">{value}</parameter>\n",
     .section_begin = "<minimax:tool_call>\n", .section_end = "\n</minimax:tool_call>", .has_special_tokens = true,
     .templates = {{"<minimax:tool_call>"}}},
    {.name = "deepseek_v32",
     .patterns = {"<｜DSML｜invoke name=\"{name}\">\n{parameters}\n</｜DSML｜invoke>"},
     .parameter = "<｜DSML｜parameter name=\"{key}\" string=\"{id}\">{value}</｜DSML｜parameter>\n",
     .section_begin = "<｜DSML｜function_calls>\n", .section_end = "\n</｜DSML｜function_calls>", .has_special_tokens = true,
     .templates = {{"｜DSML｜"}}},
    {.name = "deepseek_v3",
     .patterns = {"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json}\n```<｜tool▁call▁end｜>"},
     .section_begin = "<｜tool▁calls▁begin｜>", .section_end = "<｜tool▁calls▁end｜>", .has_special_tokens = true,
     .templates = {{"<｜tool▁call▁begin｜>", "```json"}}},
    {.name = "deepseek_v31",
     .patterns = {"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json}<｜tool▁call▁end｜>"},
     .section_begin = "<｜tool▁calls▁begin｜>", .section_end = "<｜tool▁calls▁end｜>", .has_special_tokens = true, .between = "",
     .templates = {{"<｜tool▁call▁begin｜>"}}},
    {.name = "kimi_k2",
     .patterns = {"<|tool_call_begin|>functions.{name}:{id}<|tool_call_argument_begin|>{json}<|tool_call_end|>",
                  "<|tool_call_begin|>{name}:{id}<|tool_call_argument_begin|>{json}<|tool_call_end|>"},
     .section_begin = "<|tool_calls_section_begin|>", .section_end = "<|tool_calls_section_end|>",
     .ids = CallIds::kNumbered, .has_special_tokens = true, .between = "",
     .templates = {{"<|tool_calls_section_begin|>"}}},
    {.name = "mistral",
     .patterns = {"[TOOL_CALLS]{objects}", "[TOOL_CALLS]{object}",
                  "[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]{json}",
                  "[TOOL_CALLS]{name}[ARGS]{json}", "[TOOL_CALLS]{name}{json}"},
     .ids = CallIds::kNine, .has_special_tokens = true, .held = {0, 2, 3}, .between = "",
     .templates = {{"[TOOL_CALLS]"}}},
    {.name = "functiongemma",
     .patterns = {"<start_function_call>call:{name}{escaped}<end_function_call>"},
     .has_special_tokens = true,
     .templates = {{"<start_function_call>"}}},
    {.name = "granite",
     .patterns = {"<|tool_call|>{objects}", "<|tool_call|>{object}",
                  "<tool_call>{objects}</tool_call>", "<tool_call>\n{object}\n</tool_call>"},
     .has_special_tokens = true, .held = {0, 3},
     .templates = {{"<|tool_call|>", "<|start_of_role|>"}, {"<tool_call>", "<|start_of_role|>"}}},
    {.name = "lfm2",
     .patterns = {"<|tool_call_start|>[{python}]<|tool_call_end|>"},
     .has_special_tokens = true,
     .templates = {{"<|tool_call_start|>"}}},
    {.name = "nemotron_json",
     .patterns = {"<TOOLCALL>{objects}</TOOLCALL>", "<TOOLCALL>{object}</TOOLCALL>"},
     .templates = {{"<TOOLCALL>"}}},
    {.name = "jamba", .aliases = {"hunyuan_a13b"},
     .patterns = {"<tool_calls>{objects}</tool_calls>"},
     .templates = {{"<tool_calls>"}}},
    {.name = "internlm",
     .patterns = {"<|action_start|><|plugin|>{object}<|action_end|>"},
     .has_special_tokens = true,
     .templates = {{"<|action_start|>"}}},
    {.name = "openai", .aliases = {"gpt_oss", "harmony"},
     .patterns = {"<|start|>assistant to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>{json}<|call|>",
                  "<|start|>assistant to=functions.{name}<|channel|>commentary<|message|>{json}<|call|>",
                  "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json}<|call|>",
                  "<|channel|>commentary to=functions.{name}<|message|>{json}<|call|>"},
     .markers = kHarmonyMarkers,
     .has_special_tokens = true, .held = {2}, .also_held = {0, 1, 3}, .between = "", .without_tools = &kHarmonyTexts,
     .templates = {{"<|channel|>", "<|constrain|>"}}},
    {.name = "phi4_mini_json",
     .patterns = {"functools{objects}", "<|tool_call|>{objects}<|/tool_call|>"},
     .has_special_tokens = true, .held = {0, 1},
     .templates = {{"<|tool|>", "<|/tool|>"}}},
    {.name = "hermes", .aliases = {"qwen3_json"},
     .patterns = {"<tool_call>\n{object}\n</tool_call>"},
     .templates = {{"<tool_call>"}}},
    {.name = "llama4_pythonic",
     .patterns = {"<|python_start|>[{python}]<|python_end|>", "[{python}]"},
     .has_special_tokens = true, .held = {1}, .also_held = {0},
     .templates = {{"<|python_start|>"}, {"<|header_start|>"}}},
    {.name = "pythonic",
     .patterns = {"[{python}]"},
     .templates = {{"[func_name1("}}},
    {.name = "llama3_json", .aliases = {"llama4_json"},
     .patterns = {"<|python_tag|>{object}", "{object}"},
     .separator = ";", .has_special_tokens = true, .held = {1}, .also_held = {0}, .between = "; ", .arguments_key = "parameters",
     .templates = {{"<|start_header_id|>", "\"parameters\""}}},
};
// clang-format on

}  // namespace

std::optional<ToolStrictLevel> find_tool_strict_level(std::string_view name) {
  if (name == "auto") return ToolStrictLevel::kAuto;
  if (name == "function") return ToolStrictLevel::kFunction;
  if (name == "parameter") return ToolStrictLevel::kParameter;
  return std::nullopt;
}

std::span<const ToolFormat> tool_formats() { return kFormats; }

const ToolFormat* find_tool_format(std::string_view name) {
  return find_format(tool_formats(), name);
}

const ToolFormat* format_with(const ToolFormat& format,
                              std::span<const std::string> special_tokens) {
  static const std::vector<ToolFormat> kSpecial = [] {
    std::vector<ToolFormat> formats = kFormats;
    for (ToolFormat& each : formats) each.has_special_tokens = true;
    return formats;
  }();
  std::vector<std::string_view> texts = format.patterns;
  texts.insert(texts.end(), format.markers.begin(), format.markers.end());
  texts.insert(texts.end(), {format.parameter, format.section_begin, format.section_end});
  const bool has_special = std::ranges::any_of(special_tokens, [&](const std::string& token) {
    return std::ranges::any_of(
        texts, [&](std::string_view text) { return text.find(token) != std::string_view::npos; });
  });
  if (!has_special) return &format;
  return find_format(std::span<const ToolFormat>(kSpecial), format.name);
}

const ToolFormat* detect_tool_format(std::string_view chat_template) {
  const auto found = std::ranges::find_if(kFormats, [&](const ToolFormat& format) {
    return std::ranges::any_of(format.templates, [&](const auto& texts) {
      return std::ranges::all_of(texts, [&](std::string_view text) {
        return chat_template.find(text) != std::string_view::npos;
      });
    });
  });
  return found == kFormats.end() ? nullptr : &*found;
}

}  // namespace troupe
