// Filters over sequences.
#include <algorithm>

#include "runtime/chat/jinja/filter_tables.hpp"
#include "runtime/chat/jinja/methods.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

std::uint32_t depth_of(const Value& input, const Arguments& call) {
  std::uint32_t depth = input.depth();
  for (const Value& value : call.positional) depth = std::max(depth, value.depth());
  for (const auto& [name, value] : call.named) depth = std::max(depth, value.depth());
  return depth + 1;
}

/// Sort keys ignore case by default.
Value without_case(const Value& value, bool is_case_sensitive, Runtime& runtime) {
  if (is_case_sensitive || !value.is_string()) return value;
  runtime.budget.charge_characters(value.string()->size());
  return Value(to_lower(*value.string()));
}

Value key_of(const Value& item, const std::optional<Value>& attribute, bool is_case_sensitive,
             Runtime& runtime) {
  const Value key = attribute && !attribute->is_none() ? get_path(item, *attribute, runtime) : item;
  return without_case(key, is_case_sensitive, runtime);
}

bool is_set(const std::optional<Value>& flag) { return flag && is_true(*flag); }

/// As Python's sorted(), requires a number as the flag.
bool is_reversed(const std::optional<Value>& flag) {
  if (flag && !flag->is_integer()) {
    fail_type("'" + type_name(*flag) + "' object cannot be interpreted as an integer");
  }
  return is_set(flag);
}

Value first(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "first", {});
  if (std::optional<Value> item = iterate(input, runtime)->next()) return *std::move(item);
  return Value::undefined("No first item, sequence was empty.");
}

Value last(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "last", {});
  if (input.get_if<StreamPtr>()) fail_type("'generator' object is not reversible");
  const std::vector<Value> items = to_vector(input, runtime);
  if (items.empty()) return Value::undefined("No last item, sequence was empty.");
  return items.back();
}

/// A random item: chosen by the rendering's clock, and so the same for each sample of a request.
Value random_item(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "random", {});
  if (const Undefined* undefined = input.get_if<Undefined>()) fail_undefined(*undefined);
  const std::optional<std::size_t> size = length(input, runtime.budget);
  if (!size) fail_type("object of type '" + type_name(input) + "' has no len()");
  if (*size == 0) return Value::undefined("No random item, sequence was empty.");
  const auto index = static_cast<std::uint64_t>(runtime.unix_us) % *size;
  return get_item(input, Value::size(index), runtime);
}

/// Markup in the items or the separator makes the result Markup.
Value join_escaped(const Value& input, const std::vector<std::optional<Value>>& arguments,
                   Runtime& runtime) {
  const Value separator = arguments[0].value_or(Value(""));
  const bool has_path = arguments[1] && !arguments[1]->is_none();
  bool is_markup = separator.is_markup();
  std::vector<Value> items;
  for (const Value& item : to_vector(input, runtime)) {
    items.push_back(has_path ? get_path(item, *arguments[1], runtime) : item);
    is_markup |= items.back().is_markup();
  }
  const auto text_of = [&](const Value& value) {
    return is_markup ? to_markup(value, runtime) : to_text(value, runtime);
  };
  const std::string between = text_of(separator);
  std::string joined;
  for (std::size_t i = 0; i < items.size(); ++i) {
    runtime.budget.charge_read(between.size());
    joined += (i > 0 ? between : "") + text_of(items[i]);
    runtime.budget.check_text_size(joined.size());
  }
  return is_markup ? Value::markup(std::move(joined)) : Value(std::move(joined));
}

Value join(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "join", {"d", "attribute"});
  const std::string separator = arguments[0] ? to_text(*arguments[0], runtime) : "";
  const bool has_path = arguments[1] && !arguments[1]->is_none();
  if (runtime.escapes) return join_escaped(input, arguments, runtime);
  std::string joined;
  bool is_first = true;
  const StreamPtr stream = iterate(input, runtime);
  while (const std::optional<Value> item = stream->next()) {
    const std::string text =
        to_text(has_path ? get_path(*item, *arguments[1], runtime) : *item, runtime);
    if (!std::exchange(is_first, false)) joined += separator;
    joined += text;
    runtime.budget.charge_read(separator.size());
    runtime.budget.check_text_size(joined.size());
  }
  return Value(std::move(joined));
}

