#include "runtime/tokenizer/pattern.hpp"

#include <cstring>

#include "runtime/base/json.hpp"
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

std::optional<ByteRange> Pattern::find(std::string_view text, std::size_t from,
                                       WorkBudget& work) const {
  if (regex_ != nullptr) return regex_->find(text, from, work);
  if (literal_.empty() || from > text.size()) return std::nullopt;
  // Linear in glibc, unlike std::string's search.
  const void* found =
      memmem(text.data() + from, text.size() - from, literal_.data(), literal_.size());
  const std::size_t begin =
      found == nullptr ? text.size()
                       : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  work.charge_bytes(begin - from + literal_.size());
  if (found == nullptr) return std::nullopt;
  return ByteRange{begin, begin + literal_.size()};
}

}  // namespace troupe
