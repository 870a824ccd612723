#include "runtime/gguf/metadata.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/json.hpp"

namespace troupe {

using nlohmann::json;

bool GgufMetadata::has(const std::string& key) const { return metadata_.contains(key); }

bool GgufMetadata::is_list(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found != metadata_.end() && found->is_array();
}

std::vector<std::string> GgufMetadata::keys_with(const std::string& prefix) const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : metadata_.items())
    if (key.starts_with(prefix)) keys.push_back(key);
  return keys;
}

bool GgufMetadata::is_number(const std::string& key, double number) const {
  const auto found = metadata_.find(key);
  const auto is_equal = [number](const json& value) {
    return value.is_boolean() ? value.get<bool>() == (number != 0)
                              : value.is_number() && value.get<double>() == number;
  };
  if (found == metadata_.end()) return false;
  return found->is_array() ? std::ranges::all_of(*found, is_equal) : is_equal(*found);
}

std::string GgufMetadata::shown(const std::string& key) const {
  constexpr std::size_t kMaxShown = 60;
  const json& value = metadata_.at(key);
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  return value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, kMaxShown);
}

const json* GgufMetadata::find(const std::string& key, bool has_default) {
  const auto found = metadata_.find(key);
  if (found != metadata_.end()) return &*found;
  if (!has_default) fail(ErrorCode::kCorrupt, "metadata \"" + key + "\" is missing");
  return nullptr;
}

void GgufMetadata::wrong_type(const std::string& key, std::string_view expected) {
  fail(ErrorCode::kCorrupt, "metadata \"" + key + "\" is not " + std::string(expected));
}

void GgufMetadata::fail(ErrorCode code, const std::string& reason) {
  if (!error_) error_ = Error{code, file_name_ + ": " + reason};
}

std::int64_t GgufMetadata::integer(const std::string& key, std::optional<std::int64_t> otherwise) {
  const json* value = find(key, otherwise.has_value());
  if (value == nullptr) return otherwise.value_or(0);
  if (value->is_array() && !value->empty()) {
    if (std::ranges::any_of(*value, [&](const json& each) { return each != value->front(); }))
      fail(ErrorCode::kUnsupported,
           "metadata \"" + key + "\" differs between layers, which is not supported");
    value = &value->front();
  }
  if (!value->is_number_integer()) wrong_type(key, "an integer");
  return value->is_number_integer() ? value->get<std::int64_t>() : 0;
}

double GgufMetadata::number(const std::string& key, std::optional<double> otherwise) {
  const json* value = find(key, otherwise.has_value());
  if (value == nullptr) return otherwise.value_or(0);
  if (!value->is_number()) wrong_type(key, "a number");
  return value->is_number() ? value->get<double>() : 0;
}

bool GgufMetadata::boolean(const std::string& key, bool otherwise) {
  const json* value = find(key, true);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) wrong_type(key, "true or false");
  return value->is_boolean() ? value->get<bool>() : otherwise;
}

std::string GgufMetadata::text(const std::string& key,
                               const std::optional<std::string>& otherwise) {
  const json* value = find(key, otherwise.has_value());
  if (value == nullptr) return otherwise.value_or("");
  if (!value->is_string()) wrong_type(key, "a string");
  return value->is_string() ? value->get<std::string>() : "";
}

std::optional<std::size_t> GgufMetadata::token_id(const std::string& key, std::size_t num_tokens) {
  const std::int64_t id = integer(key, std::nullopt);
  if (id >= 0 && std::cmp_less(id, num_tokens)) return static_cast<std::size_t>(id);
  fail(ErrorCode::kCorrupt, key + " is " + std::to_string(id) + ", the vocabulary has " +
                                std::to_string(num_tokens) + " tokens");
  return std::nullopt;
}

std::vector<std::string> GgufMetadata::texts(const std::string& key) {
  std::vector<std::string> texts;
  const json* value = find(key, true);
  if (value == nullptr) return texts;
  if (!value->is_array()) wrong_type(key, "a list");
  for (const json& entry : *value) {
    if (!entry.is_string()) {
      wrong_type(key, "a list of strings");
      break;
    }
    texts.push_back(entry.get<std::string>());
  }
  return texts;
}

std::vector<double> GgufMetadata::numbers(const std::string& key) {
  std::vector<double> numbers;
  const json* value = find(key, true);
  if (value == nullptr) return numbers;
  if (!value->is_array()) wrong_type(key, "a list");
  for (const json& entry : *value) {
    if (!entry.is_number() && !entry.is_boolean()) {
      wrong_type(key, "a list of numbers");
      break;
    }
    numbers.push_back(entry.is_boolean() ? (entry.get<bool>() ? 1 : 0) : entry.get<double>());
  }
  return numbers;
}

Result<std::string> json_text(const json& value, std::string_view file_name) {
  try {
    return value.dump();
  } catch (const json::exception&) {
    return Error{ErrorCode::kCorrupt,
                 std::string(file_name) + ": metadata has a string that is not valid UTF-8"};
  }
}

}  // namespace troupe
