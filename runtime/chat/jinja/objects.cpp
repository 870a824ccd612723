#include "runtime/chat/jinja/objects.hpp"

namespace troupe::jinja {

std::string Namespace::repr(Runtime& runtime) const {
  const DepthGuard guard(runtime);
  std::string text = "<Namespace {";
  const char* separator = "";
  for (const auto& [name, value] : attributes_.entries()) {
    runtime.budget.check_text_size(text.size());
    text += separator + jinja::repr(name, runtime) + ": " + jinja::repr(value, runtime);
    separator = ", ";
  }
  runtime.budget.charge_text(text.size());
  return text + "}>";
}

std::optional<Value> Namespace::attribute(std::string_view name, Runtime&) {
  const Value* value = attributes_.find(name);
  return value ? std::optional(*value) : std::nullopt;
}

void Namespace::set(Value name, Value value, Runtime& runtime) {
  if (const std::string* text = name.string(); text != nullptr && text->starts_with('_')) {
    throw TemplateError(TemplateError::Kind::kSecurity,
                        "Chat templates cannot store underscore-prefixed attributes on a "
                        "namespace, but got " +
                            jinja::repr(name, runtime) + ". Please rename the attribute.");
  }
  attributes_.set(std::move(name), std::move(value), runtime.budget);
}

Loop::Loop(const Value& iterable, int depth, Recurse recurse, Runtime& runtime)
    : Object(iterable.depth() + 1),
      stream_(jinja::iterate(iterable, runtime)),
      length_(jinja::length(iterable, runtime.budget)),
      depth_(depth),
      recurse_(std::move(recurse)),
      runtime_(runtime) {}

const std::optional<Value>& Loop::peek() {
  if (!has_peeked_) {
    after_ = stream_->next();
    has_peeked_ = true;
  }
  return after_;
}

std::optional<Value> Loop::next() {
  std::optional<Value> item = peek();
  has_peeked_ = false;
  if (!item) return std::nullopt;
  ++index0_;
  previous_ = std::move(current_);
  current_ = item;
  return item;
}

/// The length of a generator is found by consuming it.
std::size_t Loop::row_length() {
  if (length_) return *length_;
  std::vector<Value> rest;
  if (peek()) rest.push_back(*after_);
  while (std::optional<Value> item = stream_->next()) {
    runtime_.budget.charge();
    rest.push_back(*std::move(item));
  }
  length_ = static_cast<std::size_t>(index0_ + 1) + rest.size();
  stream_ = jinja::iterate(Value::list(std::move(rest)), runtime_);
  has_peeked_ = false;
  return *length_;
}

bool Loop::changed(const std::vector<Value>& values, Runtime& runtime) {
  const bool is_same = last_changed_ && jinja::equals(Value::list(*last_changed_),
                                                      Value::list(values), runtime.budget);
  last_changed_ = values;
  return !is_same;
}

Value Loop::cycle(const std::vector<Value>& values) const {
  if (values.empty()) fail_type("no items for cycling given");
  return values[static_cast<std::size_t>(index0_) % values.size()];
}

namespace {

/// loop.cycle and loop.changed.
class LoopMethod : public Object {
 public:
  LoopMethod(std::shared_ptr<Loop> loop, bool is_cycle)
      : Object(loop->depth() + 1), loop_(std::move(loop)), is_cycle_(is_cycle) {}
  [[nodiscard]] std::string type_name() const override { return "method"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  Value call(const Arguments& arguments, Runtime& runtime) override {
    if (!arguments.named.empty()) fail_type("loop's methods take no keyword arguments");
    if (is_cycle_) return loop_->cycle(arguments.positional);
    return Value(loop_->changed(arguments.positional, runtime));
  }

 private:
  std::shared_ptr<Loop> loop_;
  bool is_cycle_;
};

}  // namespace

std::optional<Value> Loop::attribute(std::string_view name, Runtime&) {
  if (name == "index") return Value(index0_ + 1);
  if (name == "index0") return Value(index0_);
  if (name == "first") return Value(index0_ == 0);
  if (name == "last") return Value(!peek());
  if (name == "length") return Value::size(row_length());
  if (name == "revindex") return Value(static_cast<std::int64_t>(row_length()) - index0_);
  if (name == "revindex0") return Value(static_cast<std::int64_t>(row_length()) - index0_ - 1);
  if (name == "depth") return Value(std::int64_t{depth_ + 1});
  if (name == "depth0") return Value(std::int64_t{depth_});
  if (name == "previtem") {
    return index0_ == 0 ? Value::undefined("there is no previous item") : *previous_;
  }
  if (name == "nextitem") return peek() ? *after_ : Value::undefined("there is no next item");
  if (name == "cycle" || name == "changed") {
    return Value(
        std::shared_ptr<Object>(std::make_shared<LoopMethod>(shared_from_this(), name == "cycle")));
  }
  return std::nullopt;
}

std::string Loop::repr(Runtime&) const {
  return "<LoopContext " + std::to_string(index0_ + 1) + ">";
}

Value Loop::call(const Arguments& arguments, Runtime&) {
  if (!recurse_) {
    fail_type("The loop must have the 'recursive' marker to be called recursively.");
  }
  if (arguments.positional.size() != 1) fail_type("loop() takes one argument");
  return recurse_(arguments.positional[0], depth_ + 1);
}

}  // namespace troupe::jinja
