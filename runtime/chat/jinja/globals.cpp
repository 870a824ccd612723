// The functions available in every template.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "runtime/base/keyed_hash.hpp"
#include "runtime/chat/jinja/methods.hpp"
#include "runtime/chat/jinja/objects.hpp"

namespace troupe::jinja {
namespace {

class Range : public Object, public std::enable_shared_from_this<Range> {
 public:
  Range(std::int64_t start, std::int64_t stop, std::int64_t step)
      : start_(start), stop_(stop), step_(step) {
    // In 128-bit arithmetic, since the bounds may be anywhere in int64.
    const __int128 span =
        step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
    const __int128 stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
    const __int128 count = span <= 0 ? 0 : (span - 1) / stride + 1;
    if (count > kMaxRange) {
      throw TemplateError(TemplateError::Kind::kLimit,
                          "Range too big. The sandbox blocks ranges larger than MAX_RANGE (" +
                              std::to_string(kMaxRange) + ").");
    }
    length_ = static_cast<std::size_t>(count);
  }
  [[nodiscard]] std::string type_name() const override { return "range"; }
  [[nodiscard]] std::string repr(Runtime&) const override {
    std::string text = "range(" + std::to_string(start_) + ", " + std::to_string(stop_);
    if (step_ != 1) text += ", " + std::to_string(step_);
    return text + ")";
  }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name, Runtime&) override {
    if (name == "start") return Value(start_);
    if (name == "stop") return Value(stop_);
    if (name == "step") return Value(step_);
    const Value self(std::static_pointer_cast<Object>(shared_from_this()));
    if (name == "index") return make_function(name, index_of, self);
    if (name == "count") return make_function(name, count_of, self);
    return std::nullopt;
  }
  [[nodiscard]] std::optional<std::size_t> length() const override { return length_; }
  [[nodiscard]] bool has_items() const override { return true; }
  [[nodiscard]] std::optional<Value> item(std::int64_t index) const override {
    const auto length = static_cast<std::int64_t>(length_);
    if (index < 0) index += length;
    if (index < 0 || index >= length) return std::nullopt;
    return Value(start_ + index * step_);
  }
  [[nodiscard]] std::optional<Value> slice(std::int64_t first, std::int64_t last,
                                           std::int64_t stride) const override {
    std::int64_t stop = 0;
    std::int64_t step = 0;
    if (__builtin_mul_overflow(last, step_, &stop) || __builtin_add_overflow(start_, stop, &stop) ||
        __builtin_mul_overflow(step_, stride, &step)) {
      return std::nullopt;
    }
    return Value(
        std::shared_ptr<Object>(std::make_shared<Range>(start_ + first * step_, stop, step)));
  }
  [[nodiscard]] StreamPtr iterate(Runtime& runtime) override {
    return make_stream(
        [start = start_, step = step_, length = length_, index = std::size_t{0},
         &runtime]() mutable -> std::optional<Value> {
          runtime.budget.charge();
          if (index >= length) return std::nullopt;
          return Value(start + static_cast<std::int64_t>(index++) * step);
        },
        1);
  }
  /// Equal ranges have the same numbers.
  [[nodiscard]] bool equals(const Object& other, Budget&) const override {
    const auto* range = dynamic_cast<const Range*>(&other);
    return range != nullptr && range->identity() == identity();
  }
  [[nodiscard]] std::optional<std::uint64_t> hash(Budget&) const override {
    const auto numbers = identity();
    return keyed_hash({reinterpret_cast<const char*>(numbers.data()), sizeof numbers});
  }

