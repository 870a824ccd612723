// Evicts the least frequently used output, with dynamic aging (LFU-DA: Arlitt et al., "Evaluating
// Content Management Techniques for Web Proxy Caches", 2000): an image that many requests have in
// common outlives any number of images that one request has each, until it is not used any more.
#include "runtime/cache/encoder_cache_manager.hpp"

namespace troupe {
namespace {

class LfuEncoderCacheManager final : public EncoderCacheManager {
 public:
  using EncoderCacheManager::EncoderCacheManager;

  void reset() override {
    EncoderCacheManager::reset();
    age_ = 0;
  }

 private:
  /// Of those with the same number the one that was released first.
  [[nodiscard]] EvictionOrder eviction_order(const Output& output,
                                             std::uint64_t now) const override {
    return {age_ + output.num_uses, now};
  }
  void on_evicted(const Output& output) override { age_ = output.order.first; }

  std::uint64_t age_ = 0;  ///< what was evicted last had this number
};

}  // namespace

std::unique_ptr<EncoderCacheManager> make_lfu_encoder_cache_manager(
    const EncoderCacheSettings& settings) {
  return std::make_unique<LfuEncoderCacheManager>(settings);
}

}  // namespace troupe