Value list(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "list", {});
  return Value::list(to_vector(input, runtime));
}

Value reverse(const Value& input, const Arguments& call, Runtime& runtime) {
  (void)bind(call, "reverse", {});
  if (input.is_string()) {
    return get_slice(input, Value(), Value(), Value(std::int64_t{-1}), runtime);
  }
  std::vector<Value> items = to_vector(input, runtime);
  std::reverse(items.begin(), items.end());
  return Value(iterate(Value::list(std::move(items)), runtime));
}

Value sort(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "sort", {"reverse", "case_sensitive", "attribute"});
  const bool is_case_sensitive = is_set(arguments[1]);
  // "a,b" sorts by a, then by b.
  std::vector<std::optional<Value>> paths;
  if (arguments[2] && arguments[2]->is_string()) {
    std::string_view rest = *arguments[2]->string();
    runtime.budget.charge_characters(rest.size());
    while (true) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      paths.emplace_back(Value(rest.substr(0, comma)));
      if (comma == rest.size()) break;
      rest.remove_prefix(comma + 1);
    }
  } else {
    paths.push_back(arguments[2]);
  }
  std::vector<std::pair<Value, Value>> rows;
  for (Value& item : to_vector(input, runtime)) {
    runtime.budget.charge(1 + paths.size());
    std::vector<Value> keys;
    keys.reserve(paths.size());
    for (const std::optional<Value>& path : paths) {
      keys.push_back(key_of(item, path, is_case_sensitive, runtime));
    }
    rows.emplace_back(Value::list(std::move(keys)), std::move(item));
  }
  const bool is_reverse = is_reversed(arguments[0]);
  std::stable_sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) {
    return is_reverse ? compare(Comparison::kLess, b.first, a.first, runtime.budget)
                      : compare(Comparison::kLess, a.first, b.first, runtime.budget);
  });
  std::vector<Value> sorted;
  sorted.reserve(rows.size());
  for (auto& [key, item] : rows) sorted.push_back(std::move(item));
  return Value::list(std::move(sorted));
}

Value unique(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "unique", {"case_sensitive", "attribute"});
  const bool is_case_sensitive = is_set(arguments[0]);
  Dict seen;
  std::vector<Value> kept;
  const StreamPtr stream = iterate(input, runtime);
  while (std::optional<Value> item = stream->next()) {
    const Value key = key_of(*item, arguments[1], is_case_sensitive, runtime);
    runtime.budget.charge();
    if (seen.find(key, runtime.budget)) continue;
    seen.set(key, Value(), runtime.budget);
    kept.push_back(*std::move(item));
  }
  return Value(iterate(Value::list(std::move(kept)), runtime));
}

template <Comparison comparison>
Value extreme(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "min", {"case_sensitive", "attribute"});
  std::optional<std::pair<Value, Value>> best;
  const StreamPtr stream = iterate(input, runtime);
  while (std::optional<Value> item = stream->next()) {
    runtime.budget.charge();
    Value key = key_of(*item, arguments[1], is_set(arguments[0]), runtime);
    if (!best || compare(comparison, key, best->first, runtime.budget)) {
      best.emplace(std::move(key), *std::move(item));
    }
  }
  return best ? best->second : Value::undefined("No aggregated item, sequence was empty.");
}

Value sum(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "sum", {"attribute", "start"});
  Value total = arguments[1].value_or(Value(std::int64_t{0}));
  if (total.is_string()) fail_type("sum() can't sum strings [use ''.join(seq) instead]");
  const bool has_path = arguments[0] && !arguments[0]->is_none();
  const StreamPtr stream = iterate(input, runtime);
  while (const std::optional<Value> item = stream->next()) {
    runtime.budget.charge();
    total = binary(Arithmetic::kAdd, total,
                   has_path ? get_path(*item, *arguments[0], runtime) : *item, runtime);
  }
  return total;
}

Value empty_stream() {
  return Value(make_stream([] { return std::nullopt; }, 1));
}

std::int64_t count_of(const std::optional<Value>& value) {
  const auto number = value->small_integer();
  if (!number || *number > kMaxRange) {
    fail_value("the count of a filter must be a number up to " + std::to_string(kMaxRange));
  }
  return *number;
}

