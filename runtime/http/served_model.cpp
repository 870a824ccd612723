#include "runtime/http/served_model.hpp"

#include <algorithm>

namespace troupe {

Result<ServedModel> find_served_model(const std::string& model, std::span<const std::string> names,
                                      std::span<const LoraRequest> adapters) {
  if (model.empty()) return ServedModel{.name = names.front(), .lora = {}};
  if (std::ranges::find(names, model) != names.end()) return ServedModel{.name = model, .lora = {}};
  const auto adapter = std::ranges::find(adapters, model, &LoraRequest::name);
  if (adapter != adapters.end()) return ServedModel{.name = model, .lora = *adapter};
  constexpr std::size_t kMaxShownAdapters = 16;
  std::string served;
  const auto add = [&](const std::string& name) { served += (served.empty() ? "" : ", ") + name; };
  for (const std::string& name : names) add(name);
  for (const LoraRequest& each : adapters.first(std::min(adapters.size(), kMaxShownAdapters)))
    add(each.name);
  return Error{ErrorCode::kNotFound,
               "The model `" + model.substr(0, 256) + "` does not exist. Served: " + served,
               "model"};
}

}  // namespace troupe
