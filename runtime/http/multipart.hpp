#pragma once
// Bodies of HTML forms, multipart/form-data (RFC 7578), read as they arrive.

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe {

struct FormPart {
  std::string name;
  std::string filename;  ///< empty: none
};

/// Memory is bounded by the heads of parts and a boundary: contents are passed on at once.
class MultipartParser {
 public:
  static constexpr std::size_t kMaxPartHeadBytes = 8 << 10;
  static constexpr std::size_t kMaxParts = 64;

  /// Called in the order of the body.
  struct Handler {
    std::function<void(const FormPart&)> begin;
    std::function<void(std::string_view bytes)> content;
  };

  /// The boundary that a Content-Type names. Errors: kInvalidArgument, another media type, or none.
  [[nodiscard]] static Result<std::string> boundary_of(std::string_view content_type);

  /// `boundary`: 1 to 70 characters.
  MultipartParser(const std::string& boundary, Handler handler);

  /// After an error bytes are ignored.
  void feed(std::string_view bytes);
  /// The body has ended. Errors: kCorrupt, what is wrong with it.
  [[nodiscard]] Result<void> finish() const;

 private:
  enum class State : std::uint8_t { kPreamble, kBoundary, kHead, kContent, kEnd, kBroken };

  [[nodiscard]] bool step();
  [[nodiscard]] bool take_content();
  void take_head(std::string_view head);
  void break_off(std::string what);

  const std::string delimiter_;  ///< CR LF, two dashes, the boundary
  const Handler handler_;
  State state_ = State::kPreamble;
  std::string buffer_ = "\r\n";  ///< the first delimiter has no line before it
  std::size_t num_parts_ = 0;
  std::string problem_;
};

}  // namespace troupe
