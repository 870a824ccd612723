#include "runtime/multimodal/data_url.hpp"

#include <algorithm>
#include <string>

#include "runtime/base/base64.hpp"

namespace troupe {
namespace {

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::ranges::equal(text, lower, {}, [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
}

}  // namespace

Result<std::vector<std::byte>> decode_data_url(std::string_view url, std::size_t max_bytes) {
  constexpr std::string_view kScheme = "data:";
  constexpr std::string_view kEncoding = ";base64";
  if (!equals_ignoring_case(url.substr(0, kScheme.size()), kScheme))
    return invalid_argument("the URL is not a data URL");
  const std::size_t comma = url.find(',');
  if (comma == std::string_view::npos)
    return invalid_argument("the data URL has no comma between its media type and its content");
  const std::string_view head = url.substr(kScheme.size(), comma - kScheme.size());
  const std::string_view content = url.substr(comma + 1);
  if (head.size() < kEncoding.size() ||
      !equals_ignoring_case(head.substr(head.size() - kEncoding.size()), kEncoding))
    return invalid_argument(
        "the data URL is not base64: supported is data:<media type>;base64,<base64>");
  // Four characters at most for three bytes.
  if (content.size() / 4 > max_bytes / 3 + 1)
    return invalid_argument("the data URL has " + std::to_string(content.size() / 4 * 3) +
                            " bytes of content, the limit is " + std::to_string(max_bytes));
  if (content.size() % 4 != 0)
    return invalid_argument("the data URL is not base64: its content has " +
                            std::to_string(content.size()) +
                            " characters, which is not a multiple of 4");
  auto bytes = from_base64(content);
  if (!bytes.ok()) return invalid_argument("the data URL is not base64: " + bytes.error().message);
  if (bytes->size() > max_bytes)
    return invalid_argument("the data URL has " + std::to_string(bytes->size()) +
                            " bytes of content, the limit is " + std::to_string(max_bytes));
  return bytes;
}

}  // namespace troupe
