// The kinds of EncoderCacheManager, by name.
#include <algorithm>
#include <array>

#include "runtime/base/check.hpp"
#include "runtime/cache/encoder_cache_manager.hpp"

namespace troupe {
namespace {

std::unique_ptr<EncoderCacheManager> make_fifo_encoder_cache_manager(
    const EncoderCacheSettings& settings) {
  return std::make_unique<EncoderCacheManager>(settings);
}

constexpr std::array kManagerKinds = {
    EncoderCacheManagerKind{kEncoderCacheManager, make_fifo_encoder_cache_manager},
    EncoderCacheManagerKind{"LruEncoderCacheManager", make_lru_encoder_cache_manager},
    EncoderCacheManagerKind{"LfuEncoderCacheManager", make_lfu_encoder_cache_manager},
    EncoderCacheManagerKind{kEncoderDecoderCacheManager, make_encoder_decoder_cache_manager},
};

}  // namespace

std::span<const EncoderCacheManagerKind> encoder_cache_manager_kinds() noexcept {
  return kManagerKinds;
}

Result<std::string> choose_encoder_cache_manager(std::string_view configured,
                                                 bool is_encoder_decoder) {
  const std::string own(is_encoder_decoder ? kEncoderDecoderCacheManager : kEncoderCacheManager);
  if (configured.empty()) return own;
  const auto wrong = [&](const std::string& reason) {
    return invalid_argument("ec-manager-config: encoder_cache_manager_cls is " +
                                std::string(configured) + ", " + reason,
                            "ec-manager-config");
  };
  std::string names;
  for (const EncoderCacheManagerKind& kind : kManagerKinds)
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  const auto kind = std::ranges::find(kManagerKinds, configured, &EncoderCacheManagerKind::name);
  if (kind == kManagerKinds.end()) return wrong("there are " + names);
  if ((kind->name == kEncoderDecoderCacheManager) != is_encoder_decoder)
    return wrong(is_encoder_decoder ? "an encoder-decoder model has " + own
                                    : "the model is not an encoder-decoder model");
  return std::string(kind->name);
}

std::unique_ptr<EncoderCacheManager> make_encoder_cache_manager(
    const EncoderCacheSettings& settings) {
  const auto kind =
      std::ranges::find(kManagerKinds, settings.manager, &EncoderCacheManagerKind::name);
  CHECK(kind != kManagerKinds.end(), settings.manager);
  return kind->make(settings);
}

}  // namespace troupe
