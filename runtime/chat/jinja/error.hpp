#pragma once
// The interpreter's errors and limits. A TemplateError never leaves runtime/chat: ChatTemplate
// turns it into an Error.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "runtime/base/work_budget.hpp"

namespace troupe::jinja {

class TemplateError : public std::runtime_error {
 public:
  enum class Kind {
    kSyntax,     ///< the source is not a valid template
    kUndefined,  ///< an undefined value was used
    kSecurity,   ///< rejected by the sandbox
    kType,       ///< the operation does not exist for these types
    kValue,      ///< the operation exists, but not for these values
    kRaised,     ///< raise_exception
    kLimit,      ///< a limit of this server
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

/// The remaining work of one rendering. Every operation whose cost a template or its input controls
/// is charged by the size of what it reads and creates, before it runs. Throws WorkStopped when
/// exhausted.
class Budget {
 public:
  Budget(const WorkLimits& limits, std::uint64_t max_steps, std::size_t max_text_bytes)
      : work_(limits, max_steps), max_text_bytes_(max_text_bytes) {}

  void charge(std::uint64_t steps = 1) { work_.charge(steps); }
  /// For `bytes` that are searched, compared, hashed or copied.
  void charge_read(std::size_t bytes) { work_.charge_bytes(bytes); }
  /// For `bytes` of text processed character by character.
  void charge_characters(std::size_t bytes) { work_.charge(1 + bytes / 4); }
  /// For building a text of `bytes`.
  void charge_text(std::size_t bytes) {
    check_text_size(bytes);
    charge_read(bytes);
  }
  /// For `count` times `bytes` of text; the product may overflow.
  void charge_copies(std::size_t bytes, std::uint64_t count) {
    std::size_t total = 0;
    if (__builtin_mul_overflow(bytes, count, &total)) total = ~std::size_t{0};
    charge_text(total);
  }
  /// Fails if a text of `bytes` is too large; charges nothing.
  void check_text_size(std::size_t bytes) const {
    if (bytes > max_text_bytes_) {
      fail_limit("the chat template builds a text of " + std::to_string(bytes) +
                 " bytes, the limit is " + std::to_string(max_text_bytes_));
    }
  }

 private:
  WorkBudget work_;
  std::size_t max_text_bytes_;
};

/// Maximum nesting of containers, both from a client's JSON and created by a template: printing,
/// comparing and freeing them is recursive.
inline constexpr std::uint32_t kMaxValueDepth = 200;
/// Nested evaluations: expressions, statements and macro calls together.
inline constexpr int kMaxEvaluationDepth = 1000;
/// Maximum length of range(), as in Jinja's sandbox.
inline constexpr std::int64_t kMaxRange = 100000;

}  // namespace troupe::jinja
