#pragma once
// Python's operations on values of any type: truth, comparison, operators, attributes, items,
// iteration, printing. Failures are TemplateErrors with Python's wording.

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/chat/jinja/numbers.hpp"
#include "runtime/chat/jinja/value.hpp"

namespace troupe::jinja {

/// The state of one rendering used by operations: remaining work, clock, cleanup at the end.
/// Implemented by the evaluator.
class Runtime {
 public:
  Runtime(Budget work, std::int64_t unix_us, std::int32_t utc_offset_s)
      : budget(std::move(work)), unix_us(unix_us), utc_offset_s(utc_offset_s) {}
  virtual ~Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Calls `function` at the end of the rendering. For objects that can be part of a cycle.
  virtual void at_end(std::function<void()> function) = 0;

  Budget budget;
  std::int64_t unix_us;
  std::int32_t utc_offset_s;
  int depth = 0;         ///< nested evaluations
  bool escapes = false;  ///< inside of an active {% autoescape %}
};

/// Counts one nested evaluation; fails beyond kMaxEvaluationDepth.
class DepthGuard {
 public:
  explicit DepthGuard(Runtime& runtime) : runtime_(runtime) {
    if (runtime_.depth >= kMaxEvaluationDepth) {
      fail_limit("the chat template recurses too deeply");
    }
    ++runtime_.depth;
  }
  ~DepthGuard() { --runtime_.depth; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Runtime& runtime_;
};

[[nodiscard]] bool is_true(const Value& value);
[[nodiscard]] bool equals(const Value& left, const Value& right, Budget& budget);
/// a is b: the same object, or equal plain values of one type.
[[nodiscard]] bool is_same(const Value& left, const Value& right, Budget& budget);

enum class Comparison { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };
[[nodiscard]] bool compare(Comparison comparison, const Value& left, const Value& right,
                           Budget& budget);
/// item in container.
[[nodiscard]] bool contains(const Value& container, const Value& item, Runtime& runtime);
/// Equal for equal values. Fails for unhashable values.
[[nodiscard]] std::uint64_t hash_of(const Value& key, Budget& budget);

[[nodiscard]] Value binary(Arithmetic operation, const Value& left, const Value& right,
                           Runtime& runtime);
[[nodiscard]] Value unary_minus(const Value& value);
[[nodiscard]] Value unary_plus(const Value& value);

/// value.name, then value["name"]; undefined if there is neither, or if the sandbox hides it.
[[nodiscard]] Value get_attribute(const Value& value, std::string_view name, Runtime& runtime);
/// value[key], then value.key for a string key.
[[nodiscard]] Value get_item(const Value& value, const Value& key, Runtime& runtime);
/// The attribute only, without falling back to items (the filter attr); nullopt if there is none.
[[nodiscard]] std::optional<Value> find_attribute(const Value& value, std::string_view name,
                                                  Runtime& runtime);
/// value[start:stop:step]; none is a missing bound. Fails where Python cannot slice.
[[nodiscard]] Value get_slice(const Value& value, const Value& start, const Value& stop,
                              const Value& step, Runtime& runtime);

[[nodiscard]] StreamPtr iterate(const Value& value, Runtime& runtime);
[[nodiscard]] bool is_iterable(const Value& value, Runtime& runtime);
[[nodiscard]] std::vector<Value> to_vector(const Value& value, Runtime& runtime);
/// len(value), nullopt if it has none.
[[nodiscard]] std::optional<std::size_t> length(const Value& value, Budget& budget);
[[nodiscard]] Value call(const Value& callee, const Arguments& arguments, Runtime& runtime);

/// str(value).
[[nodiscard]] std::string to_text(const Value& value, Runtime& runtime);
[[nodiscard]] std::string repr(const Value& value, Runtime& runtime);
/// pprint.pformat(value).
[[nodiscard]] std::string pretty_print(const Value& value, Runtime& runtime);
[[nodiscard]] std::string escape_html(std::string_view text, Budget& budget);
/// Markup unchanged; other values printed and escaped.
[[nodiscard]] std::string to_markup(const Value& value, Runtime& runtime);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  ///< indentation per level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
[[nodiscard]] std::string to_json(const Value& value, const JsonStyle& style, Runtime& runtime);
/// As above for values from parse_json, outside of a rendering and without spaces.
[[nodiscard]] std::string dump_json(const Value& value);
/// Fails (kValue) with the position of a syntax error, and beyond `max_depth`.
[[nodiscard]] Value parse_json(std::string_view text, std::size_t max_depth = kMaxValueDepth);

/// A stream that calls `function` for each value. `depth`: of the values held by the function.
[[nodiscard]] StreamPtr make_stream(std::function<std::optional<Value>()> function,
                                    std::uint32_t depth);

}  // namespace troupe::jinja
