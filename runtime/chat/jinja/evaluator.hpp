#pragma once
// Evaluates a syntax tree.

#include <functional>
#include <string>
#include <vector>

#include "runtime/chat/jinja/scope.hpp"
#include "runtime/chat/jinja/template.hpp"

namespace troupe::jinja {

/// One rendering. Owns the output and every scope captured by a macro; at the end it clears what
/// may form cycles.
class Evaluator : public Runtime {
 public:
  Evaluator(const SyntaxTree& tree, const Variables& variables, const RenderLimits& limits,
            const RenderClock& clock);
  ~Evaluator() override;
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  [[nodiscard]] Rendering run();

  void at_end(std::function<void()> function) override;
  /// Runs a macro's body with its parameters bound, and returns the text.
  Value call_macro(const MacroNode& macro, const ScopePtr& closure, const Arguments& arguments);
  /// The body of a block, to render it again; nullptr if there is no such block.
  [[nodiscard]] const Body* find_block(std::string_view name) const;
  Value call_block(const Body& block);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  Flow run_body(const Body& body, const ScopePtr& scope);
  Flow run_statement(const Statement& statement, const ScopePtr& scope);
  Flow run_if(const If& node, const ScopePtr& scope);
  void run_for(const For& node, const Value& iterable, const ScopePtr& scope, int depth);
  void run_call_block(const CallBlock& node, const ScopePtr& scope);
  void run_generation(const Generation& node, const ScopePtr& scope);
  Flow run_autoescape(const AutoEscape& node, const ScopePtr& scope);
  Flow run_block(const Block& node, const ScopePtr& scope);
  void run_output(const Output& node, const ScopePtr& scope);
  /// Returns the text that `body` emits, and how it ended in `flow`.
  std::string capture(const Body& body, const ScopePtr& scope, Flow& flow);
  void assign(const Target& target, const Value& value, const ScopePtr& scope);
  Value make_macro(const MacroNode& macro, const ScopePtr& scope);
  void emit(std::string_view text);
  /// Emitted text as a value.
  [[nodiscard]] Value captured(std::string text, Escaping escaping) const;
  [[nodiscard]] bool is_on(Escaping escaping) const;

  Value evaluate(const Expression& expression, const ScopePtr& scope);
  Value evaluate_call(const Call& call, const ScopePtr& scope, const Value* caller);
  Value apply_filter(const Filter& filter, const Value& input, const ScopePtr& scope);
  /// Applies the chain of filters that ends in `last` to `text`.
  Value apply_filters(const Filter& last, const Value& text, const ScopePtr& scope);
  Value concatenate(const Concatenation& node, const ScopePtr& scope);
  bool evaluate_comparisons(const Comparisons& chain, const ScopePtr& scope);
  Value evaluate_bound(const ExpressionPtr& bound, const ScopePtr& scope);
  Arguments evaluate_arguments(const CallArguments& arguments, const ScopePtr& scope);

  const SyntaxTree& tree_;
  ScopePtr root_;
  std::string* out_;
  std::string text_;
  std::vector<std::pair<std::size_t, std::size_t>> generation_spans_;
  std::vector<std::function<void()>> at_end_;
};

}  // namespace troupe::jinja
