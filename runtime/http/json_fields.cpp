#include "runtime/http/json_fields.hpp"

#include <simdjson.h>

#include <algorithm>
#include <cmath>

#include "runtime/http/body_shape.hpp"
#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

namespace dom = simdjson::dom;
using simdjson::dom::element_type;

constexpr std::size_t kMaxEntryBytes = 1000;
constexpr std::size_t kMaxEchoBytes = 200;
constexpr std::size_t kMaxChoiceBytes = 64;  ///< of a value that is none of them

/// Truncates text to `max_bytes`, at a character boundary.
std::string shorten(std::string text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  while (max_bytes > 0 && (static_cast<unsigned char>(text[max_bytes]) & 0xC0u) == 0x80u) {
    --max_bytes;
  }
  text.resize(max_bytes);
  return text + "...";
}

// By value: a reference into the temporary result would dangle.
dom::array array_of(const dom::element& element) { return element.get_array().value_unsafe(); }
dom::object object_of(const dom::element& element) { return element.get_object().value_unsafe(); }

std::string echo(const dom::element& element) {
  // Printing a large array to keep a few bytes of it would be too expensive.
  if (element.is_array()) return "an array";
  if (element.is_object()) return "an object";
  if (!element.is_string()) return shorten(simdjson::to_string(element), kMaxEchoBytes);
  std::string text;
  const std::string_view beginning =
      element.get_string().value_unsafe().substr(0, kMaxEchoBytes + 1);
  append_json_string(text, beginning);
  return shorten(std::move(text), kMaxEchoBytes);
}

std::string describe(const Interval& range) {
  const auto bound = [](double value) {
    std::string text;
    if (value == std::floor(value) && std::abs(value) < 1e15) {
      append_json_integer(text, static_cast<std::int64_t>(value));
    } else {
      append_json_float(text, value);
    }
    return text;
  };
  if (std::isinf(range.max)) {
    return std::string(range.min_open ? "greater than " : "at least ") + bound(range.min);
  }
  return "in " + std::string(range.min_open ? "(" : "[") + bound(range.min) + ", " +
         bound(range.max) + "]";
}

JsonKind kind_of(const dom::element& element) {
  switch (element.type()) {
    case element_type::ARRAY:
      return JsonKind::kArray;
    case element_type::OBJECT:
      return JsonKind::kObject;
    case element_type::STRING:
      return JsonKind::kString;
    case element_type::BOOL:
      return JsonKind::kBool;
    case element_type::NULL_VALUE:
      return JsonKind::kNull;
    default:
      return JsonKind::kNumber;
  }
}

std::size_t count_values_of(const dom::element& element) {
  std::size_t count = 1;
  if (element.is_array()) {
    for (const dom::element each : array_of(element)) count += count_values_of(each);
  } else if (element.is_object()) {
    for (const dom::key_value_pair field : object_of(element))
      count += count_values_of(field.value);
  }
  return count;
}

std::optional<std::int64_t> as_integer(const dom::element& element) {
  if (element.is_int64()) return element.get_int64().value_unsafe();
  // 2^53: up to there every integral float is exact.
  constexpr double kMaxExact = 9007199254740992.0;
  if (!element.is_double()) return std::nullopt;
  const double value = element.get_double().value_unsafe();
  if (value != std::floor(value) || std::abs(value) > kMaxExact) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

}  // namespace

struct JsonFields::Document {
  dom::parser parser{simdjson::SIMDJSON_MAXSIZE_BYTES};
  dom::parser empty_parser;  ///< of an object that is recorded, and not in the body
  std::size_t num_errors = 0;
  std::string listed;               ///< the first kMaxErrors errors, one per line
  std::vector<std::string> places;  ///< the locations of the listed errors
  std::optional<Error> value_error;

