#pragma once
// Whisper's encoder (arXiv 2212.04356): two convolutions over the frames of a sound, and a
// transformer over what they give.

#include <cstdint>
#include <string>

#include "runtime/models/encoder_layers.hpp"
#include "runtime/models/item_tower.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

/// Loaded whole by each rank.
class WhisperEncoder final : public ItemTower {
 public:
  /// `prefix` stands before "conv1.weight". Errors stay in the loader.
  WhisperEncoder(WeightLoader& loader, Device& device, const std::string& prefix,
                 std::int64_t hidden_size, const SpeechConfig& config);

  [[nodiscard]] std::int64_t max_item_rows() const noexcept override { return config_.num_rows; }
  /// values: log-mel features, [num_mels, 2 num_rows].
  [[nodiscard]] Result<void> check_item(const EncoderItem& item) const override;
  [[nodiscard]] std::int64_t num_item_slices() const noexcept override { return 1; }
  /// out: the hidden states behind the last norm, [num_rows, hidden_size].
  void encode_slice(Device& device, Scratch scratch, const EncoderItem& item, std::int64_t slice,
                    Matrix out) const override;
  [[nodiscard]] MixerMemory memory(Device& device) const noexcept override;

 private:
  std::int64_t hidden_size_;
  SpeechConfig config_;
  Linear conv1_;  ///< a row of its input: for each channel, what the kernel sees of it
  Linear conv2_;
  DeviceArray<float> positions_;  ///< [num_rows, hidden_size]
  EncoderLayers layers_;
  LayerNorm norm_;
};

}  // namespace troupe
