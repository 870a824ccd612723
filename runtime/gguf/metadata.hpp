#pragma once
// Validated access to a GGUF file's metadata.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// Reads keys of one file. The first error is kept, so that a caller reads all keys and checks
/// once; a failed read returns some value of its type. The metadata must outlive the reader.
class GgufMetadata {
 public:
  GgufMetadata(const nlohmann::json& metadata, std::string_view file_name)
      : metadata_(metadata), file_name_(file_name) {}

  [[nodiscard]] bool has(const std::string& key) const;
  [[nodiscard]] bool is_list(const std::string& key) const;
  [[nodiscard]] std::vector<std::string> keys_with(const std::string& prefix) const;
  /// Whether the value is that number (true and false are 1 and 0), or a list of it alone.
  [[nodiscard]] bool is_number(const std::string& key, double number) const;
  /// The first characters of the value as JSON. Pre: has(key).
  [[nodiscard]] std::string shown(const std::string& key) const;
  // `otherwise` is the default; a key without default must exist.
  /// Also accepts a list with one number per layer, if all are equal.
  [[nodiscard]] std::int64_t integer(const std::string& key, std::optional<std::int64_t> otherwise);
  [[nodiscard]] double number(const std::string& key, std::optional<double> otherwise);
  [[nodiscard]] bool boolean(const std::string& key, bool otherwise);
  [[nodiscard]] std::string text(const std::string& key,
                                 const std::optional<std::string>& otherwise);
  /// Empty if absent.
  [[nodiscard]] std::vector<std::string> texts(const std::string& key);
  /// Empty if absent; true and false are 1 and 0.
  [[nodiscard]] std::vector<double> numbers(const std::string& key);
  /// A required token id below num_tokens; nullopt on error.
  [[nodiscard]] std::optional<std::size_t> token_id(const std::string& key, std::size_t num_tokens);

  void fail(ErrorCode code, const std::string& reason);
  [[nodiscard]] const std::optional<Error>& error() const noexcept { return error_; }

 private:
  /// Null if absent; an error if the key has no default.
  const nlohmann::json* find(const std::string& key, bool has_default);
  void wrong_type(const std::string& key, std::string_view expected);

  const nlohmann::json& metadata_;
  std::string file_name_;
  std::optional<Error> error_;
};

/// The JSON text. Errors: kCorrupt if a string in it is not valid UTF-8.
Result<std::string> json_text(const nlohmann::json& value, std::string_view file_name);

}  // namespace troupe
