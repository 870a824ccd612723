#pragma once
// The description of the API: OpenAPI 3.1, and a page that shows it.

#include <span>
#include <string>
#include <string_view>

#include "runtime/http/endpoints.hpp"

namespace troupe {

/// What a route answers. The names of schemas are those of `kAnswerSchemas`.
struct RouteAnswer {
  std::string_view schema = {};  ///< of the answer; empty: it is not JSON
  std::string_view media = {};   ///< if it is not JSON; empty: there is no body
  std::string_view stream = {};  ///< the media type of streams; empty: there are none
  std::string_view query = {};   ///< the names of parameters, with commas between them
};

struct DescribedRoute {
  std::string_view method;
  std::string_view path;  ///< may have "{id}" in it
  RouteAnswer answer;
  Prepare* prepare = nullptr;  ///< of routes that take JSON
  bool needs_key = false;
};

/// Bodies of requests are described by what their parsers read of them (see BodyShape), with the
/// server's limits. Answers are described by hand; tests/system/schema_check.py holds them to it.
[[nodiscard]] std::string openapi_json(std::span<const DescribedRoute> routes,
                                       const ServerDefaults& defaults, std::string_view version);

/// HTML that needs nothing but /openapi.json.
[[nodiscard]] std::string_view docs_page() noexcept;

// ---- openapi_answers.cpp

/// Schemas by name, in a short form: types by name ("string", or that of a schema), "?" after a
/// type for null, after a name for a member that may be missing, [type] for an array, {"*": type}
/// for an object with any names, "=a|b" for constants, "a|b" for one of several types.
extern const std::string_view kAnswerSchemas;

}  // namespace troupe
