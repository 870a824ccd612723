// The expressions of Jinja's grammar.
#include <algorithm>

#include "runtime/chat/jinja/ast_walk.hpp"
#include "runtime/chat/jinja/filters.hpp"
#include "runtime/chat/jinja/parser_impl.hpp"

namespace troupe::jinja {
namespace {

std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kData:
      return "template data / text";
    case Token::Kind::kVariableBegin:
      return "begin of print statement";
    case Token::Kind::kVariableEnd:
      return "end of print statement";
    case Token::Kind::kBlockBegin:
      return "begin of statement block";
    case Token::Kind::kBlockEnd:
      return "end of statement block";
    case Token::Kind::kEnd:
      return "end of template";
    case Token::Kind::kNumber:
      return token.number.get_if<double>() ? "float" : "integer";
    case Token::Kind::kString:
      return "string";
    case Token::Kind::kName:
    case Token::Kind::kOperator:
      return token.text;
  }
  return {};
}

}  // namespace

bool Parser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  advance();
  return true;
}
bool Parser::skip_operator(std::string_view symbol) {
  if (!at_operator(symbol)) return false;
  advance();
  return true;
}
void Parser::fail_expected(std::string_view wanted) const {
  if (current().kind == Token::Kind::kEnd) {
    fail_syntax(current().line,
                "unexpected end of template, expected '" + std::string(wanted) + "'.");
  }
  fail_syntax(current().line,
              "expected token '" + std::string(wanted) + "', got '" + describe(current()) + "'");
}
void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_expected(name);
}
void Parser::expect_operator(std::string_view symbol) {
  if (!skip_operator(symbol)) fail_expected(symbol);
}
void Parser::expect_kind(Token::Kind kind, std::string_view description) {
  if (current().kind != kind) fail_expected(description);
  advance();
}
std::string Parser::expect_any_name() {
  if (current().kind != Token::Kind::kName) fail_expected("name");
  std::string name = current().text;
  advance();
  return name;
}

ExpressionPtr Parser::make(Expression::Node node, int line) {
  auto expression = std::make_unique<Expression>();
  expression->node = std::move(node);
  expression->line = line;
  for_each_child(*expression, [&](const Expression& child) {
    expression->depth = std::max(expression->depth, child.depth + 1);
  });
  if (expression->depth > kMaxExpressionDepth) {
    fail_syntax(line, "an expression is nested more than " + std::to_string(kMaxExpressionDepth) +
                          " levels deep");
  }
  return expression;
}

bool Parser::at_tuple_end(std::initializer_list<std::string_view> end_names) const {
  const Token& token = current();
  if (token.kind == Token::Kind::kVariableEnd || token.kind == Token::Kind::kBlockEnd ||
      at_operator(")")) {
    return true;
  }
  return std::any_of(end_names.begin(), end_names.end(),
                     [&](std::string_view name) { return at_name(name); });
}

ExpressionPtr Parser::parse_tuple(std::initializer_list<std::string_view> end_names,
                                  bool with_conditional, bool in_parentheses) {
  const int line = current().line;
  ListLiteral tuple{{}, true};
  bool has_comma = false;
  while (!at_tuple_end(end_names)) {
    tuple.items.push_back(parse_expression(with_conditional));
    if (!skip_operator(",")) break;
    has_comma = true;
  }
  if (!has_comma) {
    if (!tuple.items.empty()) return std::move(tuple.items.front());
    if (!in_parentheses) {
      fail_syntax(line, "Expected an expression, got '" + describe(current()) + "'");
    }
  }
  return make(std::move(tuple), line);
}

ExpressionPtr Parser::parse_expression(bool with_conditional) {
  const Nesting nesting(*this);
  return with_conditional ? parse_conditional() : parse_or();
}

ExpressionPtr Parser::parse_conditional() {
  const std::size_t first_unknown = unknown_names_.size();
  const int line = current().line;
  ExpressionPtr value = parse_or();
  while (skip_name("if")) {
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise;
    if (skip_name("else")) {
      const Nesting nesting(*this);
      otherwise = parse_conditional();
    }
    value = make(Conditional{std::move(condition), std::move(value), std::move(otherwise)}, line);
    unknown_names_.resize(first_unknown);
  }
  return value;
}

