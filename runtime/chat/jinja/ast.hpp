#pragma once
// The syntax tree of a template. Built once by the parser, then only read.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/chat/jinja/numbers.hpp"
#include "runtime/chat/jinja/operations.hpp"
#include "runtime/chat/jinja/value.hpp"

namespace troupe::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<Statement>;
/// The bodies of {% block %}, which stand where they are, by name.
using Blocks = std::map<std::string, std::shared_ptr<const Body>, std::less<>>;

/// Whether what an expression prints is escaped for HTML: what {% autoescape %} around it says, and
/// if that is no constant, what it says when it runs.
enum class Escaping { kOff, kOn, kByContext };

using FilterFunction = Value (*)(const Value& input, const Arguments& arguments, Runtime& runtime);
using TestFunction = bool (*)(const Value& input, const Arguments& arguments, Runtime& runtime);

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star;         // *row
  ExpressionPtr double_star;  // **dict
};

struct Literal {
  Value value;
};
struct Name {
  std::string name;
};
struct ListLiteral {
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct Unary {
  enum class Operator { kNot, kMinus, kPlus };
  Operator op;
  ExpressionPtr operand;
};
struct Binary {
  Arithmetic op;
  ExpressionPtr left;
  ExpressionPtr right;
};
struct Logical {
  bool is_and;
  ExpressionPtr left;
  ExpressionPtr right;
};
/// a < b < c: each comparison with the value before it.
struct Comparisons {
  enum class Operator { kCompare, kIn, kNotIn };
  struct Step {
    Operator op;
    Comparison comparison;  // of kCompare
    ExpressionPtr right;
  };
  ExpressionPtr first;
  std::vector<Step> steps;
};
/// a ~ b ~ c.
struct Concatenation {
  std::vector<ExpressionPtr> parts;
  bool keeps_markup = false;  // markup among the parts makes the result markup
};
struct Conditional {
  ExpressionPtr condition;
  ExpressionPtr then;
  ExpressionPtr otherwise;  // may be absent
};
struct Attribute {
  ExpressionPtr object;
  std::string name;
};
struct Item {
  ExpressionPtr object;
  ExpressionPtr key;
};
/// object[start:stop:step]; absent bounds are nullptr.
struct Slice {
  ExpressionPtr object;
  ExpressionPtr start;
  ExpressionPtr stop;
  ExpressionPtr step;
};
struct Call {
  ExpressionPtr callee;
  CallArguments arguments;
};
/// `function` is nullptr for an unknown filter in a branch: that fails only if it is reached.
struct Filter {
  ExpressionPtr input;  // absent: the body of a filter or set block
  std::string name;
  FilterFunction function = nullptr;
  CallArguments arguments;
};
struct Test {
  ExpressionPtr input;
  std::string name;
  TestFunction function = nullptr;
  CallArguments arguments;
};

struct Expression {
  using Node =
      std::variant<Literal, Name, ListLiteral, DictLiteral, Unary, Binary, Logical, Comparisons,
                   Concatenation, Conditional, Attribute, Item, Slice, Call, Filter, Test>;
  Node node;
  int line = 0;
  std::uint32_t depth = 1;  // of the tree below, itself included
};

/// Where an assignment puts values: a name, an attribute of a namespace, or several of them.
struct Target {
  std::string name;
  std::string attribute;  // of the namespace `name`; empty: the name itself
  std::vector<Target> parts;
  bool is_tuple = false;
};

struct Parameter {
  std::string name;
  ExpressionPtr default_value;  // may be absent
};
/// A macro, or the block of a call: parameters and a body in a scope of its own.
struct MacroNode {
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  bool takes_varargs = false;  // the body reads varargs
  bool takes_kwargs = false;
  bool takes_caller = false;
};

struct TextOutput {
  std::string text;
};
struct Output {
  ExpressionPtr value;
  Escaping escaping = Escaping::kOff;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct For {
  Target target;
  ExpressionPtr iterable;
  ExpressionPtr filter;  // may be absent
  bool is_recursive = false;
  Escaping escaping = Escaping::kOff;  // of what a recursive call gives
  Body body;
  Body otherwise;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filter;  // may be absent
  Body body;
};
struct Macro {
  MacroNode macro;
};
struct CallBlock {
  ExpressionPtr call;
  MacroNode caller;
};
struct FilterBlock {
  ExpressionPtr filter;
  Body body;
  Escaping escaping = Escaping::kOff;  // of what the filter gets
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  Body body;
};
/// {% generation %}: the body's text is what the model wrote.
struct Generation {
  Body body;
};
/// {% autoescape %}: a scope in which what is printed is escaped for HTML, or is not.
struct AutoEscape {
  ExpressionPtr is_on;
  Body body;
};
/// {% block %}: without inheritance, a body that sees the template's variables, and those around it
/// only if it is scoped. self.NAME() gives its text once more.
struct Block {
  std::string name;
  std::shared_ptr<const Body> body;
  bool is_scoped = false;
  bool is_required = false;  // fails: only another template could give it
};
struct Break {};
struct Continue {};

struct Statement {
  using Node = std::variant<TextOutput, Output, If, For, Set, SetBlock, Macro, CallBlock,
                            FilterBlock, With, Generation, AutoEscape, Block, Break, Continue>;
  Node node;
  int line = 0;
};

}  // namespace troupe::jinja
