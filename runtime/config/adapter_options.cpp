#include "runtime/config/adapter_options.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

/// vLLM's.
constexpr std::array<std::int64_t, 9> kAdapterRanks = {1, 8, 16, 32, 64, 128, 256, 320, 512};

Error wrong_module(const std::string& module, const std::string& why) {
  return invalid_argument("lora-modules: \"" + module.substr(0, 256) + "\" " + why, "lora-modules");
}

Result<LoraRequest> parse_adapter_module(const std::string& text) {
  LoraRequest module;
  if (!text.starts_with('{')) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos)
      return wrong_module(text, "is neither name=path nor a JSON object");
    module = {.name = text.substr(0, equals), .path = text.substr(equals + 1)};
  } else {
    const nlohmann::json object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) return wrong_module(text, "is not a JSON object");
    for (const auto& [key, value] : object.items()) {
      if (key == "base_model_name" || value.is_null() || value == false) continue;
      if ((key != "name" && key != "path") || !value.is_string())
        return wrong_module(text, "has " + key + ", expected are the strings name and path");
      (key == "name" ? module.name : module.path) = value.get<std::string>();
    }
  }
  if (module.name.empty() || module.path.empty())
    return wrong_module(text, "has no name or no path");
  return module;
}

}  // namespace

Result<AdapterOptions> parse_adapter_options(const EngineOptions& engine) {
  AdapterOptions options;
  options.enabled = engine.enable_lora;
  if (!engine.enable_lora) {
    if (!engine.lora_modules.empty() || !engine.lora_directory.empty())
      return invalid_argument("lora-modules and lora-directory need enable-lora", "enable-lora");
    return options;
  }
  if (std::ranges::find(kAdapterRanks, engine.max_lora_rank) == kAdapterRanks.end())
    return invalid_argument("max-lora-rank is " + std::to_string(engine.max_lora_rank) +
                                ", not one of 1, 8, 16, 32, 64, 128, 256, 320, 512",
                            "max-lora-rank");
  const std::int64_t max_loaded =
      engine.max_cpu_loras == 0 ? engine.max_loras : engine.max_cpu_loras;
  if (max_loaded < engine.max_loras)
    return invalid_argument("max-cpu-loras is " + std::to_string(max_loaded) +
                                ", it must be at least max-loras, " +
                                std::to_string(engine.max_loras),
                            "max-cpu-loras");
  options.max_rank = static_cast<std::int32_t>(engine.max_lora_rank);
  options.max_in_step = static_cast<std::int32_t>(engine.max_loras);
  options.max_loaded = static_cast<std::int32_t>(max_loaded);
  options.dtype = engine.lora_dtype;
  for (const std::string& text : engine.lora_modules) {
    ASSIGN_OR_RETURN(LoraRequest module, parse_adapter_module(text));
    if (std::ranges::find(options.modules, module.name, &LoraRequest::name) !=
        options.modules.end())
      return wrong_module(text, "has the name of another one");
    options.modules.push_back(std::move(module));
  }
  return options;
}

}  // namespace troupe
