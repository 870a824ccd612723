#include "runtime/models/gemma3_tower.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/models/vision_tower.hpp"
#include "runtime/models/vision_transformer.hpp"

namespace troupe {
namespace {

std::int64_t root_of(std::int64_t square) {
  return static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(square))));
}

/// Of each averaged square its patches, [per_image, count].
std::vector<std::int32_t> patches_of_squares(const VisionConfig& vision, std::int64_t per_image) {
  const std::int64_t side = vision.patches_per_side();
  const std::int64_t squares_per_side = root_of(per_image);
  const std::int64_t size = side / squares_per_side;
  std::vector<std::int32_t> patches;
  for (std::int64_t y = 0; y < squares_per_side; ++y)
    for (std::int64_t x = 0; x < squares_per_side; ++x)
      for (std::int64_t row = 0; row < size; ++row)
        for (std::int64_t col = 0; col < size; ++col)
          patches.push_back(static_cast<std::int32_t>((y * size + row) * side + x * size + col));
  return patches;
}

Linear load_projection(const ModelConfig& config, WeightLoader& loader,
                       const std::string& projector) {
  const std::int64_t num_rows = config.hidden_size;
  const std::int64_t num_cols = config.vision->hidden_size;
  return Linear(loader,
                {{.name = projector + "mm_input_projection_weight",
                  .num_rows = num_rows,
                  .rows = {0, num_rows},
                  .layout = WeightLoader::Layout{.shape = {num_cols, num_rows},
                                                 .col_stride = num_rows,
                                                 .has_suffix = false}}},
                num_cols, /*has_bias=*/false, MatrixRole::kEncoder);
}

class Gemma3Tower final : public ItemTower {
 public:
  Gemma3Tower(const ModelConfig& config, Device& device, WeightLoader& loader,
              const VisionTowerNames& names)
      : vision_(*config.vision),
        per_image_(config.image_tokens->per_image),
        encoder_(loader, device, names.encoder, vision_),
        squares_(loader.upload(patches_of_squares(vision_, per_image_))),
        norm_(loader, names.projector + "mm_soft_emb_norm", vision_.hidden_size,
              {.eps = vision_.layer_norm_eps,
               .weight_offset = config.norm_weights_include_one ? 0.0f : 1.0f}),
        projection_(load_projection(config, loader, names.projector)) {}

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
    const Matrix patches = encoder_.finish(device, scratch);
    const Matrix squares = scratch.take(per_image_, vision_.hidden_size);
    device.ops().mean_rows(device.context(),
                           {.x = patches,
                            .rows = squares_.data(),
                            .count = static_cast<std::int64_t>(squares_.size()) / per_image_,
                            .out = squares});
    norm_.apply(device.ops(), device.context(), squares);
    projection_.apply(device.ops(), device.context(), squares, out);
  }

  [[nodiscard]] MixerMemory memory(Device& device) const noexcept override {
    MixerMemory memory = encoder_.memory(device);
    memory.scratch_bytes = std::max(memory.scratch_bytes,
                                    Scratch::padded_bytes(vision_.num_rows(), vision_.hidden_size) +
                                        Scratch::padded_bytes(per_image_, vision_.hidden_size));
    memory.workspace_bytes = std::max(memory.workspace_bytes, device.ops().matmul_workspace_bytes(
                                                                  projection_.spec(), per_image_));
    return memory;
  }

 private:
  VisionConfig vision_;
  std::int64_t per_image_;
  VisionTransformer encoder_;
  DeviceArray<std::int32_t> squares_;
  RmsNorm norm_;
  Linear projection_;
};

}  // namespace

void check_gemma3_pooling(ConfigFields& root, const VisionConfig& vision, std::int64_t per_image) {
  const std::int64_t side = vision.patches_per_side();
  const std::int64_t squares = root_of(per_image);
  if (squares * squares == per_image && squares <= side && side % squares == 0) return;
  root.fail(ErrorCode::kUnsupported, "mm_tokens_per_image " + std::to_string(per_image) +
                                         " is not supported for images of " + std::to_string(side) +
                                         " x " + std::to_string(side) + " patches");
}

std::unique_ptr<const ItemTower> load_gemma3_tower(const ModelConfig& config, Device& device,
                                                   WeightLoader& loader) {
  const std::optional<VisionTowerNames> names = find_vision_tower(config, loader);
  if (!names) return nullptr;
  return std::make_unique<const Gemma3Tower>(config, device, loader, *names);
}

}  // namespace troupe
