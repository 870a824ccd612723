// Attributes, items, slices and iteration.
#include <algorithm>

#include "runtime/chat/jinja/methods.hpp"
#include "runtime/chat/jinja/operations.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

/// Iterates over containers and keeps them alive.
class ItemStream : public Stream {
 public:
  ItemStream(Value container, Runtime& runtime)
      : Stream(container.depth() + 1), container_(std::move(container)), runtime_(runtime) {}
  std::optional<Value> next() override {
    runtime_.budget.charge();
    if (const std::string* text = container_.string()) {
      if (position_ >= text->size()) return std::nullopt;
      const std::size_t start = position_;
      decode_at(*text, position_);
      return Value(text->substr(start, position_ - start));
    }
    if (const std::vector<Value>* items = container_.items()) {
      if (position_ >= items->size()) return std::nullopt;
      return (*items)[position_++];
    }
    const Dict* dict = container_.dict();
    if (!dict || position_ >= dict->size()) return std::nullopt;
    return dict->entries()[position_++].first;
  }

 private:
  Value container_;
  Runtime& runtime_;
  std::size_t position_ = 0;
};

class FunctionStream : public Stream {
 public:
  FunctionStream(std::function<std::optional<Value>()> function, std::uint32_t depth)
      : Stream(depth), function_(std::move(function)) {}
  std::optional<Value> next() override {
    if (is_over_) return std::nullopt;
    std::optional<Value> value = function_();
    is_over_ = !value;
    return value;
  }

 private:
  std::function<std::optional<Value>()> function_;
  bool is_over_ = false;
};

std::string describe(const Value& value) {
  return value.is_none() ? "None" : "'" + type_name(value) + " object'";
}

Value missing_attribute(const Value& value, const std::string& name) {
  return Value::undefined(describe(value) + " has no attribute '" + name + "'");
}

/// value[key] only; nullopt where Python raises.
std::optional<Value> find_item(const Value& value, const Value& key, Runtime& runtime) {
  if (const Dict* dict = value.dict()) {
    if (key.is_list() || key.dict()) return std::nullopt;
    if (const Value* found = dict->find(key, runtime.budget)) return *found;
    return std::nullopt;
  }
  const std::optional<std::int64_t> index = key.small_integer();
  if (!index) return std::nullopt;
  if (const std::vector<Value>* items = value.items()) {
    const auto size = static_cast<std::int64_t>(items->size());
    const std::int64_t place = *index < 0 ? *index + size : *index;
    if (place < 0 || place >= size) return std::nullopt;
    return (*items)[static_cast<std::size_t>(place)];
  }
  if (const std::string* text = value.string()) {
    runtime.budget.charge_read(text->size());
    const auto size = static_cast<std::int64_t>(num_code_points(*text));
    const std::int64_t place = *index < 0 ? *index + size : *index;
    if (place < 0 || place >= size) return std::nullopt;
    const std::size_t start = byte_offset(*text, static_cast<std::size_t>(place));
    std::size_t end = start;
    decode_at(*text, end);
    return Value(
        Text{std::make_shared<const std::string>(*text, start, end - start), value.is_markup()});
  }
  if (const Object* object = value.object()) return object->item(*index);
  return std::nullopt;
}

struct SliceBounds {
  std::int64_t start;
  std::int64_t stop;
  std::int64_t step;
  std::size_t count;
};

std::int64_t clamp_bound(const Value& bound, std::int64_t missing, std::int64_t size,
                         std::int64_t lowest, std::int64_t highest) {
  if (bound.is_none()) return missing;
  std::int64_t index = 0;
  if (const auto small = bound.small_integer()) {
    index = *small;
  } else {
    index = compare_numbers(bound, Value(std::int64_t{0})) < 0 ? lowest : highest;
  }
  if (index < 0) index = index < -size ? lowest : index + size;
  return std::clamp(index, lowest, highest);
}

/// Python's slice.indices(size).
SliceBounds slice_bounds(const Value& start, const Value& stop, const Value& step,
                         std::size_t length) {
  const auto size = static_cast<std::int64_t>(length);
  std::int64_t stride = 1;
  if (!step.is_none()) {
    const auto small = step.small_integer();
    stride = small ? std::clamp<std::int64_t>(*small, -size - 1, size + 1) : size + 1;
    if (small && *small == 0) fail_value("slice step cannot be zero");
  }
  const bool back = stride < 0;
  const std::int64_t lowest = back ? -1 : 0;
  const std::int64_t highest = back ? size - 1 : size;
  const std::int64_t first = clamp_bound(start, back ? highest : 0, size, lowest, highest);
  const std::int64_t last = clamp_bound(stop, back ? -1 : size, size, lowest, highest);
  const std::int64_t span = back ? first - last : last - first;
  const std::int64_t count = span <= 0 ? 0 : (span - 1) / (back ? -stride : stride) + 1;
  return {first, last, stride, static_cast<std::size_t>(count)};
}

template <class Row>
Row pick(const Row& row, const SliceBounds& bounds) {
  Row picked;
  picked.reserve(bounds.count);
  std::int64_t place = bounds.start;
  for (std::size_t i = 0; i < bounds.count; ++i, place += bounds.step) {
    picked.push_back(row[static_cast<std::size_t>(place)]);
  }
  return picked;
}

