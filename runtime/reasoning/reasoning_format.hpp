#pragma once
// How families of models mark their reasoning.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct ReasoningFormat {
  std::string_view name;  ///< as --reasoning-parser has it
  std::vector<std::string_view> aliases = {};
  std::string_view begin;
  std::string_view end;
  /// These end it too, and belong to what follows: a call that begins.
  std::vector<std::string_view> implicit_ends = {};
  /// The answer begins with reasoning; `begin` may be missing.
  bool starts_inside = false;
  /// This variable of the chat template, if set to false, turns reasoning off.
  std::string_view switch_variable = {};
  /// For models that do not reason unless `switch_variable` is true.
  bool is_off_by_default = false;
  /// There may be several sections.
  bool repeats = false;
  /// Behind each section, where an answer is held to a structure.
  std::string_view behind = {};
  /// Before an answer that is text, where it is held to a structure.
  std::string_view text_begin = {};
  /// Its markers are special tokens in the vocabularies of its models.
  bool has_special_tokens = false;
};

[[nodiscard]] std::span<const ReasoningFormat> reasoning_formats();
/// By name or alias; null if there is none.
[[nodiscard]] const ReasoningFormat* find_reasoning_format(std::string_view name);
/// Sets has_special_tokens if one of these tokens is in the format's markers.
void note_special_tokens(ReasoningFormat& format, std::span<const std::string> special_tokens);
/// By the source of a chat template; nullopt if its model does not reason, or in an unknown format.
[[nodiscard]] std::optional<ReasoningFormat> detect_reasoning_format(
    std::string_view chat_template);

}  // namespace troupe
