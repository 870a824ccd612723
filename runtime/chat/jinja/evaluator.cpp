#include "runtime/chat/jinja/evaluator.hpp"

#include "runtime/base/check.hpp"
#include "runtime/chat/jinja/ast_walk.hpp"
#include "runtime/chat/jinja/methods.hpp"
#include "runtime/chat/jinja/objects.hpp"
#include "runtime/chat/jinja/parser.hpp"

namespace troupe::jinja {
namespace {

/// A macro as a value: its body and its defining scope.
class MacroObject : public Object {
 public:
  MacroObject(const MacroNode& macro, ScopePtr closure, Evaluator& evaluator)
      : macro_(macro), closure_(std::move(closure)), evaluator_(evaluator) {}

  [[nodiscard]] std::string type_name() const override { return "Macro"; }
  [[nodiscard]] std::string repr(Runtime&) const override {
    return "<Macro '" + macro_.name + "'>";
  }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name, Runtime& runtime) override {
    if (name == "name") return Value(macro_.name);
    if (name == "catch_varargs") return Value(macro_.takes_varargs);
    if (name == "catch_kwargs") return Value(macro_.takes_kwargs);
    if (name == "caller") return Value(macro_.takes_caller);
    if (name != "arguments") return std::nullopt;
    std::vector<Value> names;
    runtime.budget.charge(macro_.parameters.size());
    for (const Parameter& parameter : macro_.parameters) names.emplace_back(parameter.name);
    return Value::tuple(std::move(names));
  }
  [[nodiscard]] bool is_callable() const override { return true; }
  Value call(const Arguments& arguments, Runtime&) override {
    return evaluator_.call_macro(macro_, closure_, arguments);
  }

 private:
  const MacroNode& macro_;
  ScopePtr closure_;
  Evaluator& evaluator_;
};

/// self.NAME: a callable block.
class BlockReference : public Object {
 public:
  BlockReference(const Body& block, Evaluator& evaluator) : block_(block), evaluator_(evaluator) {}
  [[nodiscard]] std::string type_name() const override { return "BlockReference"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  Value call(const Arguments& arguments, Runtime&) override {
    if (!arguments.positional.empty() || !arguments.named.empty()) {
      fail_type("a block takes no arguments");
    }
    return evaluator_.call_block(block_);
  }

 private:
  const Body& block_;
  Evaluator& evaluator_;
};

/// The variable `self`: the blocks of the template.
class TemplateReference : public Object {
 public:
  explicit TemplateReference(Evaluator& evaluator) : evaluator_(evaluator) {}
  [[nodiscard]] std::string type_name() const override { return "TemplateReference"; }
  [[nodiscard]] std::string repr(Runtime&) const override { return "<TemplateReference None>"; }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name, Runtime&) override {
    const Body* block = evaluator_.find_block(name);
    if (block == nullptr) return std::nullopt;
    return Value(std::shared_ptr<Object>(std::make_shared<BlockReference>(*block, evaluator_)));
  }

 private:
  Evaluator& evaluator_;
};

/// Indexes the named arguments of a call.
class NamedPlaces {
 public:
  explicit NamedPlaces(const Arguments& arguments) : arguments_(arguments) {
    while (num_places_ < arguments.named.size()) add_next();
  }
  [[nodiscard]] std::size_t find(std::string_view name) const {
    const auto is_here = [&](std::size_t i) { return arguments_.named[i].first == name; };
    if (num_places_ > kFewEntries) return index_.find(keyed_hash(name), is_here);
    for (std::size_t i = 0; i < num_places_; ++i) {
      if (is_here(i)) return i;
    }
    return HashIndex::kNone;
  }
  void add_last() { add_next(); }

 private:
  void add_next() {
    ++num_places_;
    if (num_places_ <= kFewEntries) return;
    const std::size_t first = num_places_ == kFewEntries + 1 ? 0 : num_places_ - 1;
    for (std::size_t i = first; i < num_places_; ++i) {
      index_.add(keyed_hash(arguments_.named[i].first), i);
    }
  }

