#pragma once
// Separates a model's reasoning from its answer while both are generated.

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/reasoning/reasoning_format.hpp"

namespace troupe {

/// What has been given out is a function of the text so far, however it was cut into pieces. Text
/// is held back only while it may be part of a marker.
class ReasoningParser {
 public:
  explicit ReasoningParser(ReasoningFormat format);

  /// Appends to `reasoning` and `answer`.
  void feed(std::string_view text, std::string& reasoning, std::string& answer);
  /// Whether the text so far ends in reasoning.
  [[nodiscard]] bool is_inside() const noexcept {
    return state_ == State::kStart || state_ == State::kInside;
  }
  /// The text is complete.
  void finish(std::string& reasoning, std::string& answer);

 private:
  enum class State : std::uint8_t { kStart, kBefore, kInside, kAfter };
  [[nodiscard]] bool step(bool ended, std::string& reasoning, std::string& answer);
  [[nodiscard]] bool start_step(bool ended);

  ReasoningFormat format_;
  State state_;
  std::string buffer_;
};

}  // namespace troupe
