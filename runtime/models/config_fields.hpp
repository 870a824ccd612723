#pragma once
// Reading the fields of a JSON object with checks, for the configuration files of model folders.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/ids.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// The object in a JSON text; Python's Infinity, which JSON has not, becomes what transformers 5
/// writes for it, {"__float__": "Infinity"}. Errors: kCorrupt, naming the file.
Result<nlohmann::json> parse_json_object(std::string_view text, std::string_view file_name);

/// Reads fields of one object. A key that is absent or null gives the default. The first error
/// sticks, so that a caller reads all fields and asks once: a read that fails gives its default,
/// and where there is none a value of its type. The object must outlive the reader.
class ConfigFields {
 public:
  /// `where` starts every error: "config.json: text_config".
  ConfigFields(const nlohmann::json& object, std::string where);

  /// True if the key is there, be it with null.
  [[nodiscard]] bool contains(std::string_view key) const;
  /// True if the key is there and not null.
  [[nodiscard]] bool has(std::string_view key) const;
  [[nodiscard]] bool is_text(std::string_view key) const;
  /// An integer in [min, max]. `otherwise` is the default; without one the key must be there.
  [[nodiscard]] std::int64_t integer(std::string_view key, std::optional<std::int64_t> otherwise,
                                     std::int64_t min, std::int64_t max);
  /// The integer that has two names, whichever is there.
  [[nodiscard]] std::int64_t integer_of(std::string_view key, std::string_view other_key,
                                        std::int64_t otherwise, std::int64_t min, std::int64_t max);
  /// Without a default the key must be there.
  [[nodiscard]] double number(std::string_view key, std::optional<double> otherwise);
  [[nodiscard]] bool boolean(std::string_view key, bool otherwise);
  /// True if absent, but null is false: as in transformers, where its class takes null.
  [[nodiscard]] bool true_unless_null(std::string_view key);
  [[nodiscard]] std::string text(std::string_view key, std::string_view otherwise);
  [[nodiscard]] std::vector<std::string> texts(std::string_view key);
  /// Empty if absent. Infinity may be among them.
  [[nodiscard]] std::vector<double> numbers(std::string_view key);
  /// One integer or a list of them; empty if absent.
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view key);
  /// One token id or a list of them; empty if absent.
  [[nodiscard]] std::vector<TokenId> token_ids(std::string_view key);
  /// Null if absent, or not an object (which is an error).
  [[nodiscard]] const nlohmann::json* object(std::string_view key);

  /// Records an error about this object, unless there is one.
  void fail(ErrorCode code, const std::string& reason);
  [[nodiscard]] const std::optional<Error>& error() const noexcept { return error_; }
  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  const nlohmann::json* value(std::string_view key) const;
  /// The value if it is there; records an error if it is absent and has no default.
  const nlohmann::json* required(std::string_view key, bool has_default);

  const nlohmann::json& object_;
  std::string where_;
  std::optional<Error> error_;
};

}  // namespace troupe
