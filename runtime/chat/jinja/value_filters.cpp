// Filters over single values: numbers, defaults, JSON, dicts.
#include <algorithm>
#include <cmath>

#include "runtime/chat/jinja/filter_tables.hpp"
#include "runtime/chat/jinja/format.hpp"
#include "runtime/chat/jinja/methods.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

Value default_value(const Value& input, const Arguments& call, Runtime&) {
  const auto arguments = bind(call, "default", {"default_value", "boolean"});
  const bool replaces_false = arguments[1] && is_true(*arguments[1]);
  if (input.is_undefined() || (replaces_false && !is_true(input))) {
    return arguments[0].value_or(Value(""));
  }
  return input;
}

Value to_integer(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "int", {"default", "base"});
  const Value fallback = arguments[0].value_or(Value(std::int64_t{0}));
  const std::int64_t base = arguments[1] ? arguments[1]->small_integer().value_or(10) : 10;
  if (const Undefined* undefined = input.get_if<Undefined>()) fail_undefined(*undefined);
  if (const std::string* text = input.string()) {
    runtime.budget.charge(cost_of_digits(text->size()));
    if (auto number =
            parse_integer(*text, static_cast<int>(std::clamp<std::int64_t>(base, 0, 37)))) {
      return *std::move(number);
    }
    const std::optional<double> number = parse_float(*text);
    return number && std::isfinite(*number) ? truncate(*number) : fallback;
  }
  if (const double* number = input.get_if<double>()) {
    return std::isfinite(*number) ? truncate(*number) : fallback;
  }
  return input.is_number() ? unary_plus(input) : fallback;
}

Value to_float(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "float", {"default"});
  const Value fallback = arguments[0].value_or(Value(0.0));
  if (const Undefined* undefined = input.get_if<Undefined>()) fail_undefined(*undefined);
  if (const std::string* text = input.string()) {
    runtime.budget.charge_characters(text->size());
    const std::optional<double> number = parse_float(*text);
    return number ? Value(*number) : fallback;
  }
  return input.is_number() ? Value(to_double(input)) : fallback;
}

Value absolute(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "abs", {});
  runtime.budget.charge(cost_of_number(input));
  Value number = unary_plus(input);
  if (const double* real = number.get_if<double>()) return Value(std::abs(*real));
  return compare_numbers(number, Value(std::int64_t{0})) < 0 ? negate(number) : number;
}

Value round_number(const Value& input, const Arguments& call, Runtime&) {
  const auto arguments = bind(call, "round", {"precision", "method"});
  const bool has_none = arguments[0] && arguments[0]->is_none();
  const auto precision =
      arguments[0] && !has_none ? arguments[0]->small_integer() : std::int64_t{0};
  const std::string method = arguments[1] && arguments[1]->is_string() ? *arguments[1]->string()
                             : arguments[1]                            ? ""
                                                                       : "common";
  Value number = unary_plus(input);
  if (!precision) fail_type("round's precision must be an integer");
  if (method == "common") {
    if (number.is_integer() && *precision >= 0) return number;
    const double rounded = round_half_even(to_double(number), *precision);
    return number.is_integer() || has_none ? truncate(rounded) : Value(rounded);
  }
  if (has_none) fail_type("round's precision must be an integer");
  if (method != "ceil" && method != "floor") {
    fail_value("method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(*precision));
  const double scaled = to_double(number) * scale;
  // Python converts to an integer in between, so there is no negative zero.
  return Value(((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) + 0.0) / scale);
}

Value to_json_filter(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments =
      bind(call, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = arguments[0] && is_true(*arguments[0]);
  style.sort_keys = arguments[3] && is_true(*arguments[3]);
  if (arguments[1] && !arguments[1]->is_none()) {
    if (const std::string* indent = arguments[1]->string()) {
      style.indent = *indent;
    } else {
      const auto width = arguments[1]->small_integer();
      if (!width || *width > 1000) fail_type("tojson's indent must be a small integer or a string");
      style.indent = std::string(static_cast<std::size_t>(std::max<std::int64_t>(*width, 0)), ' ');
    }
    style.item_separator = ",";
  }
  if (arguments[2] && !arguments[2]->is_none()) {
    const std::vector<Value> separators = to_vector(*arguments[2], runtime);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      fail_value("tojson's separators must be two strings");
    }
    style.item_separator = *separators[0].string();
    style.key_separator = *separators[1].string();
  }
  return Value(to_json(input, style, runtime));
}

Value items(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "items", {});
  if (input.is_undefined()) return Value(make_stream([] { return std::nullopt; }, 1));
  if (!input.dict()) fail_type("Can only get item pairs from a mapping.");
  return Value(iterate(dict_view(input, DictPart::kItems), runtime));
}

Value dict_sort(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "dictsort", {"case_sensitive", "by", "reverse"});
  const bool is_case_sensitive = arguments[0] && is_true(*arguments[0]);
  const std::string by = !arguments[1]               ? "key"
                         : arguments[1]->is_string() ? *arguments[1]->string()
                                                     : "";
  if (by != "key" && by != "value") {
    fail_value("You can only sort by either \"key\" or \"value\"");
  }
  const bool is_reverse = arguments[2] && is_true(*arguments[2]);
  if (const Undefined* undefined = input.get_if<Undefined>()) fail_undefined(*undefined);
  if (!input.dict()) fail_type("'" + type_name(input) + "' object has no attribute 'items'");
  struct Row {
    Value key;
    Value pair;
  };
  std::vector<Row> rows;
  for (const auto& [key, value] : input.dict()->entries()) {
    Value sort_key = by == "key" ? key : value;
    runtime.budget.charge();
    if (!is_case_sensitive && sort_key.is_string()) {
      runtime.budget.charge_characters(sort_key.string()->size());
      sort_key = Value(to_lower(*sort_key.string()));
    }
    rows.push_back({std::move(sort_key), Value::tuple({key, value})});
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
    return is_reverse ? compare(Comparison::kLess, b.key, a.key, runtime.budget)
                      : compare(Comparison::kLess, a.key, b.key, runtime.budget);
  });
  std::vector<Value> sorted;
  sorted.reserve(rows.size());
  for (Row& row : rows) sorted.push_back(std::move(row.pair));
  return Value::list(std::move(sorted));
}

