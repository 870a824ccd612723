#pragma once
// Reads the fields of a tokenizer.json without exceptions: errors name the invalid field.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "runtime/base/result.hpp"

namespace troupe::json_fields {

using Json = nlohmann::json;

[[nodiscard]] Error malformed(const std::string& what);
[[nodiscard]] Error unsupported(const std::string& what);
/// The "type" of a component; `room` is the component's name in errors ("normalizer").
Result<std::string> type_of(const Json& component, const char* room);
Result<std::string> text(const Json& object, const char* key);
/// nullopt if absent or null.
Result<std::optional<std::string>> optional_text(const Json& object, const char* key);
/// `fallback` if absent or null.
Result<bool> boolean(const Json& object, const char* key, bool fallback);
Result<std::uint32_t> number(const Json& object, const char* key);
Result<std::uint32_t> number(const Json& object, const char* key, std::uint32_t fallback);
/// The array under `key`; an error if it is not an array.
Result<const Json*> array(const Json& object, const char* key);
/// One code point.
Result<char32_t> character(const Json& object, const char* key);

}  // namespace troupe::json_fields
