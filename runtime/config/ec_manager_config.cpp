#include "runtime/config/ec_manager_config.hpp"

#include <string_view>

#include "runtime/base/json.hpp"

namespace troupe {

Result<std::string> parse_ec_manager_config(const std::string& text) {
  constexpr std::string_view kModule = "vllm.v1.core.encoder_cache_manager.";
  if (text.empty()) return std::string();
  const auto wrong = [](const std::string& reason) {
    return invalid_argument("ec-manager-config: " + reason, "ec-manager-config");
  };
  const nlohmann::json config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return wrong("it must be a JSON object, it is " + text.substr(0, 100));
  std::string name;
  for (const auto& [key, value] : config.items()) {
    if (value.is_null()) continue;
    if (key == "encoder_cache_manager_cls") {
      if (!value.is_string() || value.get_ref<const std::string&>().empty())
        return wrong(key + " must be a name, it is " + value.dump());
      name = value.get<std::string>();
    } else if (key != "manager_config") {
      return wrong(key + " is not known, it has encoder_cache_manager_cls and manager_config");
    } else if (!value.is_object()) {
      return wrong(key + " must be a JSON object, it is " + value.dump());
    } else if (!value.empty()) {
      return wrong("manager_config." + value.begin().key() +
                   " is not known, no manager has fields of its own");
    }
  }
  if (name.starts_with(kModule)) name.erase(0, kModule.size());
  return name;
}

}  // namespace troupe