  const Arguments& arguments_;
  HashIndex index_;  // empty up to kFewEntries
  std::size_t num_places_ = 0;
};

}  // namespace

Template::Template(std::string_view source) : tree_(parse(source)) {}

Rendering Template::render(const Variables& variables, const RenderLimits& limits,
                           const RenderClock& clock) const {
  return Evaluator(tree_, variables, limits, clock).run();
}

Evaluator::Evaluator(const SyntaxTree& tree, const Variables& variables, const RenderLimits& limits,
                     const RenderClock& clock)
    : Runtime(Budget(limits.work, limits.max_steps, limits.max_output_bytes), clock.unix_us,
              clock.utc_offset_s),
      tree_(tree),
      root_(std::make_shared<Scope>()),
      out_(&text_) {
  for (const auto& [name, value] : variables) root_->set(name, value);
}

Evaluator::~Evaluator() {
  for (const std::function<void()>& function : at_end_) function();
}

void Evaluator::at_end(std::function<void()> function) { at_end_.push_back(std::move(function)); }

Rendering Evaluator::run() {
  run_body(tree_.body, root_);
  return {std::move(text_), std::move(generation_spans_)};
}

void Evaluator::emit(std::string_view text) {
  budget.charge(1 + text.size() / 16);
  budget.check_text_size(out_->size() + text.size());
  out_->append(text);
}

bool Evaluator::is_on(Escaping escaping) const {
  return escaping == Escaping::kByContext ? escapes : escaping == Escaping::kOn;
}

Value Evaluator::captured(std::string text, Escaping escaping) const {
  return is_on(escaping) ? Value::markup(std::move(text)) : Value(std::move(text));
}