Value attribute(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "attr", {"name"}, 1);
  if (!arguments[0]->is_string()) {
    fail_type("attribute name must be string, not '" + type_name(*arguments[0]) + "'");
  }
  const std::string name = *arguments[0]->string();
  if (std::optional<Value> found = find_attribute(input, name, runtime)) return *std::move(found);
  return Value::undefined("'" + type_name(input) + " object' has no attribute '" + name + "'");
}

Value length_of(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "length", {});
  const std::optional<std::size_t> size = length(input, runtime.budget);
  if (!size) fail_type("object of type '" + type_name(input) + "' has no len()");
  return Value::size(*size);
}

Value to_string(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "string", {});
  return input.is_string() ? input : Value(to_text(input, runtime));
}

Value file_size(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "filesizeformat", {"binary"});
  const bool is_binary = arguments[0] && is_true(*arguments[0]);
  const Value number = to_float(input, {}, runtime);
  if (!input.is_number() && !(input.is_string() && parse_float(*input.string()))) {
    fail_value("could not convert " + repr(input, runtime) + " to float");
  }
  const double bytes = *number.get_if<double>();
  const double base = is_binary ? 1024 : 1000;
  if (bytes == 1) return Value("1 Byte");
  if (bytes < base) return Value(number_text(truncate(bytes)) + " Bytes");
  static constexpr const char* kPrefixes[] = {"k", "M", "G", "T", "P", "E", "Z", "Y"};
  double unit = base;
  std::size_t index = 0;
  while (index + 1 < std::size(kPrefixes) && bytes >= unit * base) {
    unit *= base;
    ++index;
  }
  const std::string prefix = is_binary && index == 0 ? "K" : kPrefixes[index];
  const Value rounded = printf_format(Value("%.1f"), Value(bytes / unit), runtime);
  return Value(*rounded.string() + " " + prefix + (is_binary ? "iB" : "B"));
}

constexpr FilterEntry kFilters[] = {{"abs", absolute},
                                    {"attr", attribute},
                                    {"count", length_of},
                                    {"d", default_value},
                                    {"default", default_value},
                                    {"dictsort", dict_sort},
                                    {"filesizeformat", file_size},
                                    {"float", to_float},
                                    {"int", to_integer},
                                    {"items", items},
                                    {"length", length_of},
                                    {"round", round_number},
                                    {"string", to_string},
                                    {"tojson", to_json_filter}};

}  // namespace

std::span<const FilterEntry> value_filters() { return kFilters; }

}  // namespace troupe::jinja
