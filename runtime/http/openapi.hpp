#pragma once
// The description of the API: OpenAPI 3.1, and a page that shows it.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

enum class RouteBody : std::uint8_t { kNone, kJson, kCompletion, kChat, kForm };

struct DescribedRoute {
  std::string_view method;
  std::string_view path;  ///< with a trailing slash: followed by an id
  RouteBody body = RouteBody::kNone;
  bool needs_key = false;
};

/// Bodies of completions and chats have the fields of generation_field_table, with their ranges,
/// model, stream and the prompt. What is read without a table is not described: nested objects
/// (messages, tools, response_format), the other APIs' bodies, and answers.
[[nodiscard]] std::string openapi_json(std::span<const DescribedRoute> routes,
                                       std::string_view version);

/// HTML that needs nothing but /openapi.json.
[[nodiscard]] std::string_view docs_page() noexcept;

}  // namespace troupe