Evaluator::Flow Evaluator::run_body(const Body& body, const ScopePtr& scope) {
  const DepthGuard guard(*this);
  for (const Statement& statement : body) {
    const Flow flow = run_statement(statement, scope);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

std::string Evaluator::capture(const Body& body, const ScopePtr& scope, Flow& flow) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  try {
    flow = run_body(body, scope);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  return text;
}

Evaluator::Flow Evaluator::run_statement(const Statement& statement, const ScopePtr& scope) {
  budget.charge();
  return std::visit(
      Overloaded{[&](const TextOutput& node) {
                   emit(node.text);
                   return Flow::kNext;
                 },
                 [&](const Output& node) {
                   run_output(node, scope);
                   return Flow::kNext;
                 },
                 [&](const If& node) { return run_if(node, scope); },
                 [&](const For& node) {
                   run_for(node, evaluate(*node.iterable, scope), scope, 0);
                   return Flow::kNext;
                 },
                 [&](const Set& node) {
                   assign(node.target, evaluate(*node.value, scope), scope);
                   return Flow::kNext;
                 },
                 [&](const SetBlock& node) {
                   Flow flow = Flow::kNext;
                   Value text = captured(capture(node.body, std::make_shared<Scope>(scope), flow),
                                         Escaping::kByContext);
                   if (flow != Flow::kNext) return flow;
                   if (node.filter) {
                     text = apply_filters(std::get<Filter>(node.filter->node), text, scope);
                     if (escapes) text = captured(to_text(text, *this), Escaping::kByContext);
                   }
                   assign(node.target, text, scope);
                   return Flow::kNext;
                 },
                 [&](const Macro& node) {
                   scope->set(node.macro.name, make_macro(node.macro, scope));
                   return Flow::kNext;
                 },
                 [&](const CallBlock& node) {
                   run_call_block(node, scope);
                   return Flow::kNext;
                 },
                 [&](const FilterBlock& node) {
                   Flow flow = Flow::kNext;
                   const Value text = captured(
                       capture(node.body, std::make_shared<Scope>(scope), flow), node.escaping);
                   if (flow != Flow::kNext) return flow;
                   const auto& filter = std::get<Filter>(node.filter->node);
                   emit(to_text(apply_filters(filter, text, scope), *this));
                   return Flow::kNext;
                 },
                 [&](const With& node) {
                   const auto inner = std::make_shared<Scope>(scope);
                   std::vector<Value> values;
                   for (const auto& [target, value] : node.assignments) {
                     values.push_back(evaluate(*value, scope));
                   }
                   for (std::size_t i = 0; i < values.size(); ++i) {
                     assign(node.assignments[i].first, values[i], inner);
                   }
                   return run_body(node.body, inner);
                 },
                 [&](const Generation& node) {
                   run_generation(node, scope);
                   return Flow::kNext;
                 },
                 [&](const AutoEscape& node) { return run_autoescape(node, scope); },
                 [&](const Block& node) { return run_block(node, scope); },
                 [](const Break&) { return Flow::kBreak; },
                 [](const Continue&) { return Flow::kContinue; }},
      statement.node);
}

Evaluator::Flow Evaluator::run_if(const If& node, const ScopePtr& scope) {
  for (const auto& [condition, body] : node.branches) {
    if (is_true(evaluate(*condition, scope))) return run_body(body, scope);
  }
  return run_body(node.otherwise, scope);
}

void Evaluator::run_for(const For& node, const Value& iterable, const ScopePtr& scope, int depth) {
  const DepthGuard guard(*this);
  Value row = iterable;
  if (node.filter) {
    const StreamPtr all = iterate(iterable, *this);
    row = Value(make_stream(
        [this, &node, scope, all]() -> std::optional<Value> {
          while (std::optional<Value> item = all->next()) {
            budget.charge();
            const auto inner = std::make_shared<Scope>(scope);
            assign(node.target, *item, inner);
            if (is_true(evaluate(*node.filter, inner))) return item;
          }
          return std::nullopt;
        },
        all->depth() + 1));
  }
  Loop::Recurse recurse;
  if (node.is_recursive) {
    recurse = [this, &node, scope](const Value& values, int level) {
      std::string text;
      std::string* const outer = std::exchange(out_, &text);
      try {
        run_for(node, values, scope, level);
      } catch (...) {
        out_ = outer;
        throw;
      }
      out_ = outer;
      return captured(std::move(text), node.escaping);
    };
  }
  const auto loop = std::make_shared<Loop>(row, depth, std::move(recurse), *this);
  // As in Jinja, the else part also runs if each iteration was left by break or continue.
  bool has_finished_pass = false;
  while (const std::optional<Value> item = loop->next()) {
    budget.charge();
    const auto inner = std::make_shared<Scope>(scope);
    inner->set("loop", Value(std::shared_ptr<Object>(loop)));
    assign(node.target, *item, inner);
    const Flow flow = run_body(node.body, inner);
    has_finished_pass |= flow == Flow::kNext;
    if (flow == Flow::kBreak) break;
  }
  if (!has_finished_pass) run_body(node.otherwise, std::make_shared<Scope>(scope));
}

void Evaluator::run_call_block(const CallBlock& node, const ScopePtr& scope) {
  const Value caller = make_macro(node.caller, scope);
  emit(to_text(evaluate_call(std::get<Call>(node.call->node), scope, &caller), *this));
}

void Evaluator::run_generation(const Generation& node, const ScopePtr& scope) {
  Flow flow = Flow::kNext;
  const std::string text = capture(node.body, std::make_shared<Scope>(scope), flow);
  generation_spans_.emplace_back(text_.size(), text_.size() + text.size());
  emit(text);
}

void Evaluator::run_output(const Output& node, const ScopePtr& scope) {
  const Value value = evaluate(*node.value, scope);
  if (is_on(node.escaping)) {
    emit(to_markup(value, *this));
  } else if (const std::string* text = value.string()) {
    emit(*text);
  } else {
    emit(to_text(value, *this));
  }
}

Evaluator::Flow Evaluator::run_autoescape(const AutoEscape& node, const ScopePtr& scope) {
  const auto inner = std::make_shared<Scope>(scope);
  const bool outer = std::exchange(escapes, is_true(evaluate(*node.is_on, scope)));
  const Flow flow = run_body(node.body, inner);
  escapes = outer;
  return flow;
}

Evaluator::Flow Evaluator::run_block(const Block& node, const ScopePtr& scope) {
  if (node.is_required) {
    throw TemplateError(TemplateError::Kind::kType, "Required block '" + node.name + "' not found");
  }
  return run_body(*node.body, std::make_shared<Scope>(node.is_scoped ? scope : root_));
}

const Body* Evaluator::find_block(std::string_view name) const {
  const auto found = tree_.blocks.find(name);
  return found == tree_.blocks.end() ? nullptr : found->second.get();
}

Value Evaluator::call_block(const Body& block) {
  Flow flow = Flow::kNext;
  return captured(capture(block, std::make_shared<Scope>(root_), flow), Escaping::kByContext);
}

void Evaluator::assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (target.is_tuple) {
    const std::vector<Value> values = to_vector(value, *this);
    if (values.size() != target.parts.size()) {
      fail_value((values.size() < target.parts.size() ? "not enough" : "too many") +
                 std::string(" values to unpack (expected ") + std::to_string(target.parts.size()) +
                 ", got " + std::to_string(values.size()) + ")");
    }
    for (std::size_t i = 0; i < values.size(); ++i) assign(target.parts[i], values[i], scope);
  } else if (target.attribute.empty()) {
    budget.charge_read(target.name.size());
    scope->set(target.name, value);
  } else {
    const Value* variable = scope->find(target.name, budget);
    const auto name_space = variable ? variable->object_as<Namespace>() : nullptr;
    if (!name_space) fail_type("cannot assign attribute on non-namespace object");
    name_space->set(Value(target.attribute), value, *this);
  }
}

Value Evaluator::make_macro(const MacroNode& macro, const ScopePtr& scope) {
  // The macro holds the scope, and the scope will hold the macro: a cycle.
  budget.charge(kStepsPerCycle);
  at_end([scope] { scope->clear(); });
  return Value(std::shared_ptr<Object>(std::make_shared<MacroObject>(macro, scope, *this)));
}

Value Evaluator::call_macro(const MacroNode& macro, const ScopePtr& closure,
                            const Arguments& arguments) {
  const auto scope = std::make_shared<Scope>(closure);
  budget.charge(arguments.positional.size() + arguments.named.size());
  NamedPlaces named(arguments);
  std::vector<bool> is_used(arguments.named.size(), false);
  const auto take_named = [&](std::string_view name) -> const Value* {
    const std::size_t place = named.find(name);
    if (place == HashIndex::kNone) return nullptr;
    is_used[place] = true;
    return &arguments.named[place].second;
  };
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    budget.charge_read(parameter.name.size());
    if (i < arguments.positional.size()) {
      scope->set(parameter.name, arguments.positional[i]);
    } else if (const Value* given = take_named(parameter.name)) {
      scope->set(parameter.name, *given);
    } else if (parameter.default_value) {
      scope->set(parameter.name, evaluate(*parameter.default_value, scope));
    } else {
      scope->set(parameter.name,
                 Value::undefined("parameter '" + parameter.name + "' was not provided"));
    }
  }
  if (macro.takes_caller) {
    const Value* caller = take_named("caller");
    scope->set("caller", caller ? *caller : Value::undefined("No caller defined"));
  }
  Dict rest;
  for (std::size_t i = 0; i < is_used.size(); ++i) {
    if (is_used[i]) continue;
    const auto& [name, value] = arguments.named[i];
    if (!macro.takes_kwargs) {
      fail_type("macro '" + macro.name + "' takes no keyword argument '" + name + "'");
    }
    rest.set(name, value);
  }
  if (macro.takes_kwargs) scope->set("kwargs", Value::dict(std::move(rest)));
  const std::size_t num_bound = std::min(macro.parameters.size(), arguments.positional.size());
  std::vector<Value> others(arguments.positional.begin() + static_cast<std::ptrdiff_t>(num_bound),
                            arguments.positional.end());
  if (!others.empty() && !macro.takes_varargs) {
    fail_type("macro '" + macro.name + "' takes not more than " +
              std::to_string(macro.parameters.size()) + " argument(s)");
  }
  if (macro.takes_varargs) scope->set("varargs", Value::tuple(std::move(others)));
  Flow flow = Flow::kNext;
  return captured(capture(macro.body, scope, flow), Escaping::kByContext);
}

