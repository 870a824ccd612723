#pragma once
// The log: one line per event, with an event name and key=value pairs. Lines about a request have
// its id; prompt text is never logged.
//
//   log_info("request finished", kv("request", external_id), kv("tokens", n));

#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

namespace troupe {

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kOff };

/// Sets the level below which lines are dropped: trace, debug, info, warning, error, off. Returns
/// false for other names.
bool set_log_level(std::string_view name);
[[nodiscard]] bool log_enabled(LogLevel level) noexcept;
/// Writes one line to standard error. Any thread.
void log_line(LogLevel level, std::string_view text);

template <class T>
struct KeyValue {
  std::string_view key;
  const T& value;
};
template <class T>
[[nodiscard]] KeyValue<T> kv(std::string_view key, const T& value) {
  return {key, value};
}

namespace internal {
void append_quoted(std::string& line, std::string_view text);

template <class T>
void append(std::string& line, const KeyValue<T>& pair) {
  line.append(1, ' ').append(pair.key).append(1, '=');
  if constexpr (std::is_same_v<T, bool>) {
    line.append(pair.value ? "true" : "false");
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    append_quoted(line, pair.value);
  } else if constexpr (requires { to_string(pair.value); }) {
    append_quoted(line, to_string(pair.value));
  } else {
    std::ostringstream text;
    text << pair.value;
    line.append(text.str());
  }
}
}  // namespace internal

template <class... Ts>
void log_event(LogLevel level, std::string_view event, const KeyValue<Ts>&... pairs) {
  if (!log_enabled(level)) return;
  std::string line(event);
  (internal::append(line, pairs), ...);
  log_line(level, line);
}
template <class... Ts>
void log_debug(std::string_view event, const KeyValue<Ts>&... pairs) {
  log_event(LogLevel::kDebug, event, pairs...);
}
template <class... Ts>
void log_info(std::string_view event, const KeyValue<Ts>&... pairs) {
  log_event(LogLevel::kInfo, event, pairs...);
}
template <class... Ts>
void log_warning(std::string_view event, const KeyValue<Ts>&... pairs) {
  log_event(LogLevel::kWarning, event, pairs...);
}
template <class... Ts>
void log_error(std::string_view event, const KeyValue<Ts>&... pairs) {
  log_event(LogLevel::kError, event, pairs...);
}

}  // namespace troupe
