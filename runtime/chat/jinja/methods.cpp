#include "runtime/chat/jinja/methods.hpp"

#include <algorithm>

#include "runtime/chat/jinja/string_methods.hpp"

namespace troupe::jinja {
namespace {

/// Methods of Markup return Markup, also inside of a list or tuple.
Value with_markup(const Value& result) {
  if (const Text* text = result.get_if<Text>()) return Value(Text{text->utf8, true});
  if (!result.items()) return result;
  std::vector<Value> items;
  for (const Value& item : *result.items()) items.push_back(with_markup(item));
  return result.is_tuple() ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

class Function : public Object {
 public:
  Function(std::string name, NativeFunction function, Value self)
      : Object(self.depth() + 1),
        name_(std::move(name)),
        function_(function),
        self_(std::move(self)) {}
  [[nodiscard]] std::string type_name() const override {
    return self_.is_none() ? "function" : "builtin_function_or_method";
  }
  [[nodiscard]] std::string repr(Runtime&) const override { return "<function " + name_ + ">"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  Value call(const Arguments& arguments, Runtime& runtime) override {
    Value result = function_(self_, arguments, runtime);
    return self_.is_markup() ? with_markup(result) : result;
  }

 private:
  std::string name_;
  NativeFunction function_;
  Value self_;
};

class DictView : public Object {
 public:
  DictView(Value dict, DictPart part)
      : Object(dict.depth() + 1), dict_(std::move(dict)), part_(part) {}
  [[nodiscard]] std::string type_name() const override {
    return part_ == DictPart::kItems  ? "dict_items"
           : part_ == DictPart::kKeys ? "dict_keys"
                                      : "dict_values";
  }
  [[nodiscard]] std::string repr(Runtime& runtime) const override {
    std::vector<Value> values;
    runtime.budget.charge(dict_.dict()->size());
    for (std::size_t i = 0; i < dict_.dict()->size(); ++i) values.push_back(part(i));
    return type_name() + "(" + jinja::repr(Value::list(std::move(values)), runtime) + ")";
  }
  [[nodiscard]] std::optional<std::size_t> length() const override { return dict_.dict()->size(); }
  [[nodiscard]] StreamPtr iterate(Runtime& runtime) override {
    return make_stream(
        [view = DictView::copy(*this), index = std::size_t{0},
         &runtime]() mutable -> std::optional<Value> {
          runtime.budget.charge();
          if (index >= view->dict_.dict()->size()) return std::nullopt;
          return view->part(index++);
        },
        depth() + 1);
  }

 private:
  static std::shared_ptr<DictView> copy(const DictView& view) {
    return std::make_shared<DictView>(view.dict_, view.part_);
  }
  [[nodiscard]] Value part(std::size_t index) const {
    const auto& [key, value] = dict_.dict()->entries()[index];
    switch (part_) {
      case DictPart::kKeys:
        return key;
      case DictPart::kValues:
        return value;
      case DictPart::kItems:
        break;
    }
    return Value::tuple({key, value});
  }

  Value dict_;
  DictPart part_;
};

Value dict_get(const Value& self, const Arguments& call, Runtime& runtime) {
  if (!call.named.empty()) fail_type("dict.get() takes no keyword arguments");
  auto arguments = bind(call, "get", {"key", "default"}, 1);
  if (const Value* found = self.dict()->find(*arguments[0], runtime.budget)) return *found;
  return arguments[1].value_or(Value());
}
Value dict_items(const Value& self, const Arguments& call, Runtime&) {
  (void)bind(call, "items", {});
  return dict_view(self, DictPart::kItems);
}
Value dict_keys(const Value& self, const Arguments& call, Runtime&) {
  (void)bind(call, "keys", {});
  return dict_view(self, DictPart::kKeys);
}
Value dict_values(const Value& self, const Arguments& call, Runtime&) {
  (void)bind(call, "values", {});
  return dict_view(self, DictPart::kValues);
}
/// dict.fromkeys(keys, value).
Value dict_from_keys(const Value&, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "fromkeys", {"iterable", "value"}, 1);
  Dict dict;
  for (Value& key : to_vector(*arguments[0], runtime)) {
    dict.set(std::move(key), arguments[1].value_or(Value()), runtime.budget);
  }
  return Value::dict(std::move(dict));
}
/// Containers are immutable, so a copy is the same object.
Value copy(const Value& self, const Arguments& call, Runtime&) {
  (void)bind(call, "copy", {});
  return self;
}

Value sequence_index(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "index", {"value", "start", "stop"}, 1);
  const std::vector<Value>& items = *self.items();
  const auto size = static_cast<std::int64_t>(items.size());
  const auto bound = [&](std::size_t place, std::int64_t missing) {
    if (!arguments[place]) return missing;
    std::int64_t index = arguments[place]->small_integer().value_or(missing);
    if (index < 0) index += size;
    return std::clamp<std::int64_t>(index, 0, size);
  };
  const std::int64_t stop = bound(2, size);
  for (std::int64_t i = bound(1, 0); i < stop; ++i) {
    if (equals(items[static_cast<std::size_t>(i)], *arguments[0], runtime.budget)) return Value(i);
  }
  fail_value(repr(*arguments[0], runtime) + " is not in " + type_name(self));
}

Value sequence_count(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "count", {"value"}, 1);
  return Value(static_cast<std::int64_t>(std::count_if(
      self.items()->begin(), self.items()->end(),
      [&](const Value& item) { return equals(item, *arguments[0], runtime.budget); })));
}

Value is_whole(const Value& self, const Arguments& call, Runtime&) {
  (void)bind(call, "is_integer", {});
  const double number = *self.get_if<double>();
  return Value(truncate(number).is_integer() && number == to_double(truncate(number)));
}

Value bit_length(const Value& self, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "bit_length", {});
  runtime.budget.charge(cost_of_digits(self));
  const std::string bits = integer_digits(self, 2);
  const std::size_t first = bits.find('1');
  return Value::size(first == std::string::npos ? 0 : bits.size() - first);
}