Value Evaluator::evaluate(const Expression& expression, const ScopePtr& scope) {
  const DepthGuard guard(*this);
  budget.charge();
  return std::visit(
      Overloaded{
          [](const Literal& node) { return node.value; },
          [&](const Name& node) {
            if (const Value* value = scope->find(node.name, budget)) return *value;
            if (const Value* global = find_global(node.name)) return *global;
            if (node.name == "self") {
              return Value(std::shared_ptr<Object>(std::make_shared<TemplateReference>(*this)));
            }
            return Value::undefined("'" + node.name + "' is undefined");
          },
          [&](const ListLiteral& node) {
            std::vector<Value> items;
            items.reserve(node.items.size());
            for (const ExpressionPtr& item : node.items) items.push_back(evaluate(*item, scope));
            return node.is_tuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
          },
          [&](const DictLiteral& node) {
            Dict dict;
            for (const auto& [key, value] : node.entries) {
              Value evaluated_key = evaluate(*key, scope);
              dict.set(std::move(evaluated_key), evaluate(*value, scope), budget);
            }
            return Value::dict(std::move(dict));
          },
          [&](const Unary& node) {
            const Value operand = evaluate(*node.operand, scope);
            switch (node.op) {
              case Unary::Operator::kNot:
                return Value(!is_true(operand));
              case Unary::Operator::kMinus:
                return unary_minus(operand);
              case Unary::Operator::kPlus:
                return unary_plus(operand);
            }
            CHECK(false);
          },
          [&](const Binary& node) {
            const Value left = evaluate(*node.left, scope);
            return binary(node.op, left, evaluate(*node.right, scope), *this);
          },
          [&](const Logical& node) {
            Value left = evaluate(*node.left, scope);
            return is_true(left) == node.is_and ? evaluate(*node.right, scope) : left;
          },
          [&](const Comparisons& node) { return Value(evaluate_comparisons(node, scope)); },
          [&](const Concatenation& node) { return concatenate(node, scope); },
          [&](const Conditional& node) {
            if (is_true(evaluate(*node.condition, scope))) return evaluate(*node.then, scope);
            if (node.otherwise) return evaluate(*node.otherwise, scope);
            return Value::undefined(
                "the inline if-expression evaluated to false and no else section was defined.");
          },
          [&](const Attribute& node) {
            return get_attribute(evaluate(*node.object, scope), node.name, *this);
          },
          [&](const Item& node) {
            const Value object = evaluate(*node.object, scope);
            return get_item(object, evaluate(*node.key, scope), *this);
          },
          [&](const Slice& node) {
            const Value object = evaluate(*node.object, scope);
            const Value start = evaluate_bound(node.start, scope);
            const Value stop = evaluate_bound(node.stop, scope);
            return get_slice(object, start, stop, evaluate_bound(node.step, scope), *this);
          },
          [&](const Call& node) { return evaluate_call(node, scope, nullptr); },
          [&](const Filter& node) {
            return apply_filter(node, evaluate(*node.input, scope), scope);
          },
          [&](const Test& node) {
            if (!node.function) fail_type("No test named '" + node.name + "' found.");
            const Value input = evaluate(*node.input, scope);
            return Value(node.function(input, evaluate_arguments(node.arguments, scope), *this));
          }},
      expression.node);
}

