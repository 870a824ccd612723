// Jinja's tests: {{ value is name(arguments) }}.
#include <map>

#include "runtime/chat/jinja/filters.hpp"
#include "runtime/chat/jinja/methods.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

using TestTable = std::map<std::string_view, TestFunction>;

template <Comparison comparison>
bool compares(const Value& value, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "comparison", {"other"}, 1);
  return compare(comparison, value, *arguments[0], runtime.budget);
}

Value modulo(const Value& value, const Value& divisor, Runtime& runtime) {
  return binary(Arithmetic::kModulo, value, divisor, runtime);
}

template <std::int64_t remainder>
bool has_parity(const Value& value, Runtime& runtime) {
  return equals(modulo(value, Value(std::int64_t{2}), runtime), Value(remainder), runtime.budget);
}

bool is_sequence(const Value& value) {
  const Object* object = value.object();
  return value.is_string() || value.items() || value.dict() || value.is_undefined() ||
         (object && object->has_items());
}

template <bool (*right)(char32_t), bool (*wrong)(char32_t)>
bool has_case(const Value& value, Runtime& runtime) {
  const std::string text = to_text(value, runtime);
  runtime.budget.charge_characters(text.size());
  bool has_cased = false;
  for (std::size_t i = 0; i < text.size();) {
    const char32_t c = decode_at(text, i);
    if (wrong(c) || is_title(c)) return false;
    has_cased |= right(c);
  }
  return has_cased;
}

/// A test without arguments besides the value.
template <bool (*satisfies)(const Value&)>
bool plain(const Value& value, const Arguments& call, Runtime&) {
  (void)bind(call, "test", {});
  return satisfies(value);
}
template <bool (*satisfies)(const Value&, Runtime&)>
bool plain(const Value& value, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "test", {});
  return satisfies(value, runtime);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_boolean(const Value& v) { return v.get_if<bool>() != nullptr; }
template <bool flag>
bool is_exactly(const Value& v) {
  return v.get_if<bool>() != nullptr && *v.get_if<bool>() == flag;
}
bool is_integer(const Value& v) { return v.is_integer() && !is_boolean(v); }
bool is_float(const Value& v) { return v.get_if<double>() != nullptr; }
bool is_number(const Value& v) { return v.is_number(); }
bool is_string(const Value& v) { return v.is_string(); }
bool is_mapping(const Value& v) { return v.dict() != nullptr; }
bool is_callable(const Value& v) {
  return v.is_undefined() || (v.object() && v.object()->is_callable());
}
bool is_escaped(const Value& v) { return v.is_markup(); }
bool is_filter(const Value& v) { return v.is_string() && find_filter(*v.string()); }
bool is_test(const Value& v) { return v.is_string() && find_test(*v.string()); }

const TestTable& table() {
  static const TestTable kTests = {
      {"defined", plain<is_defined>},
      {"undefined", plain<is_undefined>},
      {"none", plain<is_none>},
      {"boolean", plain<is_boolean>},
      {"true", plain<is_exactly<true>>},
      {"false", plain<is_exactly<false>>},
      {"integer", plain<is_integer>},
      {"float", plain<is_float>},
      {"number", plain<is_number>},
      {"string", plain<is_string>},
      {"mapping", plain<is_mapping>},
      {"sequence", plain<is_sequence>},
      {"iterable", plain<is_iterable>},
      {"callable", plain<is_callable>},
      {"escaped", plain<is_escaped>},
      {"lower", plain<has_case<is_lower, is_upper>>},
      {"upper", plain<has_case<is_upper, is_lower>>},
      {"odd", plain<has_parity<1>>},
      {"even", plain<has_parity<0>>},
      {"divisibleby",
       [](const Value& v, const Arguments& call, Runtime& runtime) {
         const auto arguments = bind(call, "divisibleby", {"num"}, 1);
         return equals(modulo(v, *arguments[0], runtime), Value(std::int64_t{0}), runtime.budget);
       }},
      {"in",
       [](const Value& v, const Arguments& call, Runtime& runtime) {
         return contains(*bind(call, "in", {"seq"}, 1)[0], v, runtime);
       }},
      {"sameas",
       [](const Value& v, const Arguments& call, Runtime& runtime) {
         return is_same(v, *bind(call, "sameas", {"other"}, 1)[0], runtime.budget);
       }},
      {"filter", plain<is_filter>},
      {"test", plain<is_test>},
      {"eq", compares<Comparison::kEqual>},
      {"equalto", compares<Comparison::kEqual>},
      {"==", compares<Comparison::kEqual>},
      {"ne", compares<Comparison::kNotEqual>},
      {"!=", compares<Comparison::kNotEqual>},
      {"lt", compares<Comparison::kLess>},
      {"lessthan", compares<Comparison::kLess>},
      {"<", compares<Comparison::kLess>},
      {"le", compares<Comparison::kLessEqual>},
      {"<=", compares<Comparison::kLessEqual>},
      {"gt", compares<Comparison::kGreater>},
      {"greaterthan", compares<Comparison::kGreater>},
      {">", compares<Comparison::kGreater>},
      {"ge", compares<Comparison::kGreaterEqual>},
      {">=", compares<Comparison::kGreaterEqual>}};
  return kTests;
}

}  // namespace

TestFunction find_test(std::string_view name) {
  const auto found = table().find(name);
  return found == table().end() ? nullptr : found->second;
}

}  // namespace troupe::jinja