 private:
  /// Equal for ranges of the same numbers: length, first number and step.
  [[nodiscard]] std::array<std::int64_t, 3> identity() const {
    return {static_cast<std::int64_t>(length_), length_ > 0 ? start_ : 0, length_ > 1 ? step_ : 0};
  }
  /// The position of a number in the range.
  [[nodiscard]] std::optional<std::int64_t> place_of(const Value& value, Budget& budget) const {
    if (!value.is_number()) return std::nullopt;
    budget.charge(cost_of_number(value));
    const double number = to_double(value);
    if (!(std::abs(number) < 1e18) || number != std::trunc(number)) return std::nullopt;
    // The bounds may be anywhere in int64.
    const __int128 distance =
        static_cast<__int128>(value.small_integer().value_or(static_cast<std::int64_t>(number))) -
        start_;
    const __int128 place = distance / step_;
    if (distance % step_ != 0 || place < 0 || place >= static_cast<__int128>(length_)) {
      return std::nullopt;
    }
    return static_cast<std::int64_t>(place);
  }
  static Value index_of(const Value& self, const Arguments& call, Runtime& runtime) {
    const auto arguments = bind(call, "index", {"value"}, 1);
    const auto& range = static_cast<const Range&>(*self.object());
    if (const auto place = range.place_of(*arguments[0], runtime.budget)) return Value(*place);
    fail_value(jinja::repr(*arguments[0], runtime) + " is not in range");
  }
  static Value count_of(const Value& self, const Arguments& call, Runtime& runtime) {
    const auto arguments = bind(call, "count", {"value"}, 1);
    const auto& range = static_cast<const Range&>(*self.object());
    return Value(std::int64_t{range.place_of(*arguments[0], runtime.budget).has_value()});
  }

  std::int64_t start_;
  std::int64_t stop_;
  std::int64_t step_;
  std::size_t length_;
};

Value range(const Value&, const Arguments& call, Runtime&) {
  std::vector<std::int64_t> bounds;
  for (const Value& argument : call.positional) {
    const auto bound = argument.small_integer();
    if (!bound) {
      fail_type("'" + type_name(argument) + "' object cannot be interpreted as an integer");
    }
    bounds.push_back(*bound);
  }
  if (!call.named.empty()) fail_type("range() takes no keyword arguments");
  if (bounds.empty() || bounds.size() > 3) fail_type("range expected 1 to 3 arguments");
  if (bounds.size() == 1) bounds.insert(bounds.begin(), 0);
  if (bounds.size() == 2) bounds.push_back(1);
  if (bounds[2] == 0) fail_value("range() arg 3 must not be zero");
  return Value(std::shared_ptr<Object>(std::make_shared<Range>(bounds[0], bounds[1], bounds[2])));
}

/// dict(pairs or mapping, **entries).
Value make_dict(const Value&, const Arguments& call, Runtime& runtime) {
  Dict dict;
  if (call.positional.size() > 1) fail_type("dict expected at most 1 argument");
  if (!call.positional.empty()) {
    const Value& source = call.positional[0];
    if (const Undefined* undefined = source.get_if<Undefined>()) fail_undefined(*undefined);
    if (const Dict* entries = source.dict()) {
      runtime.budget.charge(entries->size());
      dict = *entries;
    } else {
      for (const Value& pair : to_vector(source, runtime)) {
        std::vector<Value> parts = to_vector(pair, runtime);
        if (parts.size() != 2) fail_value("dictionary update sequence element is not a pair");
        runtime.budget.charge(2);
        dict.set(std::move(parts[0]), std::move(parts[1]), runtime.budget);
      }
    }
  }
  for (const auto& [name, value] : call.named) {
    runtime.budget.charge_read(name.size());
    dict.set(name, value);
  }
  return Value::dict(std::move(dict));
}

/// dict: the type, callable and with fromkeys.
class DictMaker : public Object {
 public:
  [[nodiscard]] std::string type_name() const override { return "TemplateDict"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  Value call(const Arguments& arguments, Runtime& runtime) override {
    return make_dict(Value(), arguments, runtime);
  }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name, Runtime&) override {
    if (name == "fromkeys") return find_method(Value::dict({}), name);
    return std::nullopt;
  }
};

Value make_namespace(const Value& self, const Arguments& call, Runtime& runtime) {
  const auto result = std::make_shared<Namespace>();
  runtime.budget.charge(kStepsPerCycle);
  runtime.at_end([result] { result->clear(); });
  const Value entries = make_dict(self, call, runtime);
  for (const auto& [key, value] : entries.dict()->entries()) {
    result->set(key, value, runtime);
  }
  return Value(std::shared_ptr<Object>(result));
}

Value raise_exception(const Value&, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "raise_exception", {"message"}, 1);
  throw TemplateError(TemplateError::Kind::kRaised, to_text(*arguments[0], runtime));
}

