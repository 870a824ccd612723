#include "runtime/chat/jinja/parser.hpp"

#include <algorithm>
#include <initializer_list>

#include "runtime/chat/jinja/ast_walk.hpp"
#include "runtime/chat/jinja/filters.hpp"
#include "runtime/chat/jinja/lexer.hpp"
#include "runtime/chat/jinja/parser_impl.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {

namespace {

bool is_blank(const Body& body) {
  return std::all_of(body.begin(), body.end(), [](const Statement& statement) {
    const auto* text = std::get_if<TextOutput>(&statement.node);
    return text != nullptr && !text->text.empty() && strip(text->text).empty();
  });
}

}  // namespace

/// Whether Jinja evaluates it at compile time, where all text is plain.
bool Parser::is_constant(const Expression& expression) {
  if (std::holds_alternative<Name>(expression.node) ||
      std::holds_alternative<Call>(expression.node)) {
    return false;
  }
  bool is_all_constant = true;
  for_each_child(expression, [&](const Expression& child) {
    is_all_constant = is_all_constant && is_constant(child);
  });
  return is_all_constant;
}

SyntaxTree parse(std::string_view source) { return Parser(tokenize(source)).parse_template(); }

SyntaxTree Parser::parse_template() {
  Body body = parse_body({});
  fail_unknown_names(0);
  return {std::move(body), std::move(blocks_)};
}

Output Parser::make_output(ExpressionPtr value) const {
  const bool is_plain = escaping_ == Escaping::kByContext && is_constant(*value);
  return {std::move(value), is_plain ? Escaping::kOff : escaping_};
}

void Parser::fail_unknown_names(std::size_t first) const {
  if (unknown_names_.size() > first) {
    fail_syntax(unknown_names_[first].line, unknown_names_[first].message);
  }
}

/// Parses statements up to a tag named in `ends`, which becomes the current token. Pre: the current
/// token is the first after the opening tag.
Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(*this);
  Body body;
  while (true) {
    const Token& token = current();
    if (token.kind == Token::Kind::kEnd) {
      if (ends.size() == 0) return body;
      std::string names;
      for (const std::string_view end : ends) {
        names += (names.empty() ? "'" : " or '") + std::string(end) + "'";
      }
      fail_syntax(
          token.line,
          "Unexpected end of template. Jinja was looking for the following tags: " + names + ".");
    }
    if (token.kind == Token::Kind::kData) {
      body.push_back({TextOutput{token.text}, token.line});
      advance();
    } else if (token.kind == Token::Kind::kVariableBegin) {
      const int line = token.line;
      advance();
      body.push_back({make_output(parse_tuple({})), line});
      expect_kind(Token::Kind::kVariableEnd, "end of print statement");
    } else {
      advance();  // the start of a block
      for (const std::string_view end : ends) {
        if (at_name(end)) return body;
      }
      parse_statement(body);
      expect_kind(Token::Kind::kBlockEnd, "end of statement block");
    }
  }
}

/// Parses the body of the tag just read up to `end`, which is skipped.
Body Parser::parse_block_body(std::string_view end) {
  expect_block_end();
  Body body = parse_body({end});
  advance();
  return body;
}

void Parser::expect_block_end() {
  skip_operator(":");
  expect_kind(Token::Kind::kBlockEnd, "end of statement block");
}

