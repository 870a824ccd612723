#include "runtime/structured_output/schema_parser.hpp"

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

/// Events of the JSON library's parser. Members of open objects and arrays lie one behind the other
/// in one list: the library's own tree of an object that keeps its order is copied as a whole each
/// time that it grows.
class SchemaEvents {
 public:
  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(Json::number_integer_t value) { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return add(value); }
  bool number_float(Json::number_float_t value, const std::string& /*spelling*/) {
    return add(value);
  }
  bool string(std::string& value) {
    if (!open_.empty() && open_.back().role == Role::kSchema && open_.back().is_object &&
        has_name(kTexts, key_))
      return true;
    return add(std::move(value));
  }
  static bool binary(Json::binary_t& /*value*/) { return false; }  // is not in texts
  bool key(std::string& name) {
    key_ = std::move(name);
    return true;
  }
  bool start_object(std::size_t /*size*/) { return open(true); }
  bool start_array(std::size_t /*size*/) { return open(false); }
  bool end_object() {
    const auto begin = members_.begin() + static_cast<std::ptrdiff_t>(open_.back().begin);
    Json object = Json::object();
    auto& members = object.get_ref<Json::object_t&>();
    members.reserve(static_cast<std::size_t>(members_.end() - begin));
    const bool is_unique = have_unique_names(begin);
    for (auto member = begin; member != members_.end(); ++member) {
      if (is_unique) {
        members.emplace_back(std::move(member->first), std::move(member->second));
      } else {
        members[member->first] = std::move(member->second);  // the last one counts
      }
    }
    return close(std::move(object));
  }
  bool end_array() {
    const auto begin = members_.begin() + static_cast<std::ptrdiff_t>(open_.back().begin);
    Json array = Json::array();
    auto& items = array.get_ref<Json::array_t&>();
    items.reserve(static_cast<std::size_t>(members_.end() - begin));
    for (auto member = begin; member != members_.end(); ++member)
      items.push_back(std::move(member->second));
    return close(std::move(array));
  }
  static bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                          const Json::exception& /*error*/) {
    return false;
  }

  [[nodiscard]] Json take_root() { return std::move(root_); }

 private:
  using Member = std::pair<std::string, Json>;
  struct Open {
    std::string key;  ///< its own, in the object that it is in
    std::size_t begin = 0;
    Role role = Role::kSchema;
    bool is_object = false;
  };

  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else {
      members_.emplace_back(std::move(key_), std::move(value));
    }
    return true;
  }

  bool open(bool is_object) {
    if (open_.size() == kMaxJsonDepth) return false;
    const Role role = open_.empty() ? Role::kSchema : role_of_next();
    open_.push_back({std::move(key_), members_.size(), role, is_object});
    return true;
  }

  bool close(Json value) {
    members_.resize(open_.back().begin);
    key_ = std::move(open_.back().key);
    open_.pop_back();
    return add(std::move(value));
  }

  [[nodiscard]] Role role_of_next() const {
    const Open& parent = open_.back();
    if (parent.role == Role::kData) return Role::kData;
    if (parent.role == Role::kSchemas || !parent.is_object) return Role::kSchema;
    if (has_name(kBySchemaNames, key_)) return Role::kSchemas;
    return has_name(kOfSchemas, key_) ? Role::kSchema : Role::kData;
  }

  [[nodiscard]] bool have_unique_names(std::vector<Member>::const_iterator begin) {
    names_.clear();
    for (auto member = begin; member != members_.end(); ++member) names_.push_back(member->first);
    std::ranges::sort(names_);
    return std::ranges::adjacent_find(names_) == names_.end();
  }

  std::vector<Open> open_;
  std::vector<Member> members_;  ///< of all that is open; items have no names
  std::string key_;
  std::vector<std::string_view> names_;
  Json root_;
};

}  // namespace

Json parse_schema(std::string_view source) {
  SchemaEvents events;
  if (!Json::sax_parse(source.begin(), source.end(), &events))
    throw GrammarRefused("json_schema: the schema is no JSON, or is nested deeper than " +
                         std::to_string(kMaxJsonDepth) + " levels");
  return events.take_root();
}

}  // namespace troupe::schema