  /// Only the first error of each location counts.
  void wrong_form(const std::string& where, std::string_view what) {
    if (std::find(places.begin(), places.end(), where) != places.end()) return;
    if (++num_errors > kMaxErrors) return;
    places.push_back(where);
    listed += "\n  " + shorten(where + ": " + std::string(what), kMaxEntryBytes);
  }
};

/// An object of the document with its location.
struct JsonFields::Node {
  std::shared_ptr<Document> document;
  dom::object object;
  std::string location;        ///< empty for the body itself, otherwise ending in a dot
  BodyShape* shape = nullptr;  ///< records what is read; null: nothing does

  void note(std::string_view name, FieldType type, const Interval& range = {}) const {
    if (shape != nullptr) shape->read(name, type, range);
  }
  /// The object of the field `name` at this place.
  [[nodiscard]] std::shared_ptr<const Node> child(std::string_view name, dom::object members,
                                                  const std::string& where) const {
    auto made = std::make_shared<Node>(
        Node{document, members, where + ".", shape ? &shape->field(name).members : nullptr});
    if (made->shape != nullptr) ++made->shape->num_reads;
    return made;
  }
  [[nodiscard]] std::shared_ptr<const Node> empty_child(std::string_view name) const {
    return child(name, object_of(document->empty_parser.parse("{}", 2).value_unsafe()), at(name));
  }

  /// The last field of this name, as in Python's parser.
  [[nodiscard]] std::optional<dom::element> find(std::string_view name) const {
    std::optional<dom::element> found;
    for (const dom::key_value_pair field : object) {
      if (field.key == name) found = field.value;
    }
    return found;
  }
  [[nodiscard]] std::optional<dom::element> find_value(std::string_view name) const {
    std::optional<dom::element> found = find(name);
    if (found && found->is_null()) found.reset();
    return found;
  }
  [[nodiscard]] std::string at(std::string_view name) const {
    return location + shorten(std::string(name), kMaxEchoBytes);
  }
  void wrong_form(const std::string& where, std::string_view expected,
                  const dom::element& value) const {
    document->wrong_form(where, "should be " + std::string(expected) + ", got " + echo(value));
  }
  void wrong_value(const std::string& where, const std::string& message,
                   const dom::element& value) const {
    if (document->value_error) return;
    document->value_error =
        invalid_argument(message + " (parameter=" + where + ", value=" + echo(value) + ")", where);
  }
  /// Records an error if not. Pre: `value`, of the field `name`, is an array or an object.
  [[nodiscard]] bool has_at_most(std::size_t max_count, std::string_view what,
                                 std::string_view name, const dom::element& value) const {
    const std::size_t count = value.is_array() ? array_of(value).size() : object_of(value).size();
    if (count <= max_count) return true;
    wrong_value(at(name),
                std::string(name) + " has " + std::to_string(count) + " " + std::string(what) +
                    ", at most " + std::to_string(max_count) + " are allowed",
                value);
    return false;
  }
  [[nodiscard]] std::optional<std::vector<TokenId>> read_tokens(const std::string& where,
                                                                const dom::element& value,
                                                                std::int32_t vocab_size) const {
    constexpr std::string_view kExpected = "an array of token ids";
    if (!value.is_array()) {
      wrong_form(where, kExpected, value);
      return std::nullopt;
    }
    std::vector<TokenId> tokens;
    tokens.reserve(array_of(value).size());
    for (const dom::element element : array_of(value)) {
      const std::optional<std::int64_t> token = as_integer(element);
      if (!token) {
        wrong_form(where + "." + std::to_string(tokens.size()), "a token id", element);
        return std::nullopt;
      }
      if (*token < 0 || *token >= vocab_size) {
        wrong_value(where,
                    "token id " + std::to_string(*token) + " is out of the vocabulary of " +
                        std::to_string(vocab_size) + " tokens",
                    element);
        return std::nullopt;
      }
      tokens.push_back(static_cast<TokenId>(*token));
    }
    return tokens;
  }
};

JsonFields::JsonFields(std::shared_ptr<const Node> node) : node_(std::move(node)) {}

