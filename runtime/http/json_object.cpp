#include "runtime/http/json_object.hpp"

#include <string>

#include "runtime/base/ordered_json.hpp"
#include "runtime/http/json_fields.hpp"

namespace troupe {

Result<nlohmann::ordered_json> parse_json_object(std::string_view body) {
  // Bounds the objects that are made of it, before they are.
  if (count_json_values(body) > JsonFields::kMaxValues) {
    return Error{ErrorCode::kCorrupt, "the body has too many values, the limit is " +
                                          std::to_string(JsonFields::kMaxValues)};
  }
  auto object = parse_bounded_json<nlohmann::ordered_json>(body);
  if (object.is_object()) return object;
  return Error{ErrorCode::kCorrupt, "the body is not a JSON object in UTF-8 with at most " +
                                        std::to_string(JsonFields::kMaxDepth) + " levels"};
}

}  // namespace troupe
