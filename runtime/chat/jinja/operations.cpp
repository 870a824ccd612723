#include "runtime/chat/jinja/operations.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/base/keyed_hash.hpp"
#include "runtime/chat/jinja/format.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

const char* symbol(Comparison comparison) {
  switch (comparison) {
    case Comparison::kEqual:
      return "==";
    case Comparison::kNotEqual:
      return "!=";
    case Comparison::kLess:
      return "<";
    case Comparison::kLessEqual:
      return "<=";
    case Comparison::kGreater:
      return ">";
    case Comparison::kGreaterEqual:
      return ">=";
  }
  return "?";
}

const char* symbol(Arithmetic operation) {
  switch (operation) {
    case Arithmetic::kAdd:
      return "+";
    case Arithmetic::kSubtract:
      return "-";
    case Arithmetic::kMultiply:
      return "*";
    case Arithmetic::kDivide:
      return "/";
    case Arithmetic::kFloorDivide:
      return "//";
    case Arithmetic::kModulo:
      return "%";
    case Arithmetic::kPower:
      return "** or pow()";
  }
  return "?";
}

bool holds(Comparison comparison, std::partial_ordering order) {
  switch (comparison) {
    case Comparison::kEqual:
      return order == 0;
    case Comparison::kNotEqual:
      return order != 0;
    case Comparison::kLess:
      return order < 0;
    case Comparison::kLessEqual:
      return order <= 0;
    case Comparison::kGreater:
      return order > 0;
    case Comparison::kGreaterEqual:
      return order >= 0;
  }
  return false;
}

bool equal_dicts(const Dict& left, const Dict& right, Budget& budget) {
  if (left.size() != right.size()) return false;
  for (const auto& [key, value] : left.entries()) {
    const Value* other = right.find(key, budget);
    if (!other || !equals(value, *other, budget)) return false;
  }
  return true;
}

bool equal_items(const std::vector<Value>& left, const std::vector<Value>& right, Budget& budget) {
  if (left.size() != right.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!equals(left[i], right[i], budget)) return false;
  }
  return true;
}

bool equal_texts(const Value& left, const Value& right, Budget& budget) {
  const std::string* first = left.string();
  const std::string* second = right.string();
  if (first == second) return true;
  if (first->size() != second->size()) return false;
  budget.charge_read(first->size());
  return *first == *second;
}

Value repeat(const Value& value, const Value& count, Runtime& runtime) {
  const auto times = count.small_integer();
  if (!times) fail_limit("a repetition count of the chat template is too large");
  const auto num = static_cast<std::size_t>(std::max<std::int64_t>(*times, 0));
  if (const std::string* text = value.string()) {
    if (!text->empty() && num > (std::size_t{1} << 32)) {
      fail_limit("a repetition count of the chat template is too large");
    }
    runtime.budget.charge_copies(text->size(), num);
    std::string repeated;
    repeated.reserve(text->size() * num);
    for (std::size_t i = 0; i < num && !text->empty(); ++i) repeated += *text;
    return value.is_markup() ? Value::markup(std::move(repeated)) : Value(std::move(repeated));
  }
  const std::vector<Value>& items = *value.items();
  if (!items.empty() && num > (std::size_t{1} << 32)) {
    fail_limit("a repetition count of the chat template is too large");
  }
  runtime.budget.charge(num);
  runtime.budget.charge(items.size() * num);
  std::vector<Value> repeated;
  for (std::size_t i = 0; i < num && !items.empty(); ++i) {
    repeated.insert(repeated.end(), items.begin(), items.end());
  }
  return value.is_tuple() ? Value::tuple(std::move(repeated)) : Value::list(std::move(repeated));
}

std::optional<Value> add_others(const Value& left, const Value& right, Runtime& runtime) {
  if (left.is_string() && right.is_string()) {
    runtime.budget.charge_text(left.string()->size() + right.string()->size());
    if (!left.is_markup() && !right.is_markup()) return Value(*left.string() + *right.string());
    const auto escaped = [&](const Value& text) {
      return text.is_markup() ? *text.string() : escape_html(*text.string(), runtime.budget);
    };
    return Value::markup(escaped(left) + escaped(right));
  }
  const std::vector<Value>* first = left.items();
  const std::vector<Value>* second = right.items();
  if (first && second && left.is_tuple() == right.is_tuple()) {
    runtime.budget.charge(first->size() + second->size());
    std::vector<Value> joined(*first);
    joined.insert(joined.end(), second->begin(), second->end());
    return left.is_tuple() ? Value::tuple(std::move(joined)) : Value::list(std::move(joined));
  }
  return std::nullopt;
}

}  // namespace