Value strftime_now(const Value&, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "strftime_now", {"format"}, 1);
  const std::string* format = arguments[0]->string();
  if (!format) fail_type("strftime() argument 1 must be str, not " + type_name(*arguments[0]));
  return Value(format_time(*format, runtime));
}

/// cycler(a, b, ...): next() cycles through the items.
class Cycler : public Object {
 public:
  Cycler(std::vector<Value> items, std::uint32_t depth) : Object(depth), items_(std::move(items)) {}
  [[nodiscard]] std::string type_name() const override { return "Cycler"; }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name, Runtime&) override {
    if (name == "current") return items_[position_];
    const Value self(std::static_pointer_cast<Object>(self_.lock()));
    if (name == "next") {
      return make_function(
          name,
          [](const Value& cycler, const Arguments&, Runtime&) {
            auto& object = static_cast<Cycler&>(*cycler.object());
            Value item = object.items_[object.position_];
            object.position_ = (object.position_ + 1) % object.items_.size();
            return item;
          },
          self);
    }
    if (name == "reset") {
      return make_function(
          name,
          [](const Value& cycler, const Arguments&, Runtime&) {
            static_cast<Cycler&>(*cycler.object()).position_ = 0;
            return Value();
          },
          self);
    }
    return std::nullopt;
  }
  void set_self(std::weak_ptr<Cycler> self) { self_ = std::move(self); }

 private:
  std::vector<Value> items_;
  std::size_t position_ = 0;
  std::weak_ptr<Cycler> self_;
};

Value make_cycler(const Value&, const Arguments& call, Runtime&) {
  if (call.positional.empty()) fail_type("at least one item has to be provided");
  const std::uint32_t depth = Value::list(call.positional).depth() + 1;
  const auto cycler = std::make_shared<Cycler>(call.positional, depth);
  cycler->set_self(cycler);
  return Value(std::shared_ptr<Object>(cycler));
}

/// joiner(sep): empty at the first call, then the separator.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator)
      : Object(separator.depth() + 1), separator_(std::move(separator)) {}
  [[nodiscard]] std::string type_name() const override { return "Joiner"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  Value call(const Arguments&, Runtime&) override {
    if (std::exchange(is_used_, true)) return separator_;
    return Value("");
  }

 private:
  Value separator_;
  bool is_used_ = false;
};

Value make_joiner(const Value&, const Arguments& call, Runtime&) {
  const auto arguments = bind(call, "joiner", {"sep"});
  return Value(
      std::shared_ptr<Object>(std::make_shared<Joiner>(arguments[0].value_or(Value(", ")))));
}

/// lipsum is random text in Jinja; useless in prompts.
Value lipsum(const Value&, const Arguments&, Runtime&) {
  fail_type("lipsum() is not supported in chat templates");
}

}  // namespace

const Value* find_global(std::string_view name) {
  static const std::map<std::string, Value, std::less<>> kGlobals = [] {
    std::map<std::string, Value, std::less<>> globals;
    const std::pair<const char*, NativeFunction> functions[] = {
        {"range", range},
        {"namespace", make_namespace},
        {"raise_exception", raise_exception},
        {"strftime_now", strftime_now},
        {"cycler", make_cycler},
        {"joiner", make_joiner},
        {"lipsum", lipsum}};
    for (const auto& [key, function] : functions)
      globals.emplace(key, make_function(key, function));
    globals.emplace("dict", Value(std::shared_ptr<Object>(std::make_shared<DictMaker>())));
    return globals;
  }();
  const auto found = kGlobals.find(name);
  return found == kGlobals.end() ? nullptr : &found->second;
}

}  // namespace troupe::jinja
