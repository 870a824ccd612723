#pragma once
// Running a model's encoder without the rest of the model.

#include <memory>
#include <string>
#include <vector>

#include "messages/request.hpp"
#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/load_model.hpp"
#include "runtime/transport/shared_items.hpp"

namespace troupe {

/// Owns a device with an encoder. The Encoder actor's worker calls it, on one thread.
class EncoderRunner {
 public:
  /// Loads the encoder of options.model. The calling thread computes. Errors: those of load_tower
  /// and Device::create.
  static Result<std::unique_ptr<EncoderRunner>> load(const WorkerOptions& options);

  /// As ModelLoaded::encoder_key of an engine with the same options.
  [[nodiscard]] const std::string& key() const noexcept { return key_; }
  [[nodiscard]] std::int64_t hidden_size() const noexcept { return loaded_.config.hidden_size; }
  /// The item's rows, [num_embeds(item), hidden_size()]: the same bits as the engine's. Errors:
  /// kInvalidArgument, kUnsupported: the encoder cannot take it; those of the device.
  Result<std::vector<float>> encode(const MultiModalFeature& item);
  /// The device works, and the files of the weights are whole. Errors: as of
  /// ModelRunner::check_health.
  [[nodiscard]] Result<void> check_health() const;

 private:
  EncoderRunner(std::unique_ptr<Device> device, LoadedTower loaded, std::string key)
      : device_(std::move(device)), loaded_(std::move(loaded)), key_(std::move(key)) {}
  Result<void> reserve();

  std::unique_ptr<Device> device_;  // outlives the tower
  LoadedTower loaded_;
  std::string key_;
  DeviceMemory scratch_;
  DeviceMemory rows_;  ///< of one item
  SharedItemReader shared_items_;
};

}  // namespace troupe
