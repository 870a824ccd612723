#pragma once
// Reading the fields of a JSON body by name and type. All that is wrong with the body's form is
// collected, so that a client hears of it at once.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "messages/ids.hpp"
#include "runtime/base/json_depth.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

enum class JsonKind : std::uint8_t { kAbsent, kNull, kBool, kNumber, kString, kArray, kObject };

/// The values that a number may have.
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

/// One JSON object of a body. Owns a share of the document and of its list of errors.
///
/// A getter returns nothing if the field is absent or null, and also if it is wrong, which is then
/// noted; `result()` reports what was noted in this object and in those reached from it. Errors of
/// form (kCorrupt) go before errors of value (kInvalidArgument), of which only the first is kept.
class JsonFields {
 public:
  static constexpr std::size_t kMaxDepth = kMaxJsonDepth;
  static constexpr std::size_t kMaxFields = 1024;     ///< in an object that is read by name
  static constexpr std::size_t kMaxErrors = 10;       ///< listed; the rest is only counted
  static constexpr std::size_t kMaxValues = 1 << 20;  ///< in all of the body

  /// Errors: kCorrupt if `body` is not a JSON object in UTF-8 with at most kMaxDepth levels and
  /// kMaxValues values.
  [[nodiscard]] static Result<JsonFields> parse(std::string_view body);

  [[nodiscard]] JsonKind kind(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const;  ///< present and not null

  std::optional<bool> boolean(std::string_view name) const;
  /// Whole floats (2.0) count as integers.
  std::optional<std::int64_t> integer(std::string_view name, const Interval& range = {}) const;
  std::optional<double> number(std::string_view name, const Interval& range = {}) const;
  std::optional<std::string> text(std::string_view name) const;
  /// One string, or an array of strings: at most `max_count`.
  std::optional<std::vector<std::string>> texts(std::string_view name, std::size_t max_count) const;
  /// An array of token ids in [0, vocab_size).
  std::optional<std::vector<TokenId>> tokens(std::string_view name, std::int32_t vocab_size) const;
  /// An array of at most `max_count` arrays of token ids.
  std::optional<std::vector<std::vector<TokenId>>> token_lists(std::string_view name,
                                                               std::int32_t vocab_size,
                                                               std::size_t max_count) const;
  /// An object whose values are numbers, at most `max_count`, in its order.
  std::optional<std::vector<std::pair<std::string, double>>> numbers(std::string_view name,
                                                                     std::size_t max_count) const;
  std::optional<JsonFields> object(std::string_view name) const;
  /// Calls visit(object) for each object of an array, one after the other: a body may have a
  /// million of them. Returns their number.
  std::optional<std::size_t> each_object(std::string_view name,
                                         const std::function<void(const JsonFields&)>& visit) const;
  /// How many values are in the field, it and arrays and objects counted with what is in them.
  [[nodiscard]] std::size_t count_values(std::string_view name) const;
  /// The JSON text of an array or object.
  std::optional<std::string> raw(std::string_view name, JsonKind expected) const;
  /// The kind of the first element of an array; kAbsent if it is empty or no array.
  [[nodiscard]] JsonKind element_kind(std::string_view name) const;

  /// Notes an error of form if the field is absent or null.
  void require(std::string_view name) const;
  /// Notes that the field has a wrong form: `expected` completes "should be ...".
  void wrong_form(std::string_view name, std::string_view expected) const;
  /// Notes that the field has a value that it may not have.
  void wrong_value(std::string_view name, std::string_view message) const;
  /// Notes any other error, unless an error of value has been noted before.
  void fail(Error error) const;
  [[nodiscard]] Result<void> result() const;

 private:
  struct Document;
  struct Node;
  explicit JsonFields(std::shared_ptr<const Node> node);

  std::shared_ptr<const Node> node_;
};

}  // namespace troupe
