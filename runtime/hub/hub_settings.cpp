#include "runtime/hub/hub_settings.hpp"

#include <algorithm>
#include <cctype>

#include "runtime/base/file.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

std::string trimmed(std::string text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_blank(text.back())) text.pop_back();
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_blank));
  return text;
}

bool is_true(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

}  // namespace

HubSettings hub_settings(const std::function<const char*(const char*)>& variable) {
  const auto value = [&](std::initializer_list<const char*> names) -> std::string {
    for (const char* name : names)
      if (const char* found = variable(name); found != nullptr && *found != '\0') return found;
    return "";
  };
  const std::string user = value({"HOME"});
  const auto expanded = [&](std::string path) -> fs::path {
    return path == "~" || path.starts_with("~/") ? fs::path(user + path.substr(1)) : fs::path(path);
  };
  fs::path home = expanded(value({"HF_HOME"}));
  if (home.empty()) {
    const fs::path caches = expanded(value({"XDG_CACHE_HOME"}));
    home = (caches.empty() ? fs::path(user) / ".cache" : caches) / "huggingface";
  }
  HubSettings settings;
  settings.cache = expanded(value({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}));
  if (settings.cache.empty()) settings.cache = home / "hub";
  settings.endpoint = value({"HF_ENDPOINT"});
  if (settings.endpoint.empty()) settings.endpoint = "https://huggingface.co";
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  settings.token = trimmed(value({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}));
  if (settings.token.empty() && !is_true(value({"HF_HUB_DISABLE_IMPLICIT_TOKEN"}))) {
    fs::path file = expanded(value({"HF_TOKEN_PATH"}));
    if (file.empty()) file = home / "token";
    constexpr std::size_t kMaxToken = 4096;
    if (auto token = read_file(file, kMaxToken); token.ok()) settings.token = trimmed(*token);
  }
  settings.offline = is_true(value({"HF_HUB_OFFLINE"})) || is_true(value({"TRANSFORMERS_OFFLINE"}));
  return settings;
}

}  // namespace troupe