Result<JsonFields> JsonFields::parse(std::string_view body) {
  const auto malformed = [](const std::string& what) {
    return Error{ErrorCode::kCorrupt, "1 validation error:\n  body: " + what, "body"};
  };
  if (const std::size_t num_values = count_json_values(body); num_values > kMaxValues) {
    return malformed("JSON has " + std::to_string(num_values) + " values, at most " +
                     std::to_string(kMaxValues) + " are read");
  }
  auto node = std::make_shared<Node>();
  node->document = std::make_shared<Document>();
  dom::parser& parser = node->document->parser;
  if (const auto error = parser.allocate(body.size() + 1, kMaxDepth); error != simdjson::SUCCESS) {
    return malformed(simdjson::error_message(error));
  }
  const auto parsed = parser.parse(body.data(), body.size());
  if (parsed.error() == simdjson::DEPTH_ERROR) {
    return malformed("JSON is nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }
  if (parsed.error() != simdjson::SUCCESS) {
    return malformed("JSON decode error: " + std::string(simdjson::error_message(parsed.error())));
  }
  if (!parsed.is_object()) return malformed("should be a JSON object");
  node->object = object_of(parsed.value_unsafe());
  node->shape = recorded_shape();
  if (node->shape != nullptr) ++node->shape->num_reads;
  if (const std::size_t num_fields = node->object.size(); num_fields > kMaxFields) {
    return malformed("object has " + std::to_string(num_fields) + " fields, at most " +
                     std::to_string(kMaxFields) + " are read");
  }
  return JsonFields(std::move(node));
}

JsonKind JsonFields::kind(std::string_view name) const {
  const std::optional<dom::element> value = node_->find(name);
  return value ? kind_of(*value) : JsonKind::kAbsent;
}

bool JsonFields::has(std::string_view name) const { return node_->find_value(name).has_value(); }

JsonKind JsonFields::element_kind(std::string_view name) const {
  const std::optional<dom::element> value = node_->find(name);
  if (!value || !value->is_array()) return JsonKind::kAbsent;
  const dom::array array = array_of(*value);
  return array.begin() != array.end() ? kind_of(*array.begin()) : JsonKind::kAbsent;
}

std::optional<bool> JsonFields::boolean(std::string_view name) const {
  node_->note(name, FieldType::kBoolean);
  const std::optional<dom::element> value = node_->find_value(name);
  if (!value) return std::nullopt;
  if (value->is_bool()) return value->get_bool().value_unsafe();
  node_->wrong_form(node_->at(name), "a boolean", *value);
  return std::nullopt;
}

std::optional<std::int64_t> JsonFields::integer(std::string_view name,
                                                const Interval& range) const {
  node_->note(name, FieldType::kInteger, range);
  const std::optional<dom::element> value = node_->find_value(name);
  if (!value) return std::nullopt;
  const std::optional<std::int64_t> integer = as_integer(*value);
  if (!integer) {
    node_->wrong_form(node_->at(name), "an integer of 64 bits", *value);
    return std::nullopt;
  }
  if (range.contains(static_cast<double>(*integer))) return integer;
  wrong_value(name, std::string(name) + " must be " + describe(range));
  return std::nullopt;
}

std::optional<double> JsonFields::number(std::string_view name, const Interval& range) const {
  node_->note(name, FieldType::kNumber, range);
  const std::optional<dom::element> value = node_->find_value(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) {
    node_->wrong_form(node_->at(name), "a number", *value);
    return std::nullopt;
  }
  const double number = value->get_double().value();
  if (range.contains(number)) return number;
  wrong_value(name, std::string(name) + " must be " + describe(range));
  return std::nullopt;
}

std::optional<std::string> JsonFields::text(std::string_view name) const {
  node_->note(name, FieldType::kString);
  const std::optional<dom::element> value = node_->find_value(name);
  if (!value) return std::nullopt;
  if (value->is_string()) return std::string(value->get_string().value_unsafe());
  node_->wrong_form(node_->at(name), "a string", *value);
  return std::nullopt;
}

std::optional<std::string> JsonFields::choice(std::string_view name,
                                              std::span<const std::string_view> choices) const {
  if (node_->shape != nullptr)
    node_->shape->field(name).choices.assign(choices.begin(), choices.end());
  auto value = text(name);
  if (!value || std::find(choices.begin(), choices.end(), *value) != choices.end()) return value;
  std::string listed;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) listed += i + 1 == choices.size() ? " or " : ", ";
    listed += choices[i];
  }
  wrong_value(name, std::string(name) + " is \"" + shorten(*value, kMaxChoiceBytes) +
                        "\", must be " + listed);
  return std::nullopt;
}