Value Evaluator::concatenate(const Concatenation& node, const ScopePtr& scope) {
  std::vector<Value> parts;
  bool is_markup = false;
  if (node.keeps_markup) {
    for (const ExpressionPtr& part : node.parts) {
      parts.push_back(evaluate(*part, scope));
      is_markup |= parts.back().is_markup();
    }
  }
  std::string text;
  for (std::size_t i = 0; i < node.parts.size(); ++i) {
    const Value part = node.keeps_markup ? parts[i] : evaluate(*node.parts[i], scope);
    text += is_markup ? to_markup(part, *this) : to_text(part, *this);
    budget.check_text_size(text.size());
  }
  return is_markup ? Value::markup(std::move(text)) : Value(std::move(text));
}

Value Evaluator::evaluate_bound(const ExpressionPtr& bound, const ScopePtr& scope) {
  return bound ? evaluate(*bound, scope) : Value();
}

bool Evaluator::evaluate_comparisons(const Comparisons& chain, const ScopePtr& scope) {
  Value left = evaluate(*chain.first, scope);
  for (const Comparisons::Step& step : chain.steps) {
    Value right = evaluate(*step.right, scope);
    const bool holds =
        step.op == Comparisons::Operator::kCompare
            ? compare(step.comparison, left, right, budget)
            : contains(right, left, *this) == (step.op == Comparisons::Operator::kIn);
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::evaluate_call(const Call& node, const ScopePtr& scope, const Value* caller) {
  const Value callee = evaluate(*node.callee, scope);
  Arguments arguments = evaluate_arguments(node.arguments, scope);
  if (caller) arguments.named.emplace_back("caller", *caller);
  return call(callee, arguments, *this);
}

Value Evaluator::apply_filter(const Filter& filter, const Value& input, const ScopePtr& scope) {
  if (!filter.function) fail_type("No filter named '" + filter.name + "' found.");
  return filter.function(input, evaluate_arguments(filter.arguments, scope), *this);
}

Value Evaluator::apply_filters(const Filter& last, const Value& text, const ScopePtr& scope) {
  if (!last.input) return apply_filter(last, text, scope);
  return apply_filter(last, apply_filters(std::get<Filter>(last.input->node), text, scope), scope);
}

Arguments Evaluator::evaluate_arguments(const CallArguments& node, const ScopePtr& scope) {
  Arguments arguments;
  arguments.positional.reserve(node.positional.size());
  for (const ExpressionPtr& argument : node.positional) {
    arguments.positional.push_back(evaluate(*argument, scope));
  }
  NamedPlaces names(arguments);
  const auto add_named = [&](const std::string& name, Value value) {
    budget.charge_read(name.size());
    if (names.find(name) != HashIndex::kNone) fail_type("keyword argument repeated: " + name);
    arguments.named.emplace_back(name, std::move(value));
    names.add_last();
  };
  for (const auto& [name, argument] : node.named) add_named(name, evaluate(*argument, scope));
  if (node.star) {
    for (Value& value : to_vector(evaluate(*node.star, scope), *this)) {
      arguments.positional.push_back(std::move(value));
    }
  }
  if (node.double_star) {
    const Value values = evaluate(*node.double_star, scope);
    if (!values.dict()) fail_type("argument after ** must be a mapping, not " + type_name(values));
    for (const auto& [key, value] : values.dict()->entries()) {
      if (!key.is_string()) fail_type("keywords must be strings");
      add_named(*key.string(), value);
    }
  }
  return arguments;
}

}  // namespace troupe::jinja
