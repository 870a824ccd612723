#include "runtime/http/unsupported_fields.hpp"

#include <algorithm>
#include <string>

namespace troupe {
namespace {

struct RefusedField {
  std::string_view name;
  std::string_view instead = {};  ///< the alternative, if any
};
/// Rejected with any value.
constexpr RefusedField kRefused[] = {
    {"audio"},         {"functions", "tools"},          {"prediction"},
    {"prompt_embeds"}, {"routed_experts_prompt_start"}, {"structural_tag"},
    {"watermarking"},  {"web_search_options"},
};

/// Only false is supported.
constexpr std::string_view kNever[] = {"return_mm_kwargs", "return_token_offsets", "store",
                                       "use_beam_search"};

struct Choice {
  std::string_view name;
  std::string_view offered;
  std::string_view also = offered;
};
/// Fields of which only some values are supported.
constexpr Choice kChoices[] = {
    {"function_call", "none"},           {"mm_payload", "tensors"},
    {"service_tier", "auto", "default"}, {"suffix", ""},
    {"truncation_side", "left"},         {"verbosity", "medium"},
};

void refuse_choice(const JsonFields& fields, const Choice& choice) {
  if (fields.kind(choice.name) == JsonKind::kObject)
    return fields.fail(unsupported(choice.name, choice.name));
  const auto value = fields.text(choice.name);
  if (!value || *value == choice.offered || *value == choice.also) return;
  constexpr std::size_t kMaxShownBytes = 32;
  fields.fail(unsupported(
      choice.name,
      std::string(choice.name) + (value->size() <= kMaxShownBytes ? " " + *value : std::string())));
}

/// Only text output is supported.
void refuse_modalities(const JsonFields& fields) {
  constexpr std::size_t kMaxModalities = 16;
  const auto modalities = fields.texts("modalities", kMaxModalities);
  if (modalities && std::any_of(modalities->begin(), modalities->end(),
                                [](const auto& modality) { return modality != "text"; }))
    fields.fail(unsupported("modalities", "another modality than text"));
}

/// Selecting the best of several samples is not supported.
void refuse_best_of(const JsonFields& fields) {
  const auto best_of = fields.integer("best_of", {1, kAnyInt32.max});
  if (best_of && *best_of != fields.integer("n").value_or(1))
    fields.fail(unsupported("best_of", "best_of other than n"));
}

}  // namespace

Error unsupported(std::string_view name, std::string_view what) {
  return {ErrorCode::kUnsupported, std::string(what) + " is not supported by this server",
          std::string(name)};
}

void refuse_unsupported_fields(const JsonFields& fields) {
  for (const RefusedField& field : kRefused) {
    if (!fields.has(field.name)) continue;
    Error error = unsupported(field.name, field.name);
    if (!field.instead.empty()) error.message += ", use " + std::string(field.instead);
    fields.fail(std::move(error));
  }
  for (const std::string_view name : kNever) {
    if (fields.boolean(name).value_or(false)) fields.fail(unsupported(name, name));
  }
  for (const Choice& choice : kChoices) refuse_choice(fields, choice);
  refuse_modalities(fields);
  refuse_best_of(fields);
}

}  // namespace troupe
