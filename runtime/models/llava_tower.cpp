#include "runtime/models/llava_tower.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "runtime/models/vision_tower.hpp"
#include "runtime/models/vision_transformer.hpp"

namespace troupe {
namespace {

Linear load_projector_layer(WeightLoader& loader, const std::string& name, std::int64_t num_rows,
                            std::int64_t num_cols, bool has_bias) {
  return Linear(loader, {{name, num_rows, {0, num_rows}}}, num_cols, has_bias,
                MatrixRole::kEncoder);
}

class LlavaTower final : public ItemTower {
 public:
  LlavaTower(const ModelConfig& config, Device& device, WeightLoader& loader,
             const VisionTowerNames& names)
      : vision_(*config.vision),
        projector_(*config.projector),
        hidden_size_(config.hidden_size),
        per_image_(config.image_tokens->per_image),
        encoder_(loader, device, names.encoder, vision_),
        first_(load_projector_layer(loader, names.projector + "linear_1", hidden_size_,
                                    vision_.hidden_size, projector_.has_bias)),
        second_(load_projector_layer(loader, names.projector + "linear_2", hidden_size_,
                                     hidden_size_, projector_.has_bias)) {}

  [[nodiscard]] std::int64_t max_item_rows() const noexcept override { return per_image_; }

  [[nodiscard]] Result<void> check_item(const EncoderItem& item) const override {
    return check_image(vision_, per_image_, item);
  }

  [[nodiscard]] std::int64_t num_item_slices() const noexcept override {
    return encoder_.num_slices() + 1;
  }

  void encode_slice(Device& device, Scratch scratch, const EncoderItem& item, std::int64_t slice,
                    Matrix out) const override {
    if (slice < encoder_.num_slices())
      return encoder_.encode_slice(device, scratch, item.values, slice);
    const Matrix states = encoder_.finish(device, scratch);
    const Matrix taken(states.row(states.num_rows - per_image_), per_image_, states.num_cols);
    const Matrix wide = scratch.take_spread(per_image_, hidden_size_);
    first_.apply(device.ops(), device.context(), taken, wide);
    device.ops().gelu(device.context(), {.gelu = projector_.activation, .out = wide});
    second_.apply(device.ops(), device.context(), wide, out);
  }

  [[nodiscard]] MixerMemory memory(Device& device) const noexcept override {
    MixerMemory memory = encoder_.memory(device);
    memory.scratch_bytes = std::max(
        memory.scratch_bytes, Scratch::padded_bytes(vision_.num_rows(), vision_.hidden_size) +
                                  Scratch::padded_bytes(per_image_, Scratch::spread(hidden_size_)));
    for (const Linear* linear : {&first_, &second_})
      memory.workspace_bytes = std::max(
          memory.workspace_bytes, device.ops().matmul_workspace_bytes(linear->spec(), per_image_));
    return memory;
  }

 private:
  VisionConfig vision_;
  ProjectorConfig projector_;
  std::int64_t hidden_size_;  ///< of the decoder
  std::int64_t per_image_;    ///< the last so many of the encoder's rows
  VisionTransformer encoder_;
  Linear first_;
  Linear second_;
};

}  // namespace

std::unique_ptr<const ItemTower> load_llava_tower(const ModelConfig& config, Device& device,
                                                  WeightLoader& loader) {
  const std::optional<VisionTowerNames> names = find_vision_tower(config, loader);
  if (!names) return nullptr;
  return std::make_unique<const LlavaTower>(config, device, loader, *names);
}

}  // namespace troupe
