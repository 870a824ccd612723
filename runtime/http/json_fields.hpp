#pragma once
// Reads the fields of a JSON body by name and type. All format errors of the body are collected, so
// that a client gets them in one response.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "messages/ids.hpp"
#include "runtime/base/json_depth.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

enum class JsonKind : std::uint8_t { kAbsent, kNull, kBool, kNumber, kString, kArray, kObject };

/// The valid range of a number.
struct Interval {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;

  [[nodiscard]] bool contains(double value) const noexcept {
    return value <= max && (min_open ? value > min : value >= min);
  }
};
inline constexpr Interval kAnyInt32 = {std::numeric_limits<std::int32_t>::min(),
                                       std::numeric_limits<std::int32_t>::max()};

/// One JSON object of a body. Shares ownership of the document and its list of errors. A getter
/// returns nullopt if the field is absent or null, and also if it is invalid, which is recorded;
/// `result()` reports the errors recorded in this object and in those reached from it. Format
/// errors (kCorrupt) take precedence over value errors (kInvalidArgument), of which only the first
/// is kept.
class JsonFields {
 public:
  static constexpr std::size_t kMaxDepth = kMaxJsonDepth;
  static constexpr std::size_t kMaxFields = 1024;     ///< in an object that is read by name
  static constexpr std::size_t kMaxErrors = 10;       ///< listed; further ones are only counted
  static constexpr std::size_t kMaxValues = 1 << 20;  ///< in the whole body

  /// Errors: kCorrupt if `body` is not a JSON object in UTF-8 with at most kMaxDepth levels and
  /// kMaxValues values.
  [[nodiscard]] static Result<JsonFields> parse(std::string_view body);

  [[nodiscard]] JsonKind kind(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const;  ///< present and not null

  std::optional<bool> boolean(std::string_view name) const;
  /// Integral floats (2.0) count as integers.
  std::optional<std::int64_t> integer(std::string_view name, const Interval& range = {}) const;
  std::optional<double> number(std::string_view name, const Interval& range = {}) const;
  std::optional<std::string> text(std::string_view name) const;
  /// A string that is one of the choices; another one is a value error.
  std::optional<std::string> choice(std::string_view name,
                                    std::span<const std::string_view> choices) const;
  /// One string, or an array of at most `max_count` strings.
  std::optional<std::vector<std::string>> texts(std::string_view name, std::size_t max_count) const;
  /// An array of token ids in [0, vocab_size).
  std::optional<std::vector<TokenId>> tokens(std::string_view name, std::int32_t vocab_size) const;
  /// An array of at most `max_count` arrays of token ids.
  std::optional<std::vector<std::vector<TokenId>>> token_lists(std::string_view name,
                                                               std::int32_t vocab_size,
                                                               std::size_t max_count) const;
  /// An object of at most `max_count` numbers, in its order.
  std::optional<std::vector<std::pair<std::string, double>>> numbers(std::string_view name,
                                                                     std::size_t max_count) const;
  std::optional<JsonFields> object(std::string_view name) const;
  /// Calls visit(object) for each object of an array, one at a time, since a body may have a
  /// million of them. Returns their number.
  std::optional<std::size_t> each_object(std::string_view name,
                                         const std::function<void(const JsonFields&)>& visit) const;
  /// The number of values in the field, including arrays, objects and their elements.
  [[nodiscard]] std::size_t count_values(std::string_view name) const;
  /// The JSON text of an array or object.
  std::optional<std::string> raw(std::string_view name, JsonKind expected) const;
  /// The kind of the first element of an array; kAbsent if it is empty or not an array.
  [[nodiscard]] JsonKind element_kind(std::string_view name) const;

  /// The name of a field that is not among these, and not null.
  [[nodiscard]] std::optional<std::string> other_name(
      std::initializer_list<std::string_view> known) const;

  /// Records a format error if the field is absent or null.
  void require(std::string_view name) const;
  /// Records a format error of the field: `expected` completes "should be ...".
  void wrong_form(std::string_view name, std::string_view expected) const;
  /// Records a value error of the field.
  void wrong_value(std::string_view name, std::string_view message) const;
  /// Records any other error, unless a value error has been recorded before.
  void fail(Error error) const;
  [[nodiscard]] Result<void> result() const;

 private:
  struct Document;
  struct Node;
  explicit JsonFields(std::shared_ptr<const Node> node);

  std::shared_ptr<const Node> node_;
};

}  // namespace troupe
