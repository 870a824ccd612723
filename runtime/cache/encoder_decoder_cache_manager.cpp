// Encoder-decoder models: the encoder's output is written to the cross-attention cache in the step
// that encodes it. It is not shared, and is freed one step later.
#include "messages/encoder_input.hpp"
#include "runtime/cache/encoder_cache_manager.hpp"

namespace troupe {
namespace {

/// Nothing is cached: free + sizes of all referenced items = capacity.
class EncoderDecoderCacheManager final : public EncoderCacheManager {
 public:
  using EncoderCacheManager::EncoderCacheManager;

  void allocate(RequestId id, std::int32_t item) override {
    const MultiModalFeature& feature = item_of(id, item);
    take(num_embeds(feature));
    request(id).referenced.insert(item);
    encoded_.push_back(feature.identifier);
  }
  void free_input(RequestId id, std::int32_t item) override {
    if (request(id).referenced.erase(item) > 0) give_back(num_embeds(item_of(id, item)));
  }
  /// The workers free them before they run the step: outputs encoded in this step are for the next
  /// take.
  [[nodiscard]] std::vector<std::string> take_freed_identifiers() override {
    return std::exchange(freed_, std::exchange(encoded_, {}));
  }
  void reset() override {
    EncoderCacheManager::reset();
    freed_.clear();
    encoded_.clear();
  }

 private:
  [[nodiscard]] bool shares_outputs() const noexcept override { return false; }
  /// Only in a request's first step.
  [[nodiscard]] bool encodes_at(std::int32_t num_computed_tokens) const noexcept override {
    return num_computed_tokens == 0;
  }
  [[nodiscard]] std::int32_t end_of_need(
      const MultiModalFeature& /*item*/) const noexcept override {
    return 1;
  }

  std::vector<std::string> encoded_;  ///< since the last take
  std::vector<std::string> freed_;
};

}  // namespace

std::unique_ptr<EncoderCacheManager> make_encoder_decoder_cache_manager(
    const EncoderCacheSettings& settings) {
  return std::make_unique<EncoderDecoderCacheManager>(settings);
}

}  // namespace troupe