ExpressionPtr Parser::parse_or() {
  ExpressionPtr left = parse_and();
  while (at_name("or")) {
    const int line = current().line;
    advance();
    ExpressionPtr right = parse_and();
    left = make(Logical{false, std::move(left), std::move(right)}, line);
  }
  return left;
}

ExpressionPtr Parser::parse_and() {
  ExpressionPtr left = parse_not();
  while (at_name("and")) {
    const int line = current().line;
    advance();
    ExpressionPtr right = parse_not();
    left = make(Logical{true, std::move(left), std::move(right)}, line);
  }
  return left;
}

ExpressionPtr Parser::parse_not() {
  const int line = current().line;
  if (!skip_name("not")) return parse_comparison();
  const Nesting nesting(*this);
  return make(Unary{Unary::Operator::kNot, parse_not()}, line);
}

ExpressionPtr Parser::parse_comparison() {
  const int line = current().line;
  Comparisons chain;
  chain.first = parse_sum();
  static constexpr std::pair<std::string_view, Comparison> kSymbols[] = {
      {"==", Comparison::kEqual},  {"!=", Comparison::kNotEqual},
      {"<", Comparison::kLess},    {"<=", Comparison::kLessEqual},
      {">", Comparison::kGreater}, {">=", Comparison::kGreaterEqual}};
  while (true) {
    const auto* symbol = std::find_if(std::begin(kSymbols), std::end(kSymbols),
                                      [&](const auto& entry) { return at_operator(entry.first); });
    Comparisons::Step step{Comparisons::Operator::kCompare, Comparison::kEqual, nullptr};
    if (symbol != std::end(kSymbols)) {
      step.comparison = symbol->second;
    } else if (at_name("in")) {
      step.op = Comparisons::Operator::kIn;
    } else if (at_name("not") && next().kind == Token::Kind::kName && next().text == "in") {
      step.op = Comparisons::Operator::kNotIn;
      advance();
    } else {
      break;
    }
    advance();
    step.right = parse_sum();
    chain.steps.push_back(std::move(step));
  }
  return chain.steps.empty() ? std::move(chain.first) : make(std::move(chain), line);
}

ExpressionPtr Parser::parse_sum() {
  ExpressionPtr left = parse_concatenation();
  while (at_operator("+") || at_operator("-")) {
    const int line = current().line;
    const Arithmetic op = at_operator("+") ? Arithmetic::kAdd : Arithmetic::kSubtract;
    advance();
    ExpressionPtr right = parse_concatenation();
    left = make(Binary{op, std::move(left), std::move(right)}, line);
  }
  return left;
}

ExpressionPtr Parser::parse_concatenation() {
  const int line = current().line;
  Concatenation node;
  node.parts.push_back(parse_product());
  while (skip_operator("~")) node.parts.push_back(parse_product());
  if (node.parts.size() == 1) return std::move(node.parts.front());
  node.keeps_markup = escaping_ == Escaping::kOn &&
                      !std::all_of(node.parts.begin(), node.parts.end(),
                                   [](const ExpressionPtr& part) { return is_constant(*part); });
  return make(std::move(node), line);
}

ExpressionPtr Parser::parse_product() {
  ExpressionPtr left = parse_power();
  static constexpr std::pair<std::string_view, Arithmetic> kSymbols[] = {
      {"*", Arithmetic::kMultiply},
      {"/", Arithmetic::kDivide},
      {"//", Arithmetic::kFloorDivide},
      {"%", Arithmetic::kModulo}};
  while (true) {
    const auto* symbol = std::find_if(std::begin(kSymbols), std::end(kSymbols),
                                      [&](const auto& entry) { return at_operator(entry.first); });
    if (symbol == std::end(kSymbols)) return left;
    const int line = current().line;
    advance();
    ExpressionPtr right = parse_power();
    left = make(Binary{symbol->second, std::move(left), std::move(right)}, line);
  }
}