bool is_true(const Value& value) {
  struct Visitor {
    bool operator()(const None&) const { return false; }
    bool operator()(const Undefined&) const { return false; }
    bool operator()(bool flag) const { return flag; }
    bool operator()(std::int64_t number) const { return number != 0; }
    bool operator()(const std::shared_ptr<const BigInt>&) const { return true; }
    bool operator()(double number) const { return number != 0; }
    bool operator()(const Text& text) const { return !text.utf8->empty(); }
    bool operator()(const std::shared_ptr<const Sequence>& row) const {
      return !row->items.empty();
    }
    bool operator()(const std::shared_ptr<const Dict>& dict) const { return dict->size() != 0; }
    bool operator()(const StreamPtr&) const { return true; }
    bool operator()(const std::shared_ptr<Object>& object) const {
      return object->length().value_or(1) != 0;
    }
  };
  return std::visit(Visitor{}, value.data());
}

bool equals(const Value& left, const Value& right, Budget& budget) {
  budget.charge();
  if (left.is_number() && right.is_number()) {
    budget.charge(cost_of_number(left) + cost_of_number(right));
    return compare_numbers(left, right) == 0;
  }
  if (left.data().index() != right.data().index()) return false;
  if (left.is_none() || left.is_undefined()) return true;
  if (left.is_string()) return equal_texts(left, right, budget);
  if (const std::vector<Value>* items = left.items()) {
    if (items == right.items()) return true;
    return left.is_tuple() == right.is_tuple() && equal_items(*items, *right.items(), budget);
  }
  if (const Dict* dict = left.dict()) {
    return dict == right.dict() || equal_dicts(*dict, *right.dict(), budget);
  }
  if (const Object* object = left.object(); object && object != right.object()) {
    return object->equals(*right.object(), budget);
  }
  return is_same(left, right, budget);
}

bool is_same(const Value& left, const Value& right, Budget& budget) {
  if (left.data().index() != right.data().index()) return false;
  if (left.is_string()) return equal_texts(left, right, budget);
  if (left.is_number()) return compare_numbers(left, right) == 0;
  if (left.items()) return left.items() == right.items();
  if (left.dict()) return left.dict() == right.dict();
  if (left.object()) return left.object() == right.object();
  if (const StreamPtr* stream = left.get_if<StreamPtr>()) {
    return *stream == *right.get_if<StreamPtr>();
  }
  return left.is_none();
}

bool compare(Comparison comparison, const Value& left, const Value& right, Budget& budget) {
  if (comparison == Comparison::kEqual) return equals(left, right, budget);
  if (comparison == Comparison::kNotEqual) return !equals(left, right, budget);
  budget.charge();
  for (const Value* side : {&left, &right}) {
    if (const Undefined* undefined = side->get_if<Undefined>()) fail_undefined(*undefined);
  }
  if (left.is_number() && right.is_number()) {
    budget.charge(cost_of_number(left) + cost_of_number(right));
    return holds(comparison, compare_numbers(left, right));
  }
  if (left.is_string() && right.is_string()) {
    budget.charge_read(std::min(left.string()->size(), right.string()->size()));
    // Byte order of UTF-8 is code point order.
    return holds(comparison, left.string()->compare(*right.string()) <=> 0);
  }
  const std::vector<Value>* first = left.items();
  const std::vector<Value>* second = right.items();
  if (first && second && left.is_tuple() == right.is_tuple()) {
    for (std::size_t i = 0; i < std::min(first->size(), second->size()); ++i) {
      if (!equals((*first)[i], (*second)[i], budget)) {
        return compare(comparison, (*first)[i], (*second)[i], budget);
      }
    }
    return holds(comparison, first->size() <=> second->size());
  }
  fail_type("'" + std::string(symbol(comparison)) + "' not supported between instances of '" +
            type_name(left) + "' and '" + type_name(right) + "'");
}

