#pragma once
// A compiled template and its rendering: the interpreter's interface.

#include <string>
#include <utility>
#include <vector>

#include "runtime/chat/jinja/parser.hpp"

namespace troupe::jinja {

struct RenderLimits {
  WorkLimits work;
  std::size_t max_output_bytes;
  std::uint64_t max_steps;
};
struct RenderClock {
  std::int64_t unix_us;
  std::int32_t utc_offset_s;
};
/// Byte offsets of the text emitted by generation blocks.
struct Rendering {
  std::string text;
  std::vector<std::pair<std::size_t, std::size_t>> generation_spans;
};
using Variables = std::vector<std::pair<std::string, Value>>;

/// Immutable. Its functions fail with TemplateError.
class Template {
 public:
  explicit Template(std::string_view source);
  [[nodiscard]] const Body& body() const noexcept { return tree_.body; }
  /// A later variable overrides an earlier one of the same name.
  [[nodiscard]] Rendering render(const Variables& variables, const RenderLimits& limits,
                                 const RenderClock& clock) const;

 private:
  SyntaxTree tree_;
};

}  // namespace troupe::jinja
