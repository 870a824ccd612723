#pragma once
// The access log: a file with a JSON object per request.

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/result.hpp"
#include "runtime/http/service.hpp"

namespace troupe {

/// Owns the file. A file that was renamed or removed, as by logrotate, is followed by a new one of
/// the same name, within a second. Lines of several processes do not mix. Thread-safe.
class AccessLog {
 public:
  /// `path`: "-" is standard output. Errors: kIo.
  [[nodiscard]] static Result<std::shared_ptr<AccessLog>> open(const std::string& path);

  /// `wall_clock`: seconds since 1970. What cannot be written is lost, and said in the server's
  /// log, once until writing succeeds again.
  void write(const HttpObservation& request, const WorkDone& work, std::string_view client,
             std::string_view key, double wall_clock);

 private:
  explicit AccessLog(std::string path) : path_(std::move(path)) {}
  Result<void> reopen();
  void follow(double wall_clock);

  const std::string path_;
  std::mutex mutex_;  // guards all below
  FileDescriptor file_;
  double checked_at_ = 0;
  bool is_broken_ = false;
};

/// {"time": "2026-01-31T12:00:00.000Z", "client", "key", "request_id", "method", "path", "status",
/// "duration_ms", "prompt_tokens", "output_tokens", "queue_ms", "ttft_ms"}: the ids, tokens and
/// times of the engine only for what it did, and null where there is none. Without prompt text,
/// queries or secret ids. The object of a request that came in at `wall_clock`.
[[nodiscard]] std::string access_json(const HttpObservation& request, const WorkDone& work,
                                      std::string_view client, std::string_view key,
                                      double wall_clock);

}  // namespace troupe