bool contains(const Value& container, const Value& item, Runtime& runtime) {
  if (const std::string* text = container.string()) {
    const std::string* part = item.string();
    if (!part) {
      fail_type("'in <string>' requires string as left operand, not " + type_name(item));
    }
    runtime.budget.charge_read(text->size() + part->size());
    return find_text(*text, *part) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return dict->find(item, runtime.budget) != nullptr;
  if (!is_iterable(container, runtime)) {
    fail_type("argument of type '" + type_name(container) + "' is not iterable");
  }
  const StreamPtr stream = iterate(container, runtime);
  while (const std::optional<Value> element = stream->next()) {
    if (equals(*element, item, runtime.budget)) return true;
  }
  return false;
}

std::uint64_t hash_of(const Value& key, Budget& budget) {
  const auto of_word = [](std::uint64_t word) {
    return keyed_hash({reinterpret_cast<const char*>(&word), sizeof word});
  };
  budget.charge();
  // A float with an integral value equals that integer; beyond 2^53 all floats share one hash.
  constexpr std::int64_t kMaxExact = std::int64_t{1} << 53;
  if (key.is_integer()) {
    const std::int64_t number = key.small_integer().value_or(kMaxExact);
    const bool is_exact = number > -kMaxExact && number < kMaxExact;
    return of_word(static_cast<std::uint64_t>(is_exact ? number : kMaxExact));
  }
  if (const double* number = key.get_if<double>()) {
    if (*number != std::trunc(*number)) return of_word(std::bit_cast<std::uint64_t>(*number));
    const bool is_exact = std::abs(*number) < static_cast<double>(kMaxExact);
    return of_word(
        static_cast<std::uint64_t>(is_exact ? static_cast<std::int64_t>(*number) : kMaxExact));
  }
  if (const std::string* text = key.string()) {
    budget.charge_read(text->size());
    return keyed_hash(*text);
  }
  if (key.is_list() || key.dict()) fail_type("unhashable type: '" + type_name(key) + "'");
  std::uint64_t hash = key.data().index();
  if (const std::vector<Value>* items = key.items()) {
    for (const Value& item : *items) hash = of_word(hash ^ hash_of(item, budget));
  } else if (const Object* object = key.object()) {
    hash = object->hash(budget).value_or(reinterpret_cast<std::uintptr_t>(object));
  } else if (const StreamPtr* stream = key.get_if<StreamPtr>()) {
    hash = reinterpret_cast<std::uintptr_t>(stream->get());
  }
  return of_word(hash);
}

Value binary(Arithmetic operation, const Value& left, const Value& right, Runtime& runtime) {
  if (left.is_number() && right.is_number()) {
    runtime.budget.charge(cost_of(operation, left, right));
    return calculate(operation, left, right);
  }
  if (operation == Arithmetic::kModulo && left.is_string()) {
    return printf_format(left, right, runtime);
  }
  for (const Value* side : {&left, &right}) {
    if (const Undefined* undefined = side->get_if<Undefined>()) fail_undefined(*undefined);
  }
  if (operation == Arithmetic::kAdd) {
    if (std::optional<Value> sum = add_others(left, right, runtime)) return *std::move(sum);
    if (left.is_string() || left.items()) {
      fail_type("can only concatenate " + type_name(left) + " (not \"" + type_name(right) +
                "\") to " + type_name(left));
    }
  }
  if (operation == Arithmetic::kMultiply) {
    if ((left.is_string() || left.items()) && right.is_integer()) {
      return repeat(left, right, runtime);
    }
    if ((right.is_string() || right.items()) && left.is_integer()) {
      return repeat(right, left, runtime);
    }
  }
  fail_type("unsupported operand type(s) for " + std::string(symbol(operation)) + ": '" +
            type_name(left) + "' and '" + type_name(right) + "'");
}

Value unary_minus(const Value& value) {
  if (const Undefined* undefined = value.get_if<Undefined>()) fail_undefined(*undefined);
  if (!value.is_number()) fail_type("bad operand type for unary -: '" + type_name(value) + "'");
  return negate(value);
}

Value unary_plus(const Value& value) {
  if (const Undefined* undefined = value.get_if<Undefined>()) fail_undefined(*undefined);
  if (!value.is_number()) fail_type("bad operand type for unary +: '" + type_name(value) + "'");
  if (const bool* flag = value.get_if<bool>()) return Value(std::int64_t{*flag});
  return value;
}

std::optional<std::size_t> length(const Value& value, Budget& budget) {
  if (const std::string* text = value.string()) {
    budget.charge_read(text->size());
    return num_code_points(*text);
  }
  if (const std::vector<Value>* items = value.items()) return items->size();
  if (const Dict* dict = value.dict()) return dict->size();
  if (value.is_undefined()) return 0;
  if (const Object* object = value.object()) return object->length();
  return std::nullopt;
}

Value call(const Value& callee, const Arguments& arguments, Runtime& runtime) {
  if (const Undefined* undefined = callee.get_if<Undefined>()) fail_undefined(*undefined);
  Object* object = callee.object();
  if (!object) fail_type("'" + type_name(callee) + "' object is not callable");
  const DepthGuard guard(runtime);
  runtime.budget.charge();
  return object->call(arguments, runtime);
}

}  // namespace troupe::jinja