ExpressionPtr Parser::parse_power() {
  ExpressionPtr left = parse_unary(true);
  while (at_operator("**")) {
    const int line = current().line;
    advance();
    ExpressionPtr right = parse_unary(true);
    left = make(Binary{Arithmetic::kPower, std::move(left), std::move(right)}, line);
  }
  return left;
}

ExpressionPtr Parser::parse_unary(bool with_filter) {
  const Nesting nesting(*this);
  const int line = current().line;
  ExpressionPtr expression;
  if (skip_operator("-")) {
    expression = make(Unary{Unary::Operator::kMinus, parse_unary(false)}, line);
  } else if (skip_operator("+")) {
    expression = make(Unary{Unary::Operator::kPlus, parse_unary(false)}, line);
  } else {
    expression = parse_primary();
  }
  expression = parse_postfix(std::move(expression));
  return with_filter ? parse_filters_and_tests(std::move(expression)) : std::move(expression);
}

ExpressionPtr Parser::parse_name() {
  const int line = current().line;
  const std::string name = current().text;
  advance();
  if (name == "true" || name == "True") return make(Literal{Value(true)}, line);
  if (name == "false" || name == "False") return make(Literal{Value(false)}, line);
  if (name == "none" || name == "None") return make(Literal{Value()}, line);
  for (MacroNode* macro : open_macros_) {
    macro->takes_varargs |= name == "varargs";
    macro->takes_kwargs |= name == "kwargs";
    macro->takes_caller |= name == "caller";
  }
  return make(Name{name}, line);
}

ExpressionPtr Parser::parse_primary() {
  const Token& token = current();
  const int line = token.line;
  if (token.kind == Token::Kind::kName) return parse_name();
  if (token.kind == Token::Kind::kString) {
    std::string text;
    for (; current().kind == Token::Kind::kString; advance()) text += current().text;
    return make(Literal{Value(std::move(text))}, line);
  }
  if (token.kind == Token::Kind::kNumber) {
    advance();
    return make(Literal{token.number}, line);
  }
  if (skip_operator("(")) {
    ExpressionPtr expression = parse_tuple({}, true, true);
    expect_operator(")");
    return expression;
  }
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  fail_syntax(line, "unexpected '" + describe(token) + "'");
}

ExpressionPtr Parser::parse_list() {
  const int line = current().line;
  advance();
  ListLiteral list;
  while (!at_operator("]")) {
    if (!list.items.empty()) expect_operator(",");
    if (at_operator("]")) break;
    list.items.push_back(parse_expression());
  }
  expect_operator("]");
  return make(std::move(list), line);
}

ExpressionPtr Parser::parse_dict() {
  const int line = current().line;
  advance();
  DictLiteral dict;
  while (!at_operator("}")) {
    if (!dict.entries.empty()) expect_operator(",");
    if (at_operator("}")) break;
    ExpressionPtr key = parse_expression();
    expect_operator(":");
    dict.entries.emplace_back(std::move(key), parse_expression());
  }
  expect_operator("}");
  return make(std::move(dict), line);
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr expression) {
  while (true) {
    const int line = current().line;
    if (at_operator(".") || at_operator("[")) {
      expression = parse_subscript(std::move(expression));
    } else if (at_operator("(")) {
      CallArguments arguments = parse_arguments();
      expression = make(Call{std::move(expression), std::move(arguments)}, line);
    } else {
      return expression;
    }
  }
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr object) {
  const int line = current().line;
  if (skip_operator(".")) {
    if (current().kind == Token::Kind::kName) {
      return make(Attribute{std::move(object), expect_any_name()}, line);
    }
    if (current().kind != Token::Kind::kNumber || current().number.get_if<double>()) {
      fail_syntax(line, "expected name or number");
    }
    ExpressionPtr key = make(Literal{current().number}, line);
    advance();
    return make(Item{std::move(object), std::move(key)}, line);
  }
  advance();
  Slice slice;
  std::vector<ExpressionPtr> keys;
  bool is_slice = false;
  while (!at_operator("]")) {
    if (is_slice) fail_syntax(line, "a slice with a comma is not supported");
    if (!keys.empty()) expect_operator(",");
    ExpressionPtr key;
    if (!at_operator(":")) key = parse_expression();
    if (!at_operator(":")) {
      keys.push_back(std::move(key));
      continue;
    }
    advance();
    is_slice = keys.empty();
    if (!is_slice) fail_syntax(line, "a slice with a comma is not supported");
    const auto at_end = [&] { return at_operator("]") || at_operator(",") || at_operator(":"); };
    slice.start = std::move(key);
    if (!at_end()) slice.stop = parse_expression();
    if (skip_operator(":") && !at_end()) slice.step = parse_expression();
  }
  advance();
  if (is_slice) {
    slice.object = std::move(object);
    return make(std::move(slice), line);
  }
  ExpressionPtr key =
      keys.size() == 1 ? std::move(keys.front()) : make(ListLiteral{std::move(keys), true}, line);
  return make(Item{std::move(object), std::move(key)}, line);
}