std::optional<std::vector<std::string>> JsonFields::texts(std::string_view name,
                                                          std::size_t max_count) const {
  node_->note(name, FieldType::kString);
  node_->note(name, FieldType::kStrings);
  const std::optional<dom::element> value = node_->find_value(name);
  if (!value) return std::nullopt;
  std::vector<std::string> texts;
  if (value->is_string()) {
    texts.emplace_back(value->get_string().value_unsafe());
    return texts;
  }
  if (!value->is_array()) {
    node_->wrong_form(node_->at(name), "a string or an array of strings", *value);
    return std::nullopt;
  }
  if (!node_->has_at_most(max_count, "strings", name, *value)) return std::nullopt;
  for (const dom::element element : array_of(*value)) {
    if (!element.is_string()) {
      node_->wrong_form(node_->at(name) + "." + std::to_string(texts.size()), "a string", element);
      return std::nullopt;
    }
    texts.emplace_back(element.get_string().value_unsafe());
  }
  return texts;
}

std::optional<std::vector<TokenId>> JsonFields::tokens(std::string_view name,
                                                       std::int32_t vocab_size) const {
  node_->note(name, FieldType::kIntegers);
  const std::optional<dom::element> value = node_->find_value(name);
  if (!value) return std::nullopt;
  return node_->read_tokens(node_->at(name), *value, vocab_size);
}

std::optional<std::vector<std::vector<TokenId>>> JsonFields::token_lists(
    std::string_view name, std::int32_t vocab_size, std::size_t max_count) const {
  node_->note(name, FieldType::kIntegerLists);
  const std::optional<dom::element> value = node_->find_value(name);
  if (!value) return std::nullopt;
  if (!value->is_array()) {
    node_->wrong_form(node_->at(name), "an array of arrays of token ids", *value);
    return std::nullopt;
  }
  if (!node_->has_at_most(max_count, "lists of token ids", name, *value)) return std::nullopt;
  std::vector<std::vector<TokenId>> lists;
  for (const dom::element element : array_of(*value)) {
    auto tokens = node_->read_tokens(node_->at(name) + "." + std::to_string(lists.size()), element,
                                     vocab_size);
    if (!tokens) return std::nullopt;
    lists.push_back(*std::move(tokens));
  }
  return lists;
}

std::optional<std::vector<std::pair<std::string, double>>> JsonFields::numbers(
    std::string_view name, std::size_t max_count) const {
  node_->note(name, FieldType::kNumbers);
  const std::optional<dom::element> value = node_->find_value(name);
  if (!value) return std::nullopt;
  if (!value->is_object()) {
    node_->wrong_form(node_->at(name), "an object of numbers", *value);
    return std::nullopt;
  }
  if (!node_->has_at_most(max_count, "numbers", name, *value)) return std::nullopt;
  std::vector<std::pair<std::string, double>> numbers;
  for (const dom::key_value_pair field : object_of(*value)) {
    if (!field.value.is_number()) {
      node_->wrong_form(node_->at(name) + "." + shorten(std::string(field.key), kMaxEchoBytes),
                        "a number", field.value);
      return std::nullopt;
    }
    numbers.emplace_back(field.key, field.value.get_double().value());
  }
  return numbers;
}

