#pragma once
// The files of OpenAI's batches: a request per line, and a result per line.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_set>

#include "runtime/base/result.hpp"

namespace troupe {

/// A request: {"custom_id", "method": "POST", "url", "body"}.
struct BatchLine {
  std::string custom_id;
  std::string url;   ///< a path of the API
  std::string body;  ///< JSON
};
/// Error: `url`, which a field of this name has, is not one that batches may call.
[[nodiscard]] Result<void> check_batch_url(std::string_view url, const std::string& field);

/// Errors: kInvalidArgument, what is wrong with which field.
[[nodiscard]] Result<BatchLine> parse_batch_line(std::string_view line);

/// A result: {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error": null}.
/// `body`: the response's, as a string if it is not JSON; `id`: 32 hex digits.
[[nodiscard]] std::string batch_result_json(std::string_view id, std::string_view custom_id,
                                            unsigned status, std::string_view body);
/// The result of a request that got no response: "error" is {"code", "message"}.
[[nodiscard]] std::string batch_failure_json(std::string_view id, std::string_view custom_id,
                                             std::string_view code, std::string_view message);

/// The custom_ids of the results in a file, which an earlier run has written; none if there is no
/// file. A last line that was cut short is removed from the file. Errors: kIo; kInvalidArgument for
/// a file with other lines.
[[nodiscard]] Result<std::unordered_set<std::string>> take_finished(
    const std::filesystem::path& file);

}  // namespace troupe
