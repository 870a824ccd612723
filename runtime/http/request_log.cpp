#include "runtime/http/request_log.hpp"

#include <array>
#include <charconv>

#include "runtime/base/log.hpp"

namespace troupe {
namespace {

std::string milliseconds(double seconds) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), seconds * 1e3,
                                 std::chars_format::fixed, 1);
  return end.ec == std::errc() ? std::string(text.data(), end.ptr) : "-";
}

std::string or_dash(std::string_view text) { return std::string(text.empty() ? "-" : text); }

}  // namespace

void log_request(const HttpObservation& request, const WorkDone& work, std::string_view client,
                 std::string_view key) {
  if (!log_enabled(LogLevel::kInfo)) return;
  const std::string method = or_dash(request.method), path = or_dash(request.path);
  const std::string total_ms = milliseconds(request.end - request.start);
  if (work.id.empty()) {
    return log_info("http request", kv("client", or_dash(client)), kv("key", key),
                    kv("method", method), kv("path", path), kv("status", request.status),
                    kv("total_ms", total_ms));
  }
  log_info("http request", kv("client", or_dash(client)), kv("key", key), kv("request", work.id),
           kv("method", method), kv("path", path), kv("status", request.status),
           kv("prompt_tokens", work.num_prompt_tokens), kv("output_tokens", work.num_output_tokens),
           kv("queue_ms", work.queue_s ? milliseconds(*work.queue_s) : "-"),
           kv("ttft_ms", work.first_token_s ? milliseconds(*work.first_token_s) : "-"),
           kv("total_ms", total_ms));
}

}  // namespace troupe
