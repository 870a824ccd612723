#pragma once
// A worker's encoder: runs the model's tower on the items of a step and keeps what it makes.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "messages/encoder_input.hpp"
#include "messages/request.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/model.hpp"
#include "runtime/transport/shared_items.hpp"
#include "runtime/worker/encoder_outputs.hpp"

namespace troupe {

/// An item of a request as encoders take it.
struct UnpackedItem {
  std::shared_ptr<const void> pin;  ///< of what `input` refers to, if that is in shared memory
  EncoderInput input;
  EncoderItem item;  ///< refers to `input` and to the feature
};
/// Of a feature, to which the result refers. `shared`: where it may lie. Errors: kInternal, it has
/// no data, or none that can be read; those of SharedItemReader::read.
[[nodiscard]] Result<UnpackedItem> unpack_item(const MultiModalFeature& feature,
                                               SharedItemReader& shared);

/// Owns the outputs, and the one that is being made. Device and model outlive it.
class ItemEncoder {
 public:
  /// Room for `capacity` embeddings, or those of one item, if that has more. Errors: those of
  /// EncoderOutputs::create. Pre: the model has an encoder.
  static Result<ItemEncoder> create(Device& device, Model& model, std::int64_t capacity);

  /// Frees what the step frees.
  void update(const SchedulerOutput& step);
  /// Encodes those of `items` whose output is not cached, except what was encoded ahead; returns
  /// their identifiers. Errors: kInternal, no space in the cache; those of Model::check_item,
  /// naming the item.
  Result<std::vector<std::string>> encode(std::span<const MultiModalFeature* const> items);
  /// Encodes slices of the step's encode_ahead until its time has passed, at least one. Errors of
  /// the item are reported by encode().
  void encode_ahead(const SchedulerOutput& step);
  /// Since the last call: what is encoded, and waits for encode().
  [[nodiscard]] std::vector<std::string> take_encoded_ahead() {
    return std::exchange(encoded_ahead_, {});
  }
  void clear();

  [[nodiscard]] const EncoderOutputs& outputs() const noexcept { return outputs_; }
  /// For an EC connector.
  [[nodiscard]] EncoderOutputs& outputs() noexcept { return outputs_; }
  /// Items encoded so far.
  [[nodiscard]] std::int64_t num_encoded() const noexcept { return num_encoded_; }

 private:
  /// An item on its way through the encoder, which has room for one.
  struct ItemAhead {
    MultiModalFeature feature;
    UnpackedItem unpacked;
    bool is_wrong = false;  ///< the encoder does not take it
    std::int64_t num_slices_done = 0;
  };

  ItemEncoder(Device& device, Model& model, EncoderOutputs outputs, DeviceMemory rows)
      : device_(&device), model_(&model), outputs_(std::move(outputs)), rows_(std::move(rows)) {}
  Result<void> encode_one(const MultiModalFeature& item);
  /// Slices [begin, num_item_slices), into rows_, until `goes_on` says no. Returns the next one.
  template <class GoesOn>
  std::int64_t run_slices(const EncoderItem& item, std::int64_t begin, GoesOn&& goes_on);
  void begin_ahead(const MultiModalFeature& feature);
  [[nodiscard]] bool is_encoded(const ItemAhead& ahead) const noexcept {
    return ahead.is_wrong || ahead.num_slices_done == model_->num_item_slices();
  }

  Device* device_;
  Model* model_;
  EncoderOutputs outputs_;
  DeviceMemory rows_;  ///< of one item, on their way to where there is room
  SharedItemReader shared_items_;
  std::optional<ItemAhead> ahead_;
  std::vector<std::string> encoded_ahead_;
  std::int64_t num_encoded_ = 0;
};

}  // namespace troupe
