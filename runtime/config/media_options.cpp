#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/json.hpp"
#include "runtime/config/options.hpp"

namespace troupe {

Result<std::int64_t> max_images_per_prompt(const MediaOptions& media) {
  constexpr std::int64_t kDefault = 999;
  constexpr std::string_view kOption = "limit-mm-per-prompt";
  const std::string& text = media.limit_mm_per_prompt;
  if (text.empty()) return kDefault;
  const auto wrong = [&](const std::string& reason) {
    return invalid_argument(std::string(kOption) + " is " + text + ", " + reason,
                            std::string(kOption));
  };
  const nlohmann::json limits = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!limits.is_object()) return wrong("it must be a JSON object such as {\"image\": 4}");
  std::int64_t count = kDefault;
  for (const auto& [modality, limit] : limits.items()) {
    const nlohmann::json& number =
        limit.is_object() ? limit.value("count", nlohmann::json()) : limit;
    if (!number.is_number_unsigned() || number > 1 << 20)
      return wrong("where " + modality + " is not a number from 0 to 1048576");
    if (modality == "image")
      count = number.get<std::int64_t>();
    else if (modality != "video" && modality != "audio" && modality != "vision_chunk")
      return wrong("where " + modality + " is not a kind of item");
  }
  return count;
}

}  // namespace troupe
