#include "runtime/structured_output/schema_parser.hpp"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json_depth.hpp"
#include "runtime/base/ordered_json.hpp"

namespace troupe::schema {
namespace {

namespace ondemand = simdjson::ondemand;

/// What a value is within a schema.
enum class Role : std::uint8_t {
  kSchema,   ///< or a list of schemas
  kSchemas,  ///< by names
  kData,     ///< or what may be a place for schemas of the author's own
};

constexpr std::array<std::string_view, 4> kTexts{"title", "description", "$comment", "comment"};
constexpr std::array<std::string_view, 6> kBySchemaNames{
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"};
constexpr std::array<std::string_view, 15> kOfSchemas{"items",
                                                      "prefixItems",
                                                      "additionalItems",
                                                      "additionalProperties",
                                                      "propertyNames",
                                                      "contains",
                                                      "unevaluatedItems",
                                                      "unevaluatedProperties",
                                                      "anyOf",
                                                      "allOf",
                                                      "oneOf",
                                                      "not",
                                                      "if",
                                                      "then",
                                                      "else"};

bool has_name(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Members of open objects and arrays lie one behind the other in one list: the tree of an object
/// that keeps its order is copied as a whole each time that it grows. Everything returns false
/// where the text is no JSON, or is nested too deep.
class SchemaReader {
 public:
  bool read(ondemand::value value, Role role, Json& result) {
    ondemand::json_type type{};
    if (value.type().get(type) != simdjson::SUCCESS) return false;
    switch (type) {
      case ondemand::json_type::object: {
        ondemand::object object;
        return value.get_object().get(object) == simdjson::SUCCESS &&
               read_object(object, role, result);
      }
      case ondemand::json_type::array: {
        ondemand::array array;
        return value.get_array().get(array) == simdjson::SUCCESS && read_array(array, role, result);
      }
      case ondemand::json_type::string: {
        std::string_view text;
        if (value.get_string().get(text) != simdjson::SUCCESS) return false;
        result = text;
        return true;
      }
      case ondemand::json_type::number:  // of any size, and integers as such
        result = Json::parse(value.raw_json_token(), nullptr, /*allow_exceptions=*/false);
        return result.is_number();
      case ondemand::json_type::boolean: {
        bool truth = false;
        if (value.get_bool().get(truth) != simdjson::SUCCESS) return false;
        result = truth;
        return true;
      }
      case ondemand::json_type::null: {
        bool is_null = false;
        return value.is_null().get(is_null) == simdjson::SUCCESS && is_null;
      }
    }
    return false;
  }

  bool read_object(ondemand::object object, Role role, Json& result) {
    if (++depth_ > kMaxJsonDepth) return false;
    const std::size_t begin = members_.size();
    for (auto field : object) {
      std::string_view name;
      ondemand::value value;
      if (field.unescaped_key().get(name) != simdjson::SUCCESS ||
          field.value().get(value) != simdjson::SUCCESS)
        return false;
      if (role == Role::kSchema && has_name(kTexts, name)) {
        std::string_view text;
        const auto error = value.get_string().get(text);
        if (error == simdjson::SUCCESS) continue;
        if (error != simdjson::INCORRECT_TYPE) return false;
      }
      std::string key(name);
      Json member;
      if (!read(value, role_of_member(role, key), member)) return false;
      members_.emplace_back(std::move(key), std::move(member));
    }
    result = Json::object();
    auto& members = result.get_ref<Json::object_t&>();
    members.reserve(members_.size() - begin);
    const bool is_unique = have_unique_names(begin);
    for (std::size_t i = begin; i < members_.size(); ++i) {
      auto& [name, value] = members_[i];
      if (is_unique) {
        members.emplace_back(std::move(name), std::move(value));
      } else {
        members[name] = std::move(value);  // the last one counts
      }
    }
    members_.resize(begin);
    --depth_;
    return true;
  }

  bool read_array(ondemand::array array, Role role, Json& result) {
    if (++depth_ > kMaxJsonDepth) return false;
    const std::size_t begin = members_.size();
    for (auto item : array) {
      ondemand::value value;
      Json member;
      if (item.get(value) != simdjson::SUCCESS || !read(value, role_of_item(role), member))
        return false;
      members_.emplace_back(std::string(), std::move(member));
    }
    result = Json::array();
    auto& items = result.get_ref<Json::array_t&>();
    items.reserve(members_.size() - begin);
    for (std::size_t i = begin; i < members_.size(); ++i)
      items.push_back(std::move(members_[i].second));
    members_.resize(begin);
    --depth_;
    return true;
  }

 private:
  [[nodiscard]] static Role role_of_item(Role array) {
    return array == Role::kData ? Role::kData : Role::kSchema;
  }
  [[nodiscard]] static Role role_of_member(Role object, std::string_view key) {
    if (object == Role::kData) return Role::kData;
    if (object == Role::kSchemas) return Role::kSchema;
    if (has_name(kBySchemaNames, key)) return Role::kSchemas;
    return has_name(kOfSchemas, key) ? Role::kSchema : Role::kData;
  }

  /// Of the members from there on.
  [[nodiscard]] bool have_unique_names(std::size_t begin) {
    names_.clear();
    for (std::size_t i = begin; i < members_.size(); ++i) names_.push_back(members_[i].first);
    std::ranges::sort(names_);
    return std::ranges::adjacent_find(names_) == names_.end();
  }

  std::size_t depth_ = 0;
  std::vector<std::pair<std::string, Json>> members_;  ///< of all that is open; items have no names
  std::vector<std::string_view> names_;
};

bool read_schema(std::string_view source, Json& result) {
  const std::size_t begin = source.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || (source[begin] != '{' && source[begin] != '[')) {
    result = Json::parse(source, nullptr, /*allow_exceptions=*/false);
    return !result.is_discarded();
  }
  const simdjson::padded_string padded(source);
  ondemand::parser parser;
  ondemand::document document;
  ondemand::value root;
  if (parser.iterate(padded).get(document) != simdjson::SUCCESS ||
      document.get_value().get(root) != simdjson::SUCCESS)
    return false;
  return SchemaReader().read(root, Role::kSchema, result) &&
         document.current_location().error() == simdjson::OUT_OF_BOUNDS;  // nothing is behind it
}

}  // namespace

Json parse_schema(std::string_view source) {
  Json schema;
  if (!read_schema(source, schema))
    throw GrammarRefused("json_schema: the schema is no JSON, or is nested deeper than " +
                         std::to_string(kMaxJsonDepth) + " levels");
  return schema;
}

}  // namespace troupe::schema
