#include "runtime/tokenizer/config.hpp"

#include "runtime/base/json.hpp"
#include "runtime/base/json_depth.hpp"

namespace troupe {
namespace {

using nlohmann::json;

Result<json> parse_object(const std::optional<std::string>& text, const char* file) {
  if (!text) return json::object();
  json parsed = parse_bounded_json<json>(*text);
  if (!parsed.is_object()) {
    return Error{ErrorCode::kCorrupt, std::string(file) + ": not a JSON object", {}};
  }
  return parsed;
}

/// A token is given as its text or as an object with its content.
void read_token(const json& object, const char* key, std::optional<std::string>& target) {
  const auto it = object.find(key);
  if (it == object.end()) return;
  if (it->is_string()) target = it->get<std::string>();
  if (it->is_object() && it->contains("content") && (*it)["content"].is_string()) {
    target = (*it)["content"].get<std::string>();
  }
}

}  // namespace

Result<TokenRoles> read_token_roles(const TokenizerFiles& files) {
  ASSIGN_OR_RETURN(const json config, parse_object(files.config_json, "tokenizer_config.json"));
  ASSIGN_OR_RETURN(const json map,
                   parse_object(files.special_tokens_map_json, "special_tokens_map.json"));
  TokenRoles roles;
  for (const json* object : {&map, &config}) {
    read_token(*object, "bos_token", roles.bos);
    read_token(*object, "eos_token", roles.eos);
    read_token(*object, "unk_token", roles.unk);
    read_token(*object, "pad_token", roles.pad);
  }
  return roles;
}

}  // namespace troupe