/// The non-method attributes of numbers.
std::optional<Value> number_attribute(const Value& self, std::string_view name) {
  if (name == "real") return unary_plus(self);
  if (name == "imag") return self.is_integer() ? Value(std::int64_t{0}) : Value(0.0);
  if (self.is_integer() && name == "numerator") return unary_plus(self);
  if (self.is_integer() && name == "denominator") return Value(std::int64_t{1});
  return std::nullopt;
}

bool is_mutator(const Value& self, std::string_view name) {
  static constexpr std::string_view kOfLists[] = {"append", "clear",  "extend",  "insert",
                                                  "pop",    "remove", "reverse", "sort"};
  static constexpr std::string_view kOfDicts[] = {"clear", "pop", "popitem", "update",
                                                  "setdefault"};
  const auto is_in = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return (self.is_list() && is_in(kOfLists)) || (self.dict() && is_in(kOfDicts));
}

NativeFunction find_native(const Value& self, std::string_view name) {
  if (self.is_string()) return find_string_method(name);
  if (self.dict()) {
    if (name == "get") return dict_get;
    if (name == "items") return dict_items;
    if (name == "keys") return dict_keys;
    if (name == "values") return dict_values;
    if (name == "copy") return copy;
    if (name == "fromkeys") return dict_from_keys;
  }
  if (self.is_integer() && name == "bit_length") return bit_length;
  if (self.items()) {
    if (name == "index") return sequence_index;
    if (name == "count") return sequence_count;
    if (name == "copy" && self.is_list()) return copy;
  }
  if (self.get_if<double>() && name == "is_integer") return is_whole;
  return nullptr;
}

}  // namespace

std::optional<Value> find_method(const Value& self, std::string_view name) {
  if (is_mutator(self, name)) return unsafe_attribute(self, name);
  if (self.is_number()) {
    if (std::optional<Value> value = number_attribute(self, name)) return value;
  }
  const NativeFunction function = find_native(self, name);
  if (!function) return std::nullopt;
  return make_function(name, function, self);
}

Value unsafe_attribute(const Value& self, std::string_view name) {
  return Value::undefined("access to attribute '" + std::string(name) + "' of '" + type_name(self) +
                              "' object is unsafe.",
                          true);
}

Value dict_view(const Value& dict, DictPart part) {
  return Value(std::shared_ptr<Object>(std::make_shared<DictView>(dict, part)));
}

Value make_function(std::string_view name, NativeFunction function, const Value& self) {
  return Value(
      std::shared_ptr<Object>(std::make_shared<Function>(std::string(name), function, self)));
}

std::vector<std::optional<Value>> bind(const Arguments& call, std::string_view name,
                                       std::initializer_list<std::string_view> names,
                                       std::size_t num_required) {
  const std::string function(name);
  if (call.positional.size() > names.size()) {
    fail_type(function + "() takes at most " + std::to_string(names.size()) + " arguments (" +
              std::to_string(call.positional.size()) + " given)");
  }
  std::vector<std::optional<Value>> bound(names.size());
  for (std::size_t i = 0; i < call.positional.size(); ++i) bound[i] = call.positional[i];
  for (const auto& [key, value] : call.named) {
    const auto place = std::find(names.begin(), names.end(), key);
    if (place == names.end()) {
      fail_type(function + "() got an unexpected keyword argument '" + key + "'");
    }
    std::optional<Value>& slot = bound[static_cast<std::size_t>(place - names.begin())];
    if (slot) fail_type(function + "() got multiple values for argument '" + key + "'");
    slot = value;
  }
  for (std::size_t i = 0; i < num_required; ++i) {
    if (!bound[i]) {
      fail_type(function + "() missing required argument '" + std::string(names.begin()[i]) + "'");
    }
  }
  return bound;
}

}  // namespace troupe::jinja
