#pragma once
// The fields of an API whose requests are rewritten as those of the chat API: one table says which
// of them mean the same there, and of what type the others are. It is what requests are checked
// against, and what the description of the API is made of.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/result.hpp"
#include "runtime/http/body_shape.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {

/// Types of JSON values; a field may have several of them.
enum class JsonTypes : std::uint8_t {
  kText = 1,
  kBoolean = 2,
  kInteger = 4,
  kNumber = 8,
  kArray = 16,
  kObject = 32,
};
constexpr JsonTypes operator|(JsonTypes a, JsonTypes b) noexcept {
  return static_cast<JsonTypes>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}
[[nodiscard]] constexpr bool has(JsonTypes types, JsonTypes type) noexcept {
  return (static_cast<std::uint8_t>(types) & static_cast<std::uint8_t>(type)) != 0;
}

/// A field that is the chat API's, under a name of its own.
struct SameField {
  const char* name;
  const char* chat_name = name;
  bool is_required = false;
};

/// A field that the API reads itself.
struct OwnField {
  const char* name;
  JsonTypes types;
  bool is_required = false;
};

/// Copies the fields that are not null. Their values are checked by the chat API.
void copy_same_fields(const nlohmann::ordered_json& given, std::span<const SameField> fields,
                      nlohmann::ordered_json& chat);

/// Errors: kInvalidArgument (a field is missing or of another type), which names it.
[[nodiscard]] Result<void> check_own_fields(const nlohmann::ordered_json& given,
                                            std::span<const OwnField> fields);

/// The chat API's name of a field, and that of the API whose request was rewritten.
using RenamedField = std::pair<std::string_view, std::string_view>;
/// As parse_chat_request, of a request that was translated: errors, now and of the grammar later,
/// have the names that the client has used.
[[nodiscard]] Result<ChatRequest> parse_translated_request(std::string_view chat_body,
                                                           const ServerDefaults& defaults,
                                                           std::span<const RenamedField> fields);

/// `chat`: what the chat API reads.
[[nodiscard]] BodyShape shape_of_fields(std::span<const SameField> same,
                                        std::span<const OwnField> own, const BodyShape& chat);

}  // namespace troupe