ExpressionPtr Parser::parse_filters_and_tests(ExpressionPtr expression) {
  while (true) {
    const int line = current().line;
    if (at_operator("|")) {
      expression = parse_filters(std::move(expression), false);
    } else if (at_name("is")) {
      expression = parse_test(std::move(expression));
    } else if (at_operator("(")) {
      CallArguments arguments = parse_arguments();
      expression = make(Call{std::move(expression), std::move(arguments)}, line);
    } else {
      return expression;
    }
  }
}

/// input | filter | filter. `starts_inline`: no bar precedes the first filter.
ExpressionPtr Parser::parse_filters(ExpressionPtr input, bool starts_inline) {
  while (starts_inline || skip_operator("|")) {
    starts_inline = false;
    const int line = current().line;
    Filter filter;
    filter.input = std::move(input);
    filter.name = expect_any_name();
    while (skip_operator(".")) filter.name += "." + expect_any_name();
    filter.function = find_filter(filter.name);
    if (!filter.function)
      unknown_names_.push_back({line, "No filter named '" + filter.name + "'."});
    if (at_operator("(")) filter.arguments = parse_arguments();
    input = make(std::move(filter), line);
  }
  return input;
}

ExpressionPtr Parser::parse_test(ExpressionPtr input) {
  const int line = current().line;
  advance();
  const bool is_negated = skip_name("not");
  Test test;
  test.input = std::move(input);
  test.name = expect_any_name();
  while (skip_operator(".")) test.name += "." + expect_any_name();
  test.function = find_test(test.name);
  if (!test.function) unknown_names_.push_back({line, "No test named '" + test.name + "'."});
  const Token& token = current();
  const bool is_operand = token.kind == Token::Kind::kString ||
                          token.kind == Token::Kind::kNumber || at_operator("[") ||
                          at_operator("{") ||
                          (token.kind == Token::Kind::kName && token.text != "else" &&
                           token.text != "or" && token.text != "and");
  if (at_operator("(")) {
    test.arguments = parse_arguments();
  } else if (is_operand) {
    if (at_name("is")) fail_syntax(line, "You cannot chain multiple tests with is");
    test.arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  ExpressionPtr expression = make(std::move(test), line);
  if (!is_negated) return expression;
  return make(Unary{Unary::Operator::kNot, std::move(expression)}, line);
}

CallArguments Parser::parse_arguments() {
  const int line = current().line;
  advance();
  CallArguments arguments;
  const auto ensure = [&](bool holds) {
    if (!holds) fail_syntax(line, "invalid syntax for function call expression");
  };
  for (bool is_first = true; !at_operator(")"); is_first = false) {
    if (!is_first) {
      expect_operator(",");
      if (at_operator(")")) break;
    }
    if (skip_operator("*")) {
      ensure(!arguments.star && !arguments.double_star);
      arguments.star = parse_expression();
    } else if (skip_operator("**")) {
      ensure(!arguments.double_star);
      arguments.double_star = parse_expression();
    } else if (current().kind == Token::Kind::kName && next().kind == Token::Kind::kOperator &&
               next().text == "=") {
      ensure(!arguments.double_star);
      std::string name = expect_any_name();
      advance();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(!arguments.star && !arguments.double_star && arguments.named.empty());
      arguments.positional.push_back(parse_expression());
    }
  }
  expect_operator(")");
  return arguments;
}

}  // namespace troupe::jinja