void Parser::parse_statement(Body& body) {
  if (current().kind != Token::Kind::kName) fail_syntax(current().line, "tag name expected");
  const std::string tag = current().text;
  const int line = current().line;
  advance();
  const std::size_t first_unknown = unknown_names_.size();
  if (tag == "if") {
    body.push_back({parse_if(), line});
    unknown_names_.resize(first_unknown);  // they fail when evaluated
    return;
  }
  if (tag == "print") return parse_print(body);
  if (tag == "for") {
    body.push_back({parse_for(), line});
  } else if (tag == "set") {
    parse_set(body, line);
    return;
  } else if (tag == "macro") {
    body.push_back({parse_macro(), line});
  } else if (tag == "call") {
    body.push_back({parse_call_block(line), line});
  } else if (tag == "filter") {
    ExpressionPtr filter = parse_filters(nullptr, true);
    body.push_back(
        {FilterBlock{std::move(filter), parse_block_body("endfilter"), escaping_}, line});
  } else if (tag == "with") {
    body.push_back({parse_with(), line});
  } else if (tag == "generation") {
    const int loops = std::exchange(num_loops_, 0);
    body.push_back({Generation{parse_block_body("endgeneration")}, line});
    num_loops_ = loops;
  } else if (tag == "block") {
    body.push_back({parse_block(), line});
  } else if (tag == "break" || tag == "continue") {
    if (num_loops_ == 0) fail_syntax(line, "'" + tag + "' outside loop");
    if (tag == "break") {
      body.push_back({Break{}, line});
    } else {
      body.push_back({Continue{}, line});
    }
  } else if (tag == "include" || tag == "import" || tag == "from" || tag == "extends") {
    fail_syntax(line, "'" + tag + "' is not possible: a chat template is a single template");
  } else if (tag == "autoescape") {
    body.push_back({parse_autoescape(), line});
  } else {
    fail_syntax(line, "Encountered unknown tag '" + tag + "'.");
  }
  fail_unknown_names(first_unknown);
}

If Parser::parse_if() {
  If node;
  while (true) {
    ExpressionPtr condition = parse_tuple({}, false);
    expect_block_end();
    node.branches.emplace_back(std::move(condition), parse_body({"elif", "else", "endif"}));
    const std::string tag = current().text;
    advance();
    if (tag == "elif") continue;
    if (tag == "else") node.otherwise = parse_block_body("endif");
    return node;
  }
}

For Parser::parse_for() {
  For node;
  node.target = parse_target(false);
  if (node.target.name == "loop") {
    fail_syntax(current().line, "Can't assign to special loop variable in for-loop target");
  }
  expect_name("in");
  node.iterable = parse_tuple({"recursive"}, false);
  if (skip_name("if")) node.filter = parse_expression();
  node.is_recursive = skip_name("recursive");
  node.escaping = escaping_;
  expect_block_end();
  ++num_loops_;
  node.body = parse_body({"endfor", "else"});
  --num_loops_;
  const bool has_else = current().text == "else";
  advance();
  if (has_else) node.otherwise = parse_block_body("endfor");
  return node;
}

void Parser::parse_set(Body& body, int line) {
  Target target = parse_target(true);
  if (skip_operator("=")) {
    body.push_back({Set{std::move(target), parse_tuple({})}, line});
    return;
  }
  ExpressionPtr filter = parse_filters(nullptr, false);
  body.push_back(
      {SetBlock{std::move(target), std::move(filter), parse_block_body("endset")}, line});
}

void Parser::parse_print(Body& body) {
  for (bool is_first = true; current().kind != Token::Kind::kBlockEnd; is_first = false) {
    if (!is_first) expect_operator(",");
    const int line = current().line;
    body.push_back({make_output(parse_expression()), line});
  }
}

With Parser::parse_with() {
  With node;
  while (current().kind != Token::Kind::kBlockEnd) {
    if (!node.assignments.empty()) expect_operator(",");
    Target target = parse_target(false);
    expect_operator("=");
    node.assignments.emplace_back(std::move(target), parse_expression());
  }
  node.body = parse_block_body("endwith");
  return node;
}

Block Parser::parse_block() {
  const int line = current().line;
  Block node;
  node.name = expect_any_name();
  if (!blocks_.emplace(node.name, nullptr).second) {
    fail_syntax(line, "block '" + node.name + "' defined twice");
  }
  node.is_scoped = skip_name("scoped");
  node.is_required = skip_name("required");
  const int loops = std::exchange(num_loops_, 0);
  const Escaping escaping = std::exchange(escaping_, Escaping::kOff);
  node.body = std::make_shared<const Body>(parse_block_body("endblock"));
  escaping_ = escaping;
  num_loops_ = loops;
  if (node.is_required && !is_blank(*node.body)) {
    fail_syntax(line, "Required blocks can only contain comments or whitespace");
  }
  blocks_[node.name] = node.body;
  if (at_name(node.name)) advance();
  return node;
}

