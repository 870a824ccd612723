#include "runtime/models/config_fields.hpp"

#include <cmath>
#include <limits>

#include "runtime/base/json.hpp"
#include "runtime/base/json_depth.hpp"

namespace troupe {

using nlohmann::json;

namespace {

constexpr std::string_view kInfinity = "Infinity";
constexpr const char* kFloatTag = "__float__";

/// Outside of strings.
std::string with_tagged_infinities(std::string_view text) {
  std::string tagged;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!in_string && text.substr(i).starts_with(kInfinity)) {
      tagged += R"({"__float__": "Infinity"})";
      i += kInfinity.size() - 1;
      continue;
    }
    tagged += text[i];
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\' && i + 1 < text.size()) tagged += text[++i];
  }
  return tagged;
}

/// Nothing: it is none.
std::optional<double> number_of(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_object() && value.size() == 1 && value.value(kFloatTag, json()) == kInfinity)
    return std::numeric_limits<double>::infinity();
  return std::nullopt;
}

}  // namespace

Result<json> parse_json_object(std::string_view text, std::string_view file_name) {
  json object = text.find(kInfinity) == std::string_view::npos
                    ? parse_bounded_json<json>(text)
                    : parse_bounded_json<json>(with_tagged_infinities(text));
  if (!object.is_object())
    return Error{ErrorCode::kCorrupt, std::string(file_name) + ": not a JSON object"};
  return object;
}

ConfigFields::ConfigFields(const json& object, std::string where)
    : object_(object), where_(std::move(where)) {}

const json* ConfigFields::value(std::string_view key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const json* ConfigFields::required(std::string_view key, bool has_default) {
  const json* found = value(key);
  if (found == nullptr && !has_default) fail(ErrorCode::kCorrupt, std::string(key) + " is missing");
  return found;
}

bool ConfigFields::contains(std::string_view key) const { return object_.contains(key); }
bool ConfigFields::has(std::string_view key) const { return value(key) != nullptr; }
bool ConfigFields::is_text(std::string_view key) const {
  return has(key) && value(key)->is_string();
}

std::int64_t ConfigFields::integer(std::string_view key, std::optional<std::int64_t> otherwise,
                                   std::int64_t min, std::int64_t max) {
  const json* found = required(key, otherwise.has_value());
  if (found == nullptr) return otherwise.value_or(min);
  // Some tools write integers as floats.
  const double as_double = found->is_number() ? found->get<double>() : std::nan("");
  if (!(as_double >= static_cast<double>(min) && as_double <= static_cast<double>(max)) ||
      as_double != std::floor(as_double)) {
    fail(ErrorCode::kCorrupt,
         std::string(key) + " is " + found->dump(-1, ' ', false, json::error_handler_t::replace) +
             ", not an integer from " + std::to_string(min) + " to " + std::to_string(max));
    return otherwise.value_or(min);
  }
  return static_cast<std::int64_t>(as_double);
}

std::int64_t ConfigFields::integer_of(std::string_view key, std::string_view other_key,
                                      std::int64_t otherwise, std::int64_t min, std::int64_t max) {
  const std::int64_t other = integer(other_key, otherwise, min, max);
  const std::int64_t found = integer(key, other, min, max);
  if (has(other_key) && found != other)
    fail(ErrorCode::kCorrupt, std::string(key) + " is " + std::to_string(found) + ", but " +
                                  std::string(other_key) + " is " + std::to_string(other));
  return found;
}

double ConfigFields::number(std::string_view key, std::optional<double> otherwise) {
  const json* found = required(key, otherwise.has_value());
  if (found == nullptr) return otherwise.value_or(0);
  if (!found->is_number()) {
    fail(ErrorCode::kCorrupt, std::string(key) + " is not a number");
    return otherwise.value_or(0);
  }
  return found->get<double>();
}

bool ConfigFields::boolean(std::string_view key, bool otherwise) {
  const json* found = value(key);
  if (found == nullptr) return otherwise;
  if (!found->is_boolean()) {
    fail(ErrorCode::kCorrupt, std::string(key) + " is neither true nor false");
    return otherwise;
  }
  return found->get<bool>();
}

bool ConfigFields::true_unless_null(std::string_view key) { return boolean(key, !contains(key)); }

std::string ConfigFields::text(std::string_view key, std::string_view otherwise) {
  const json* found = value(key);
  if (found == nullptr) return std::string(otherwise);
  if (!found->is_string()) {
    fail(ErrorCode::kCorrupt, std::string(key) + " is not a string");
    return std::string(otherwise);
  }
  return found->get<std::string>();
}

std::vector<std::string> ConfigFields::texts(std::string_view key) {
  const json* found = value(key);
  if (found == nullptr) return {};
  std::vector<std::string> texts;
  bool all_strings = found->is_array();
  for (const json& item : *found) {
    if (item.is_string())
      texts.push_back(item.get<std::string>());
    else
      all_strings = false;
  }
  if (!all_strings) fail(ErrorCode::kCorrupt, std::string(key) + " is not a list of strings");
  return texts;
}

std::vector<double> ConfigFields::numbers(std::string_view key) {
  const json* found = value(key);
  if (found == nullptr) return {};
  std::vector<double> numbers;
  bool all_numbers = found->is_array();
  for (const json& item : *found) {
    const std::optional<double> number = number_of(item);
    all_numbers = all_numbers && number.has_value();
    if (all_numbers) numbers.push_back(*number);
  }
  if (!all_numbers) fail(ErrorCode::kCorrupt, std::string(key) + " is not a list of numbers");
  return numbers;
}

namespace {

/// Those of a number or of a list of numbers. False unless all are integers in [min, max].
bool read_integers(const json& value, std::int64_t min, std::int64_t max,
                   std::vector<std::int64_t>& integers) {
  bool valid = true;
  const auto add = [&](const json& item) {
    valid = valid && item.is_number_integer() && item >= min && item <= max;
    if (valid) integers.push_back(item.get<std::int64_t>());
  };
  if (value.is_array())
    for (const json& item : value) add(item);
  else
    add(value);
  return valid;
}

}  // namespace

std::vector<std::int64_t> ConfigFields::integers(std::string_view key) {
  const json* found = value(key);
  std::vector<std::int64_t> integers;
  if (found != nullptr && !read_integers(*found, INT32_MIN, INT32_MAX, integers))
    fail(ErrorCode::kCorrupt, std::string(key) + " is neither an integer nor a list of them");
  return integers;
}

std::vector<TokenId> ConfigFields::token_ids(std::string_view key) {
  const json* found = value(key);
  std::vector<std::int64_t> ids;
  if (found != nullptr && !read_integers(*found, 0, INT32_MAX, ids))
    fail(ErrorCode::kCorrupt, std::string(key) + " is neither a token id nor a list of them");
  return {ids.begin(), ids.end()};
}

const json* ConfigFields::object(std::string_view key) {
  const json* found = value(key);
  if (found != nullptr && !found->is_object()) {
    fail(ErrorCode::kCorrupt, std::string(key) + " is not an object");
    return nullptr;
  }
  return found;
}

void ConfigFields::fail(ErrorCode code, const std::string& reason) {
  if (!error_) error_ = Error{code, where_ + ": " + reason};
}

}  // namespace troupe
