#pragma once
// Objects created by the interpreter for templates.

#include "runtime/chat/jinja/operations.hpp"

namespace troupe::jinja {

/// Charged for objects that live until the end of the rendering because they can be part of a
/// cycle.
inline constexpr std::uint64_t kStepsPerCycle = 64;

/// namespace(...): the only object whose attributes a template can set. May be part of a cycle, so
/// it is cleared at the end of the rendering.
class Namespace : public Object {
 public:
  [[nodiscard]] std::string type_name() const override { return "Namespace"; }
  [[nodiscard]] std::string repr(Runtime& runtime) const override;
  [[nodiscard]] std::optional<Value> attribute(std::string_view name, Runtime&) override;
  /// Fails for a name that starts with an underscore.
  void set(Value name, Value value, Runtime& runtime);
  void clear() { attributes_ = {}; }

 private:
  Dict attributes_;
};

/// The variable `loop`: iterates, and looks one item ahead only if a template needs it.
class Loop : public Object, public std::enable_shared_from_this<Loop> {
 public:
  /// Renders the loop's body over other values, for loop(...) in a recursive loop.
  using Recurse = std::function<Value(const Value& iterable, int depth)>;

  Loop(const Value& iterable, int depth, Recurse recurse, Runtime& runtime);

  /// Advances; nullopt at the end.
  std::optional<Value> next();

  [[nodiscard]] std::string type_name() const override { return "LoopContext"; }
  [[nodiscard]] std::string repr(Runtime& runtime) const override;
  [[nodiscard]] std::optional<Value> attribute(std::string_view name, Runtime& runtime) override;
  [[nodiscard]] bool is_callable() const override { return true; }
  Value call(const Arguments& arguments, Runtime& runtime) override;
  [[nodiscard]] bool changed(const std::vector<Value>& values, Runtime& runtime);
  [[nodiscard]] Value cycle(const std::vector<Value>& values) const;

 private:
  const std::optional<Value>& peek();
  std::size_t row_length();

  StreamPtr stream_;
  std::optional<std::size_t> length_;
  std::int64_t index0_ = -1;
  int depth_;
  Recurse recurse_;
  Runtime& runtime_;
  std::optional<Value> previous_;
  std::optional<Value> current_;
  std::optional<Value> after_;
  bool has_peeked_ = false;
  std::optional<std::vector<Value>> last_changed_;
};

/// The global function `name`; nullptr if there is none.
[[nodiscard]] const Value* find_global(std::string_view name);

/// The rendering's time formatted by strftime in the C locale, with Python's %f.
[[nodiscard]] std::string format_time(std::string_view format, Runtime& runtime);

}  // namespace troupe::jinja