Value batch(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "batch", {"linecount", "fill_with"}, 1);
  const std::int64_t size = count_of(arguments[0]);
  std::vector<Value> batches;
  std::vector<Value> row;
  for (Value& item : to_vector(input, runtime)) {
    // As in Jinja, an empty batch comes first for 0, and none ends for a negative number.
    if (static_cast<std::int64_t>(row.size()) == size) {
      batches.push_back(Value::list(std::exchange(row, {})));
    }
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (arguments[1] && !arguments[1]->is_none() && static_cast<std::int64_t>(row.size()) < size) {
      runtime.budget.charge(static_cast<std::uint64_t>(size));
      row.resize(static_cast<std::size_t>(size), *arguments[1]);
    }
    batches.push_back(Value::list(std::move(row)));
  }
  return Value(iterate(Value::list(std::move(batches)), runtime));
}

Value slice(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "slice", {"slices", "fill_with"}, 1);
  const std::int64_t count = count_of(arguments[0]);
  if (count == 0) fail_value("integer division or modulo by zero");
  if (count < 0) return empty_stream();
  const auto num_slices = static_cast<std::size_t>(count);
  const std::vector<Value> items = to_vector(input, runtime);
  const std::size_t size = items.size() / num_slices;
  const std::size_t num_longer = items.size() % num_slices;
  runtime.budget.charge(num_slices);
  std::vector<Value> slices;
  auto next = items.begin();
  for (std::size_t i = 0; i < num_slices; ++i) {
    const auto end = next + static_cast<std::ptrdiff_t>(size + (i < num_longer ? 1 : 0));
    std::vector<Value> part(next, end);
    next = end;
    if (arguments[1] && !arguments[1]->is_none() && i >= num_longer) part.push_back(*arguments[1]);
    slices.push_back(Value::list(std::move(part)));
  }
  return Value(iterate(Value::list(std::move(slices)), runtime));
}

/// One group of groupby: a named tuple.
class Group : public Object {
 public:
  explicit Group(Value pair) : Object(pair.depth() + 1), pair_(std::move(pair)) {}
  [[nodiscard]] std::string type_name() const override { return "_GroupTuple"; }
  [[nodiscard]] std::string repr(Runtime& runtime) const override {
    return jinja::repr(pair_, runtime);
  }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name, Runtime&) override {
    if (name == "grouper") return (*pair_.items())[0];
    if (name == "list") return (*pair_.items())[1];
    return std::nullopt;
  }
  [[nodiscard]] StreamPtr iterate(Runtime& runtime) override {
    return jinja::iterate(pair_, runtime);
  }
  [[nodiscard]] std::optional<std::size_t> length() const override { return 2; }
  [[nodiscard]] bool has_items() const override { return true; }
  [[nodiscard]] std::optional<Value> item(std::int64_t index) const override {
    if (index < 0) index += 2;
    if (index < 0 || index > 1) return std::nullopt;
    return (*pair_.items())[static_cast<std::size_t>(index)];
  }

 private:
  Value pair_;
};

Value group_by(const Value& input, const Arguments& call, Runtime& runtime) {
  const auto arguments = bind(call, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  struct Row {
    Value key;
    Value shown;
    Value item;
  };
  std::vector<Row> rows;
  for (Value& item : to_vector(input, runtime)) {
    Value key = get_path(item, *arguments[0], runtime);
    if (key.is_undefined() && arguments[1]) key = *arguments[1];
    runtime.budget.charge();
    rows.push_back({without_case(key, is_set(arguments[2]), runtime), key, std::move(item)});
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
    return compare(Comparison::kLess, a.key, b.key, runtime.budget);
  });
  std::vector<Value> groups;
  for (std::size_t start = 0; start < rows.size();) {
    std::vector<Value> members;
    std::size_t end = start;
    for (; end < rows.size() && equals(rows[end].key, rows[start].key, runtime.budget); ++end) {
      runtime.budget.charge();
      members.push_back(rows[end].item);
    }
    end = std::max(end, start + 1);  // a NaN does not equal itself
    groups.emplace_back(std::shared_ptr<Object>(std::make_shared<Group>(
        Value::tuple({rows[start].shown, Value::list(std::move(members))}))));
    start = end;
  }
  return Value::list(std::move(groups));
}

// For a false input, map, select and reject return an empty sequence and do not check other
// arguments.

