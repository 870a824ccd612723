#pragma once
// The parser's state, shared by parser.cpp (statements) and expression_parser.cpp.

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/jinja/ast.hpp"
#include "runtime/chat/jinja/lexer.hpp"
#include "runtime/chat/jinja/parser.hpp"

namespace troupe::jinja {

/// A recursive-descent parser for one template's tokens; used by parse().
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  SyntaxTree parse_template();

 private:
  static constexpr int kMaxNesting = 150;
  static constexpr std::uint32_t kMaxExpressionDepth = 300;

  /// One level of nested syntax.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) {
        fail_syntax(parser_.current().line,
                    "nested more than " + std::to_string(kMaxNesting) + " levels deep");
      }
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  /// An unknown filter or test. In a branch it fails only when evaluated.
  struct UnknownName {
    int line;
    std::string message;
  };

  // Tokens.
  [[nodiscard]] const Token& current() const { return tokens_[position_]; }
  [[nodiscard]] const Token& next() const {
    return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
  }
  void advance() { position_ += position_ + 1 < tokens_.size(); }
  [[nodiscard]] bool at_name(std::string_view name) const {
    return current().kind == Token::Kind::kName && current().text == name;
  }
  [[nodiscard]] bool at_operator(std::string_view symbol) const {
    return current().kind == Token::Kind::kOperator && current().text == symbol;
  }
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view symbol);
  void expect_name(std::string_view name);
  void expect_operator(std::string_view symbol);
  void expect_kind(Token::Kind kind, std::string_view description);
  std::string expect_any_name();
  [[noreturn]] void fail_expected(std::string_view wanted) const;

  // Statements.
  Body parse_body(std::initializer_list<std::string_view> ends);
  Body parse_block_body(std::string_view end);
  void expect_block_end();
  void parse_statement(Body& body);
  If parse_if();
  For parse_for();
  void parse_set(Body& body, int line);
  void parse_print(Body& body);
  With parse_with();
  Block parse_block();
  AutoEscape parse_autoescape();
  Macro parse_macro();
  CallBlock parse_call_block(int line);
  std::vector<Parameter> parse_parameters();
  void parse_macro_body(MacroNode& macro, std::string_view end);
  Target parse_target(bool with_namespace);
  Target parse_single_target(bool with_namespace);

  // Expressions, weakest binding first.
  ExpressionPtr parse_tuple(std::initializer_list<std::string_view> end_names,
                            bool with_conditional = true, bool in_parentheses = false);
  ExpressionPtr parse_expression(bool with_conditional = true);
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr expression);
  ExpressionPtr parse_subscript(ExpressionPtr object);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr expression);
  ExpressionPtr parse_filters(ExpressionPtr input, bool starts_inline);
  ExpressionPtr parse_test(ExpressionPtr input);
  CallArguments parse_arguments();
  [[nodiscard]] bool at_tuple_end(std::initializer_list<std::string_view> end_names) const;

  [[nodiscard]] Output make_output(ExpressionPtr value) const;
  [[nodiscard]] static bool is_constant(const Expression& expression);

  /// Fails if the tree gets too deep.
  static ExpressionPtr make(Expression::Node node, int line);
  void fail_unknown_names(std::size_t first) const;

  std::vector<Token> tokens_;
  std::size_t position_ = 0;
  int nesting_ = 0;
  int num_loops_ = 0;  // enclosing loops that a break could leave
  std::vector<MacroNode*> open_macros_;
  Blocks blocks_;
  Escaping escaping_ = Escaping::kOff;  // at the current position
  std::vector<UnknownName> unknown_names_;
};

}  // namespace troupe::jinja
