#include "runtime/http/cors.hpp"

#include <algorithm>
#include <array>

#include "runtime/base/ordered_json.hpp"
#include "runtime/http/field_syntax.hpp"
#include "runtime/http/service.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

constexpr std::string_view kAnyOne = "*";
constexpr std::string_view kPreflightSeconds = "600";
constexpr std::string_view kRequestMethod = "Access-Control-Request-Method";
constexpr std::string_view kRequestHeaders = "Access-Control-Request-Headers";
constexpr std::string_view kAllowOrigin = "Access-Control-Allow-Origin";
constexpr std::size_t kMaxEchoedHeaders = 2048;
constexpr std::array<std::string_view, 7> kAllMethods = {"DELETE", "GET",  "HEAD", "OPTIONS",
                                                         "PATCH",  "POST", "PUT"};
/// Allowed in any case (the Fetch standard, "CORS-safelisted request-header").
constexpr std::array<std::string_view, 4> kSafeHeaders = {"Accept", "Accept-Language",
                                                          "Content-Language", "Content-Type"};

bool contains(const std::vector<std::string>& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

bool contains_name(const auto& list, std::string_view name) {
  return std::any_of(list.begin(), list.end(),
                     [&](std::string_view each) { return equal_ignoring_case(each, name); });
}

std::string joined(const auto& list) {
  std::string text;
  for (const std::string_view each : list) text.append(text.empty() ? "" : ", ").append(each);
  return text;
}

/// Names of header fields, as a preflight lists them.
bool is_name_list(std::string_view text) noexcept {
  return text.size() <= kMaxEchoedHeaders && std::all_of(text.begin(), text.end(), [](char c) {
           return is_token_char(c) || c == ',' || c == ' ';
         });
}

/// The values of an option, each of which may be a JSON array of several.
Result<std::vector<std::string>> values_of(const std::vector<std::string>& given,
                                           const std::string& option) {
  std::vector<std::string> values;
  for (const std::string& text : given) {
    if (!text.starts_with('[')) {
      values.push_back(text);
      continue;
    }
    const auto list = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    const bool is_texts =
        list.is_array() &&
        std::all_of(list.begin(), list.end(), [](const auto& each) { return each.is_string(); });
    if (!is_texts)
      return invalid_argument(option + " is " + text + ", a list must be a JSON array of strings",
                              option);
    for (const auto& each : list) values.push_back(each.get<std::string>());
  }
  for (const std::string& value : values) {
    if (value.empty() || !std::all_of(value.begin(), value.end(), is_visible_char))
      return invalid_argument(option + " has the value \"" + value +
                                  "\", it must be printable ASCII characters without spaces",
                              option);
  }
  return values;
}

}  // namespace

Result<CorsPolicy> CorsPolicy::create(const ServerOptions& options) {
  CorsPolicy policy;
  ASSIGN_OR_RETURN(policy.origins, values_of(options.allowed_origins, "allowed-origins"));
  ASSIGN_OR_RETURN(policy.methods, values_of(options.allowed_methods, "allowed-methods"));
  ASSIGN_OR_RETURN(policy.headers, values_of(options.allowed_headers, "allowed-headers"));
  policy.credentials = options.allow_credentials;
  for (const std::string& origin : policy.origins) {
    // Browsers send SCHEME://HOST[:PORT], which nothing else would ever equal.
    if (origin == kAnyOne || origin == "null") continue;
    const std::size_t host = origin.find("://");
    if (host == std::string::npos || host + 3 == origin.size() ||
        origin.find('/', host + 3) != std::string::npos)
      return invalid_argument("allowed-origins has the value \"" + origin +
                                  "\", it must be * or an origin such as https://example.com",
                              "allowed-origins");
  }
  return policy;
}

bool CorsPolicy::allows_origin(std::string_view origin) const {
  return contains(origins, kAnyOne) || contains(origins, origin);
}

std::vector<std::pair<std::string, std::string>> CorsPolicy::response_headers(
    const HttpRequest& request) const {
  std::vector<std::pair<std::string, std::string>> fields;
  const std::string_view origin = request.header("Origin");
  const bool any = contains(origins, kAnyOne);
  if (origin.empty() || !allows_origin(origin)) return fields;
  // A browser that sends credentials does not accept "*".
  const bool is_named = !any || (credentials && !request.header("Cookie").empty());
  fields.emplace_back(kAllowOrigin, is_named ? origin : kAnyOne);
  if (is_named) fields.emplace_back("Vary", "Origin");
  if (credentials) fields.emplace_back("Access-Control-Allow-Credentials", "true");
  return fields;
}

CorsPolicy::Preflight CorsPolicy::preflight(const HttpRequest& request) const {
  Preflight answer;
  auto& fields = answer.headers;
  const std::string_view origin = request.header("Origin");
  const std::string_view method = request.header(kRequestMethod);
  const std::string_view wanted = request.header(kRequestHeaders);
  const bool is_named = credentials || !contains(origins, kAnyOne);
  if (is_named) fields.emplace_back("Vary", "Origin");
  if (allows_origin(origin)) {
    fields.emplace_back(kAllowOrigin, is_named ? origin : kAnyOne);
  } else {
    answer.disallowed.push_back("origin");
  }

  const bool any_method = contains(methods, kAnyOne);
  fields.emplace_back("Access-Control-Allow-Methods",
                      any_method ? joined(kAllMethods) : joined(methods));
  if (any_method ? !contains_name(kAllMethods, method) : !contains(methods, method))
    answer.disallowed.push_back("method");

  if (contains(headers, kAnyOne)) {
    if (!is_name_list(wanted)) {
      answer.disallowed.push_back("headers");
    } else if (!wanted.empty()) {
      fields.emplace_back("Access-Control-Allow-Headers", wanted);
    }
  } else {
    std::vector<std::string> known(kSafeHeaders.begin(), kSafeHeaders.end());
    known.insert(known.end(), headers.begin(), headers.end());
    fields.emplace_back("Access-Control-Allow-Headers", joined(known));
    bool all_known = true;
    for_each_element(wanted,
                     [&](std::string_view name) { all_known &= contains_name(known, name); });
    if (!all_known) answer.disallowed.push_back("headers");
  }
  if (credentials) fields.emplace_back("Access-Control-Allow-Credentials", "true");
  fields.emplace_back("Access-Control-Max-Age", kPreflightSeconds);
  return answer;
}

bool is_preflight(const HttpRequest& request) noexcept {
  return request.method == "OPTIONS" && !request.header("Origin").empty() &&
         !request.header(kRequestMethod).empty();
}

}  // namespace troupe