std::optional<JsonFields> JsonFields::object(std::string_view name) const {
  node_->note(name, FieldType::kObject);
  const std::optional<dom::element> value = node_->find_value(name);
  if (!value && node_->shape != nullptr) return JsonFields(node_->empty_child(name));
  if (!value) return std::nullopt;
  if (!value->is_object() || object_of(*value).size() > kMaxFields) {
    node_->wrong_form(node_->at(name), "an object", *value);
    return std::nullopt;
  }
  return JsonFields(node_->child(name, object_of(*value), node_->at(name)));
}

std::optional<std::size_t> JsonFields::each_object(
    std::string_view name, const std::function<void(const JsonFields&)>& visit) const {
  node_->note(name, FieldType::kObjects);
  const std::optional<dom::element> value = node_->find_value(name);
  if (!value && node_->shape != nullptr) visit(JsonFields(node_->empty_child(name)));
  if (!value) return std::nullopt;
  if (!value->is_array()) {
    node_->wrong_form(node_->at(name), "an array of objects", *value);
    return std::nullopt;
  }
  std::size_t count = 0;
  for (const dom::element element : array_of(*value)) {
    const std::string where = node_->at(name) + "." + std::to_string(count++);
    if (!element.is_object() || object_of(element).size() > kMaxFields) {
      node_->wrong_form(where, "an object", element);
      return std::nullopt;
    }
    visit(JsonFields(node_->child(name, object_of(element), where)));
  }
  return count;
}

std::size_t JsonFields::count_values(std::string_view name) const {
  const std::optional<dom::element> value = node_->find_value(name);
  return value ? count_values_of(*value) : 0;
}

std::optional<std::string> JsonFields::raw(std::string_view name, JsonKind expected) const {
  node_->note(name, expected == JsonKind::kArray ? FieldType::kArray : FieldType::kObject);
  const std::optional<dom::element> value = node_->find_value(name);
  if (!value) return std::nullopt;
  if (kind_of(*value) == expected) return simdjson::to_string(*value);
  node_->wrong_form(node_->at(name), expected == JsonKind::kArray ? "an array" : "an object",
                    *value);
  return std::nullopt;
}

std::optional<std::string> JsonFields::other_name(
    std::initializer_list<std::string_view> known) const {
  for (const dom::key_value_pair field : node_->object) {
    if (!field.value.is_null() && std::find(known.begin(), known.end(), field.key) == known.end())
      return shorten(std::string(field.key), kMaxEchoBytes);
  }
  return std::nullopt;
}

void JsonFields::require(std::string_view name) const {
  if (node_->shape != nullptr) ++node_->shape->field(name).num_required;
  if (!has(name)) node_->document->wrong_form(node_->at(name), "field is required");
}

void JsonFields::wrong_form(std::string_view name, std::string_view expected) const {
  if (const std::optional<dom::element> value = node_->find(name)) {
    node_->wrong_form(node_->at(name), expected, *value);
  } else {
    node_->document->wrong_form(node_->at(name), "should be " + std::string(expected));
  }
}

void JsonFields::wrong_value(std::string_view name, std::string_view message) const {
  if (const std::optional<dom::element> value = node_->find(name)) {
    node_->wrong_value(node_->at(name), std::string(message), *value);
  } else {
    fail(invalid_argument(std::string(message), node_->at(name)));
  }
}

void JsonFields::fail(Error error) const {
  if (!node_->document->value_error) node_->document->value_error = std::move(error);
}

Result<void> JsonFields::result() const {
  const Document& document = *node_->document;
  if (document.num_errors > 0) {
    return Error{ErrorCode::kCorrupt,
                 std::to_string(document.num_errors) + " validation error" +
                     (document.num_errors == 1 ? ":" : "s:") + document.listed,
                 document.places.front()};
  }
  if (document.value_error) return *document.value_error;
  return {};
}

}  // namespace troupe