AutoEscape Parser::parse_autoescape() {
  AutoEscape node;
  node.is_on = parse_expression();
  const auto* constant = std::get_if<Literal>(&node.is_on->node);
  const Escaping escaping = std::exchange(escaping_, constant == nullptr ? Escaping::kByContext
                                                     : is_true(constant->value) ? Escaping::kOn
                                                                                : Escaping::kOff);
  node.body = parse_block_body("endautoescape");
  escaping_ = escaping;
  return node;
}

std::vector<Parameter> Parser::parse_parameters() {
  std::vector<Parameter> parameters;
  expect_operator("(");
  while (!at_operator(")")) {
    if (!parameters.empty()) expect_operator(",");
    Parameter parameter{expect_any_name(), nullptr};
    if (skip_operator("=")) {
      parameter.default_value = parse_expression();
    } else if (!parameters.empty() && parameters.back().default_value) {
      fail_syntax(current().line, "non-default argument follows default argument");
    }
    parameters.push_back(std::move(parameter));
  }
  advance();
  return parameters;
}

void Parser::parse_macro_body(MacroNode& macro, std::string_view end) {
  const int line = current().line;
  const int loops = std::exchange(num_loops_, 0);
  open_macros_.push_back(&macro);
  macro.body = parse_block_body(end);
  open_macros_.pop_back();
  num_loops_ = loops;
  const auto caller =
      std::find_if(macro.parameters.begin(), macro.parameters.end(),
                   [](const Parameter& parameter) { return parameter.name == "caller"; });
  if (macro.takes_caller && caller != macro.parameters.end()) {
    if (!caller->default_value) {
      fail_syntax(line,
                  "When defining macros or call blocks the special \"caller\" argument must be "
                  "omitted or be given a default.");
    }
    macro.takes_caller = false;  // it is an ordinary parameter
  }
}

Macro Parser::parse_macro() {
  Macro node;
  node.macro.name = expect_any_name();
  node.macro.parameters = parse_parameters();
  parse_macro_body(node.macro, "endmacro");
  return node;
}

CallBlock Parser::parse_call_block(int line) {
  CallBlock node;
  node.caller.name = "caller";
  if (at_operator("(")) node.caller.parameters = parse_parameters();
  node.call = parse_expression();
  if (!std::holds_alternative<Call>(node.call->node)) fail_syntax(line, "expected call");
  parse_macro_body(node.caller, "endcall");
  return node;
}

/// A name, ns.attribute, or several with commas, in parentheses or not.
Target Parser::parse_target(bool with_namespace) {
  Target first = parse_single_target(with_namespace);
  if (!at_operator(",")) return first;
  Target tuple;
  tuple.is_tuple = true;
  tuple.parts.push_back(std::move(first));
  while (skip_operator(",")) {
    if (current().kind != Token::Kind::kName && !at_operator("(")) break;
    if (at_name("in")) break;
    tuple.parts.push_back(parse_single_target(with_namespace));
  }
  return tuple;
}

Target Parser::parse_single_target(bool with_namespace) {
  const Nesting nesting(*this);
  const int line = current().line;
  if (skip_operator("(")) {
    Target target = parse_target(with_namespace);
    expect_operator(")");
    return target;
  }
  if (current().kind == Token::Kind::kBlockEnd) {
    fail_syntax(line, "Expected an expression, got 'end of statement block'");
  }
  Target target;
  target.name = expect_any_name();
  static constexpr std::string_view kConstants[] = {"true", "false", "none",
                                                    "True", "False", "None"};
  if (std::find(std::begin(kConstants), std::end(kConstants), target.name) !=
      std::end(kConstants)) {
    fail_syntax(line, "can't assign to 'const'");
  }
  if (with_namespace && skip_operator(".")) target.attribute = expect_any_name();
  return target;
}

}  // namespace troupe::jinja