std::string slice_text(const std::string& text, const Value& start, const Value& stop,
                       const Value& step) {
  if (is_ascii(text)) return pick(text, slice_bounds(start, stop, step, text.size()));
  const std::u32string code_points = to_code_points(text);
  return to_utf8(pick(code_points, slice_bounds(start, stop, step, code_points.size())));
}

}  // namespace

StreamPtr make_stream(std::function<std::optional<Value>()> function, std::uint32_t depth) {
  return std::make_shared<FunctionStream>(std::move(function), depth);
}

std::optional<Value> find_attribute(const Value& value, std::string_view name, Runtime& runtime) {
  if (const Undefined* undefined = value.get_if<Undefined>()) fail_undefined(*undefined);
  runtime.budget.charge_read(name.size());
  if (name.starts_with("_")) {
    // Python has these for every object. Other such names are looked up as items instead.
    static constexpr std::string_view kDunders[] = {
        "__class__",  "__doc__",          "__init__", "__dict__", "__module__",
        "__eq__",     "__hash__",         "__str__",  "__repr__", "__getattribute__",
        "__reduce__", "__subclasshook__", "__new__",  "__dir__",  "__format__"};
    if (std::find(std::begin(kDunders), std::end(kDunders), name) == std::end(kDunders)) {
      return std::nullopt;
    }
    return unsafe_attribute(value, name);
  }
  if (Object* object = value.object()) return object->attribute(name, runtime);
  return find_method(value, name);
}

Value get_attribute(const Value& value, std::string_view name, Runtime& runtime) {
  if (std::optional<Value> attribute = find_attribute(value, name, runtime)) {
    return *std::move(attribute);
  }
  if (const Dict* dict = value.dict()) {
    if (const Value* item = dict->find(name)) return *item;
  }
  return missing_attribute(value, std::string(name));
}

Value get_item(const Value& value, const Value& key, Runtime& runtime) {
  if (const Undefined* undefined = value.get_if<Undefined>()) fail_undefined(*undefined);
  if (std::optional<Value> item = find_item(value, key, runtime)) return *std::move(item);
  if (const std::string* name = key.string()) {
    if (std::optional<Value> attribute = find_attribute(value, *name, runtime)) {
      return *std::move(attribute);
    }
    return missing_attribute(value, *name);
  }
  return Value::undefined(describe(value) + " has no element " + repr(key, runtime));
}

Value get_slice(const Value& value, const Value& start, const Value& stop, const Value& step,
                Runtime& runtime) {
  if (const Undefined* undefined = value.get_if<Undefined>()) fail_undefined(*undefined);
  for (const Value* bound : {&start, &stop, &step}) {
    if (!bound->is_none() && !bound->is_integer()) {
      fail_type("slice indices must be integers or None, not " + type_name(*bound));
    }
  }
  if (const std::string* text = value.string()) {
    runtime.budget.charge_characters(text->size());
    std::string sliced = slice_text(*text, start, stop, step);
    return value.is_markup() ? Value::markup(std::move(sliced)) : Value(std::move(sliced));
  }
  if (const std::vector<Value>* items = value.items()) {
    const SliceBounds bounds = slice_bounds(start, stop, step, items->size());
    runtime.budget.charge(1 + bounds.count);
    std::vector<Value> sliced = pick(*items, bounds);
    return value.is_tuple() ? Value::tuple(std::move(sliced)) : Value::list(std::move(sliced));
  }
  if (const Object* object = value.object(); object && object->has_items()) {
    std::vector<Value> sliced;
    const SliceBounds bounds = slice_bounds(start, stop, step, object->length().value_or(0));
    runtime.budget.charge_read(bounds.count);
    if (std::optional<Value> part = object->slice(bounds.start, bounds.stop, bounds.step)) {
      return *std::move(part);
    }
    runtime.budget.charge(1 + bounds.count);
    std::int64_t place = bounds.start;
    for (std::size_t i = 0; i < bounds.count; ++i, place += bounds.step) {
      sliced.push_back(object->item(place).value());
    }
    return Value::list(std::move(sliced));
  }
  fail_type("'" + type_name(value) + "' object cannot be sliced");
}

bool is_iterable(const Value& value, Runtime& runtime) {
  if (Object* object = value.object()) return object->iterate(runtime) != nullptr;
  return value.is_string() || value.items() || value.dict() || value.is_undefined() ||
         value.get_if<StreamPtr>();
}

StreamPtr iterate(const Value& value, Runtime& runtime) {
  if (const StreamPtr* stream = value.get_if<StreamPtr>()) return *stream;
  if (Object* object = value.object()) {
    if (StreamPtr stream = object->iterate(runtime)) return stream;
  }
  if (!is_iterable(value, runtime)) {
    fail_type("'" + type_name(value) + "' object is not iterable");
  }
  return std::make_shared<ItemStream>(value, runtime);
}

std::vector<Value> to_vector(const Value& value, Runtime& runtime) {
  if (const std::vector<Value>* items = value.items()) {
    runtime.budget.charge(items->size());
    return *items;
  }
  std::vector<Value> values;
  const StreamPtr stream = iterate(value, runtime);
  while (std::optional<Value> item = stream->next()) {
    runtime.budget.charge();
    values.push_back(*std::move(item));
  }
  return values;
}

}  // namespace troupe::jinja
