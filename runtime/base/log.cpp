#include "runtime/base/log.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "runtime/base/control_characters.hpp"

namespace troupe {
namespace {

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = spdlog::stderr_color_mt("troupe");
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-7l%$ %v");
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  return static_cast<spdlog::level::level_enum>(level);
}
static_assert(SPDLOG_LEVEL_TRACE == static_cast<int>(LogLevel::kTrace) &&
              SPDLOG_LEVEL_ERROR == static_cast<int>(LogLevel::kError));

}  // namespace

bool set_log_level(std::string_view name) {
  constexpr std::pair<std::string_view, spdlog::level::level_enum> kLevels[] = {
      {"trace", spdlog::level::trace}, {"debug", spdlog::level::debug},
      {"info", spdlog::level::info},   {"warning", spdlog::level::warn},
      {"error", spdlog::level::err},   {"off", spdlog::level::off}};
  for (const auto& [known, level] : kLevels) {
    if (known != name) continue;
    logger().set_level(level);
    return true;
  }
  return false;
}

bool log_enabled(LogLevel level) noexcept { return logger().should_log(spdlog_level(level)); }

void log_line(LogLevel level, std::string_view text) {
  const std::string safe = without_control_characters(text);
  logger().log(spdlog_level(level), "{}", fmt::string_view(safe.data(), safe.size()));
}

namespace internal {

void append_quoted(std::string& line, std::string_view text) {
  const bool plain = !text.empty() && text.find_first_of(" \"=\n\r\t\\") == std::string_view::npos;
  if (plain) {
    line.append(text);
    return;
  }
  line.push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') line.push_back('\\');
    if (c == '\n')
      line.append("\\n");
    else if (c == '\r')
      line.append("\\r");
    else
      line.push_back(c);
  }
  line.push_back('"');
}

}  // namespace internal
}  // namespace troupe
