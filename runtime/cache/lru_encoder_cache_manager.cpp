// Evicts the output whose last use is longest ago. A request uses an output in each step that
// computes tokens of it.
#include "runtime/cache/encoder_cache_manager.hpp"

namespace troupe {
namespace {

class LruEncoderCacheManager final : public EncoderCacheManager {
 public:
  using EncoderCacheManager::EncoderCacheManager;

 private:
  [[nodiscard]] EvictionOrder eviction_order(const Output& output,
                                             std::uint64_t /*now*/) const override {
    return {0, output.last_use};
  }
};

}  // namespace

std::unique_ptr<EncoderCacheManager> make_lru_encoder_cache_manager(
    const EncoderCacheSettings& settings) {
  return std::make_unique<LruEncoderCacheManager>(settings);
}

}  // namespace troupe
