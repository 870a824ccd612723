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
bool has_parity(const Value& value, const Arguments&, Runtime& runtime) {
  return equals(modulo(value, Value(std::int64_t{2}), runtime), Value(remainder), runtime.budget);
}

bool is_sequence(const Value& value, const Arguments&, Runtime&) {
  const Object* object = value.object();
  return value.is_string() || value.items() || value.dict() || value.is_undefined() ||
         (object && object->has_items());
}

template <bool (*right)(char32_t), bool (*wrong)(char32_t)>
bool has_case(const Value& value, const Arguments&, Runtime& runtime) {
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

const TestTable& table() {
  static const TestTable kTests = {
      {"defined", [](const Value& v, const Arguments&, Runtime&) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v, const Arguments&, Runtime&) { return v.is_undefined(); }},
      {"none", [](const Value& v, const Arguments&, Runtime&) { return v.is_none(); }},
      {"boolean",
       [](const Value& v, const Arguments&, Runtime&) { return v.get_if<bool>() != nullptr; }},
      {"true", [](const Value& v, const Arguments&,
                  Runtime&) { return v.get_if<bool>() && *v.get_if<bool>(); }},
      {"false", [](const Value& v, const Arguments&,
                   Runtime&) { return v.get_if<bool>() && !*v.get_if<bool>(); }},
      {"integer", [](const Value& v, const Arguments&,
                     Runtime&) { return v.is_integer() && !v.get_if<bool>(); }},
      {"float",
       [](const Value& v, const Arguments&, Runtime&) { return v.get_if<double>() != nullptr; }},
      {"number", [](const Value& v, const Arguments&, Runtime&) { return v.is_number(); }},
      {"string", [](const Value& v, const Arguments&, Runtime&) { return v.is_string(); }},
      {"mapping", [](const Value& v, const Arguments&, Runtime&) { return v.dict() != nullptr; }},
      {"sequence", is_sequence},
      {"iterable",
       [](const Value& v, const Arguments&, Runtime& runtime) { return is_iterable(v, runtime); }},
      {"callable",
       [](const Value& v, const Arguments&, Runtime&) {
         return v.is_undefined() || (v.object() && v.object()->is_callable());
       }},
      {"escaped", [](const Value& v, const Arguments&, Runtime&) { return v.is_markup(); }},
      {"lower", has_case<is_lower, is_upper>},
      {"upper", has_case<is_upper, is_lower>},
      {"odd", has_parity<1>},
      {"even", has_parity<0>},
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
      {"filter", [](const Value& v, const Arguments&,
                    Runtime&) { return v.is_string() && find_filter(*v.string()); }},
      {"test", [](const Value& v, const Arguments&,
                  Runtime&) { return v.is_string() && find_test(*v.string()); }},
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
