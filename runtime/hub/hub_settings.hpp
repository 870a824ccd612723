#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace troupe {

/// The environment's settings of the Hugging Face Hub, by the variables of the Python package.
struct HubSettings {
  std::filesystem::path cache;  ///< HF_HUB_CACHE, HF_HOME/hub, or ~/.cache/huggingface/hub
  std::string endpoint;         ///< HF_ENDPOINT without a slash at its end
  std::string token;            ///< HF_TOKEN, or the file that `hf auth login` writes; may be empty
  bool offline = false;         ///< HF_HUB_OFFLINE
};

/// `variable` returns the value of an environment variable, or null.
[[nodiscard]] HubSettings hub_settings(const std::function<const char*(const char*)>& variable);

}  // namespace troupe
