#include "runtime/http/access_log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <ctime>
#include <optional>

#include "runtime/base/log.hpp"
#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

constexpr std::string_view kStandardOutput = "-";
constexpr double kCheckIntervalS = 1;

void append_name(std::string& json, std::string_view name) {
  json.append(json.empty() ? "{\"" : ",\"").append(name).append("\":");
}

void append_text(std::string& json, std::string_view name, std::string_view text) {
  append_name(json, name);
  append_json_string(json, text);
}

void append_milliseconds(std::string& json, std::string_view name, std::optional<double> seconds) {
  append_name(json, name);
  if (!seconds) {
    json += "null";
    return;
  }
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), *seconds * 1e3,
                                 std::chars_format::fixed, 3);
  json.append(text.data(), end.ptr);
}

std::string time_text(double wall_clock) {
  const auto milliseconds = static_cast<std::int64_t>(std::floor(wall_clock * 1e3));
  const auto seconds = static_cast<std::time_t>(milliseconds / 1000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 40> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::string fraction = std::to_string(1000 + milliseconds % 1000);
  fraction[0] = '.';
  return std::string(text.data(), size) + fraction + "Z";
}

bool write_all(const FileDescriptor& file, std::string_view line) {
  while (!line.empty()) {
    const ssize_t size = ::write(file.get(), line.data(), line.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return false;
    line.remove_prefix(static_cast<std::size_t>(size));
  }
  return true;
}

}  // namespace

std::string access_json(const HttpObservation& request, const WorkDone& work,
                        std::string_view client, std::string_view key, double wall_clock) {
  std::string json;
  append_text(json, "time", time_text(wall_clock));
  append_text(json, "client", client);
  append_text(json, "key", key);
  append_name(json, "request_id");
  if (work.id.empty())
    json += "null";
  else
    append_json_string(json, work.id);
  append_text(json, "method", request.method);
  append_text(json, "path", request.path);
  append_name(json, "status");
  append_json_integer(json, request.status);
  append_milliseconds(json, "duration_ms", request.end - request.start);
  if (!work.id.empty()) {
    append_name(json, "prompt_tokens");
    append_json_integer(json, work.num_prompt_tokens);
    append_name(json, "output_tokens");
    append_json_integer(json, work.num_output_tokens);
    append_milliseconds(json, "queue_ms", work.queue_s);
    append_milliseconds(json, "ttft_ms", work.first_token_s);
  }
  return json + "}";
}

Result<std::shared_ptr<AccessLog>> AccessLog::open(const std::string& path) {
  std::shared_ptr<AccessLog> log(new AccessLog(path));
  RETURN_IF_ERROR(log->reopen());
  return log;
}

Result<void> AccessLog::reopen() {
  constexpr mode_t kMode = 0640;
  FileDescriptor file(
      path_ == kStandardOutput
          ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
          : ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, kMode));
  if (!file.valid())
    return Error{ErrorCode::kIo, "access-log: cannot open " + path_ + ": " + std::strerror(errno),
                 "access-log"};
  file_ = std::move(file);
  return {};
}

/// The name may stand for another file by now, or for none.
void AccessLog::follow(double wall_clock) {
  if (path_ == kStandardOutput || std::abs(wall_clock - checked_at_) < kCheckIntervalS) return;
  checked_at_ = wall_clock;
  struct stat open_file {};
  struct stat named_file {};
  const bool is_same =
      fstat(file_.get(), &open_file) == 0 && stat(path_.c_str(), &named_file) == 0 &&
      open_file.st_dev == named_file.st_dev && open_file.st_ino == named_file.st_ino;
  if (is_same) return;
  if (const auto opened = reopen(); !opened.ok()) log_warning(opened.error().message);
}

void AccessLog::write(const HttpObservation& request, const WorkDone& work, std::string_view client,
                      std::string_view key, double wall_clock) {
  const double duration = request.end - request.start;
  const std::string line = access_json(request, work, client, key, wall_clock - duration) + "\n";
  const std::lock_guard lock(mutex_);
  follow(wall_clock);
  const bool is_written = write_all(file_, line);
  if (!is_written && !is_broken_)
    log_warning("the access log cannot be written", kv("file", path_),
                kv("error", std::strerror(errno)));
  is_broken_ = !is_written;
}

}  // namespace troupe
