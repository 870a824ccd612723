#include "runtime/tokenizer/pattern.hpp"

#include <nlohmann/json.hpp>

#include "runtime/tokenizer/json_fields.hpp"

namespace troupe {

Result<Pattern> Pattern::from_json(const nlohmann::json& json) {
  Pattern pattern;
  if (json.is_object() && json.contains("String")) {
    ASSIGN_OR_RETURN(pattern.literal_, json_fields::text(json, "String"));
    return pattern;
  }
  if (json.is_object() && json.contains("Regex")) {
    ASSIGN_OR_RETURN(pattern.expression_, json_fields::text(json, "Regex"));
    ASSIGN_OR_RETURN(pattern.regex_, Regex::compile(pattern.expression_));
    return pattern;
  }
  return json_fields::malformed("\"pattern\" is neither a String nor a Regex");
}

std::optional<ByteRange> Pattern::find(std::string_view text, std::size_t from) const {
  if (regex_ != nullptr) return regex_->find(text, from);
  if (literal_.empty()) return std::nullopt;
  const std::size_t begin = text.find(literal_, from);
  if (begin == std::string_view::npos) return std::nullopt;
  return ByteRange{begin, begin + literal_.size()};
}

}  // namespace troupe
