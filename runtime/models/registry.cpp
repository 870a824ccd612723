#include "runtime/models/registry.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/base/json.hpp"
#include "runtime/gguf/metadata.hpp"

namespace troupe {

// One line for each.
#define TROUPE_ARCHITECTURES(ARCHITECTURE) \
  ARCHITECTURE(kLlama)                     \
  ARCHITECTURE(kQwen2)                     \
  ARCHITECTURE(kQwen2Moe)                  \
  ARCHITECTURE(kQwen3)                     \
  ARCHITECTURE(kQwen3Moe)                  \
  ARCHITECTURE(kMistral)                   \
  ARCHITECTURE(kMixtral)                   \
  ARCHITECTURE(kGptOss)                    \
  ARCHITECTURE(kLlama4)                    \
  ARCHITECTURE(kDeepseekV2)                \
  ARCHITECTURE(kDeepseekV3)                \
  ARCHITECTURE(kPhi3)                      \
  ARCHITECTURE(kOlmo2)                     \
  ARCHITECTURE(kOlmo3)                     \
  ARCHITECTURE(kGranite)                   \
  ARCHITECTURE(kSmolLm3)                   \
  ARCHITECTURE(kGlm4)                      \
  ARCHITECTURE(kGlm4Moe)                   \
  ARCHITECTURE(kSeedOss)                   \
  ARCHITECTURE(kErnie4_5)                  \
  ARCHITECTURE(kExaone4)                   \
  ARCHITECTURE(kMamba2)                    \
  ARCHITECTURE(kBamba)                     \
  ARCHITECTURE(kGraniteMoeHybrid)          \
  ARCHITECTURE(kFalconH1)                  \
  ARCHITECTURE(kGemma2)                    \
  ARCHITECTURE(kGemma3Text)                \
  ARCHITECTURE(kGemma3)                    \
  ARCHITECTURE(kLlava)                     \
  ARCHITECTURE(kWhisper)                   \
  ARCHITECTURE(kBert)                      \
  ARCHITECTURE(kRoberta)                   \
  ARCHITECTURE(kXlmRoberta)

#define TROUPE_DECLARE(name) extern const RegisteredArchitecture name;
TROUPE_ARCHITECTURES(TROUPE_DECLARE)

namespace {

#define TROUPE_POINTER(name) &name,
constexpr const RegisteredArchitecture* kArchitectures[] = {TROUPE_ARCHITECTURES(TROUPE_POINTER)};

}  // namespace

std::span<const RegisteredArchitecture* const> registered_architectures() noexcept {
  return kArchitectures;
}

const RegisteredArchitecture* find_architecture(std::string_view name) noexcept {
  const auto* const found =
      std::ranges::find(kArchitectures, name, [](const auto* known) { return known->name; });
  return found == std::end(kArchitectures) ? nullptr : *found;
}

Result<const RegisteredArchitecture*> find_gguf_architecture(const nlohmann::json& metadata,
                                                             std::string_view file_name) {
  GgufMetadata fields(metadata, file_name);
  const std::string name = fields.text("general.architecture", std::nullopt);
  if (fields.error()) return *fields.error();
  const bool has_experts = fields.integer(name + ".expert_count", 0) > 0;
  if (fields.error()) return *fields.error();
  std::vector<std::string_view> names;
  const RegisteredArchitecture* found = nullptr;
  for (const RegisteredArchitecture* known : kArchitectures) {
    if (known->gguf == nullptr) continue;
    if (std::ranges::find(names, known->gguf->name) == names.end())
      names.push_back(known->gguf->name);
    if (known->gguf->name != name) continue;
    if (known->gguf->matches != nullptr && !known->gguf->matches(fields, name + ".")) continue;
    // Where only the other kind is known, its reader tells what is wrong with the number.
    if (found == nullptr || known->gguf->has_experts == has_experts) found = known;
  }
  if (fields.error()) return *fields.error();
  if (found != nullptr) return found;
  std::string supported;
  for (const std::string_view each : names)
    supported += (supported.empty() ? "" : ", ") + std::string(each);
  return Error{ErrorCode::kUnsupported, std::string(file_name) + ": architecture " + name +
                                            " is not supported; supported are " + supported};
}

}  // namespace troupe
