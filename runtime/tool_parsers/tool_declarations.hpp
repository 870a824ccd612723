#pragma once
// The tools of a request.

#include <map>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe {

/// How a parameter that the model writes as plain text becomes JSON.
enum class ParameterType : std::uint8_t {
  kString,
  kJson,  ///< a number, boolean, array or object; or a string if it is none
};

/// The functions of a request and the types of their parameters. Immutable.
class ToolDeclarations {
 public:
  ToolDeclarations() = default;
  /// `tools_json`: the array `tools` of a chat request. Errors: kCorrupt.
  [[nodiscard]] static Result<ToolDeclarations> parse(std::string_view tools_json);

  [[nodiscard]] bool has(std::string_view function) const;
  /// kString for a parameter that is not declared.
  [[nodiscard]] ParameterType type(std::string_view function, std::string_view parameter) const;

 private:
  using Parameters = std::map<std::string, ParameterType, std::less<>>;
  std::map<std::string, Parameters, std::less<>> functions_;
};

}  // namespace troupe