Value map_values(const Value& input, const Arguments& call, Runtime& runtime) {
  if (!is_true(input)) return empty_stream();
  const std::uint32_t depth = depth_of(input, call);
  if (const Value* path = call.positional.empty() ? call.find("attribute") : nullptr) {
    const Value* missing = call.find("default");
    return Value(make_stream(
        [stream = iterate(input, runtime), path = *path,
         missing = missing ? std::optional(*missing) : std::nullopt,
         &runtime]() -> std::optional<Value> {
          const std::optional<Value> item = stream->next();
          if (!item) return std::nullopt;
          runtime.budget.charge();
          Value value = get_path(*item, path, runtime);
          return value.is_undefined() && missing ? *missing : value;
        },
        depth));
  }
  if (call.positional.empty()) fail_type("map requires a filter argument");
  const std::string name = to_text(call.positional[0], runtime);
  const FilterFunction filter = find_filter(name);
  if (!filter) fail_type("No filter named '" + name + "'.");
  Arguments rest{{call.positional.begin() + 1, call.positional.end()}, call.named};
  return Value(make_stream(
      [stream = iterate(input, runtime), filter, rest = std::move(rest),
       &runtime]() -> std::optional<Value> {
        const std::optional<Value> item = stream->next();
        if (!item) return std::nullopt;
        const DepthGuard guard(runtime);
        runtime.budget.charge();
        return filter(*item, rest, runtime);
      },
      depth));
}

/// select, reject (num_skipped 0) and selectattr, rejectattr (the first argument is a path).
template <bool keeps, bool has_path>
Value select_values(const Value& input, const Arguments& call, Runtime& runtime) {
  if (!is_true(input)) return empty_stream();
  const std::size_t name_place = has_path ? 1 : 0;
  if (has_path && call.positional.empty()) fail_type("Missing parameter for attribute name");
  TestFunction test = nullptr;
  Arguments rest;
  if (call.positional.size() > name_place) {
    const std::string name = to_text(call.positional[name_place], runtime);
    test = find_test(name);
    if (!test) fail_type("No test named '" + name + "'.");
    rest.positional.assign(call.positional.begin() + static_cast<std::ptrdiff_t>(name_place + 1),
                           call.positional.end());
    rest.named = call.named;
  }
  return Value(make_stream(
      [stream = iterate(input, runtime), path = has_path ? call.positional[0] : Value(), test,
       rest = std::move(rest), &runtime]() -> std::optional<Value> {
        while (std::optional<Value> item = stream->next()) {
          const DepthGuard guard(runtime);
          runtime.budget.charge();
          const Value value = has_path ? get_path(*item, path, runtime) : *item;
          if ((test ? test(value, rest, runtime) : is_true(value)) == keeps) return item;
        }
        return std::nullopt;
      },
      depth_of(input, call)));
}

constexpr FilterEntry kFilters[] = {{"batch", batch},
                                    {"first", first},
                                    {"groupby", group_by},
                                    {"join", join},
                                    {"last", last},
                                    {"list", list},
                                    {"map", map_values},
                                    {"max", extreme<Comparison::kGreater>},
                                    {"min", extreme<Comparison::kLess>},
                                    {"random", random_item},
                                    {"reject", select_values<false, false>},
                                    {"rejectattr", select_values<false, true>},
                                    {"reverse", reverse},
                                    {"select", select_values<true, false>},
                                    {"selectattr", select_values<true, true>},
                                    {"slice", slice},
                                    {"sort", sort},
                                    {"sum", sum},
                                    {"unique", unique}};

}  // namespace

Value get_path(const Value& value, const Value& path, Runtime& runtime) {
  if (path.is_none()) return value;
  if (!path.is_string()) return get_item(value, path, runtime);
  Value found = value;
  std::string_view rest = *path.string();
  while (true) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    runtime.budget.charge_read(part.size());
    const bool is_number = !part.empty() && part.size() < 10 &&
                           part.find_first_not_of("0123456789") == std::string_view::npos;
    found = get_item(found, is_number ? *parse_integer(part) : Value(part), runtime);
    if (dot == rest.size()) return found;
    rest.remove_prefix(dot + 1);
  }
}

std::span<const FilterEntry> sequence_filters() { return kFilters; }

}  // namespace troupe::jinja
