#pragma once
// A worker's encoder: runs the model's tower on the items of a step and keeps what it makes.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "messages/encoder_input.hpp"
#include "messages/request.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/model.hpp"
#include "runtime/worker/encoder_outputs.hpp"

namespace troupe {

/// An item of a request as encoders take it.
struct UnpackedItem {
  EncoderInput input;
  EncoderItem item;  ///< refers to `input` and to the feature
};
/// Of a feature, to which the result refers. Errors: kInternal, it has no data, or none that can be
/// read.
[[nodiscard]] Result<UnpackedItem> unpack_item(const MultiModalFeature& feature);

/// Owns the outputs. Device and model outlive it.
class ItemEncoder {
 public:
  /// Room for `capacity` embeddings, or those of one item, if that has more. Errors: those of
  /// EncoderOutputs::create. Pre: the model has an encoder.
  static Result<ItemEncoder> create(Device& device, Model& model, std::int64_t capacity);

  /// Frees what the step frees.
  void update(const SchedulerOutput& step);
  /// Encodes those of `items` whose output is not there: returns their identifiers. Errors:
  /// kInternal, there is no room; those of Model::check_item, naming the item.
  Result<std::vector<std::string>> encode(std::span<const MultiModalFeature* const> items);
  void clear() { outputs_.clear(); }

  [[nodiscard]] const EncoderOutputs& outputs() const noexcept { return outputs_; }
  /// For an EC connector.
  [[nodiscard]] EncoderOutputs& outputs() noexcept { return outputs_; }
  /// Items encoded so far.
  [[nodiscard]] std::int64_t num_encoded() const noexcept { return num_encoded_; }

 private:
  ItemEncoder(Device& device, Model& model, EncoderOutputs outputs, DeviceMemory rows)
      : device_(&device), model_(&model), outputs_(std::move(outputs)), rows_(std::move(rows)) {}
  Result<void> encode_one(const MultiModalFeature& item);

  Device* device_;
  Model* model_;
  EncoderOutputs outputs_;
  DeviceMemory rows_;  ///< of one item, on their way to where there is room
  std::int64_t num_encoded_ = 0;
};

}  // namespace troupe
