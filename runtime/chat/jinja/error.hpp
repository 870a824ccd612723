#pragma once
// How the interpreter fails, and what bounds it. A TemplateError never leaves runtime/chat:
// ChatTemplate turns it into an Error.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace troupe::jinja {

class TemplateError : public std::runtime_error {
 public:
  enum class Kind {
    kSyntax,     ///< the source is no template
    kUndefined,  ///< an undefined value was used
    kSecurity,   ///< the sandbox refuses it
    kType,       ///< the operation does not exist for these types
    kValue,      ///< the operation exists, but not for these values
    kRaised,     ///< raise_exception
    kLimit,      ///< a bound of this server
  };
  TemplateError(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] Kind kind() const noexcept { return kind_; }

 private:
  Kind kind_;
};

[[noreturn]] inline void fail_type(const std::string& message) {
  throw TemplateError(TemplateError::Kind::kType, message);
}
[[noreturn]] inline void fail_value(const std::string& message) {
  throw TemplateError(TemplateError::Kind::kValue, message);
}
[[noreturn]] inline void fail_limit(const std::string& message) {
  throw TemplateError(TemplateError::Kind::kLimit, message);
}

/// The work that one rendering may still do. Everything whose cost a template controls charges it
/// before it does the work.
class Budget {
 public:
  Budget(std::uint64_t max_steps, std::size_t max_text_bytes)
      : max_steps_(max_steps), max_text_bytes_(max_text_bytes) {}

  void charge(std::uint64_t steps = 1) {
    used_ += steps;
    if (used_ > max_steps_) {
      fail_limit("the chat template needs more than " + std::to_string(max_steps_) + " steps");
    }
  }
  /// For `bytes` of text built or searched.
  void charge_text(std::size_t bytes) {
    check_text_size(bytes);
    charge(1 + bytes / 16);
  }
  /// Fails if a text of `bytes` is too large; costs nothing.
  void check_text_size(std::size_t bytes) const {
    if (bytes > max_text_bytes_) {
      fail_limit("the chat template builds a text of " + std::to_string(bytes) +
                 " bytes, the limit is " + std::to_string(max_text_bytes_));
    }
  }

 private:
  std::uint64_t max_steps_;
  std::size_t max_text_bytes_;
  std::uint64_t used_ = 0;
};

/// Containers in containers, both in a client's JSON and made by a template: printing, comparing
/// and freeing them recurses.
inline constexpr std::uint32_t kMaxValueDepth = 200;
/// Nested evaluations: expressions, statements and macro calls together.
inline constexpr int kMaxEvaluationDepth = 1000;
/// The longest range(), as in Jinja's sandbox.
inline constexpr std::int64_t kMaxRange = 100000;

}  // namespace troupe::jinja
