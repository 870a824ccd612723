#include <array>
#include <cstdio>
#include <ctime>

#include "runtime/chat/jinja/objects.hpp"

namespace troupe::jinja {

std::string format_time(std::string_view format, Runtime& runtime) {
  runtime.budget.charge_read(format.size());
  std::int64_t seconds = runtime.unix_us / 1'000'000;
  std::int64_t micros = runtime.unix_us % 1'000'000;
  if (micros < 0) {
    micros += 1'000'000;
    --seconds;
  }
  const std::time_t local = seconds + runtime.utc_offset_s;
  std::tm parts{};
  gmtime_r(&local, &parts);
  std::string text;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 >= format.size()) {
      text += format[i];
      continue;
    }
    // A directive: %, glibc's flags and width, a letter.
    constexpr std::uint64_t kStepsPerDirective = 16;
    runtime.budget.charge(kStepsPerDirective);
    runtime.budget.check_text_size(text.size());
    std::size_t end = i + 1;
    while (end + 1 < format.size() &&
           std::string_view("-_0^#EO123456789").find(format[end]) != std::string_view::npos &&
           end - i < 5) {
      ++end;
    }
    const char letter = format[end];
    std::array<char, 256> buffer{};
    if (letter == 'f' && end == i + 1) {
      std::snprintf(buffer.data(), buffer.size(), "%06d", static_cast<int>(micros));
    } else if (letter == 'z' || letter == 'Z') {
      // The clock has no time zone, as Python's datetime.now().
    } else if (letter == 's') {
      std::snprintf(buffer.data(), buffer.size(), "%lld", static_cast<long long>(seconds));
    } else {
      const std::string directive(format.substr(i, end - i + 1));
      if (std::strftime(buffer.data(), buffer.size(), directive.c_str(), &parts) == 0) {
        // Empty, as %p in some locales, or wider than the buffer.
        buffer[0] = '\0';
      }
    }
    text += buffer.data();
    i = end;
  }
  return text;
}

}  // namespace troupe::jinja
