#include "runtime/models/gemma3_tower.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/log.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/models/siglip.hpp"

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

DeviceArray<std::int32_t> upload_squares(const ModelConfig& config, Device& device,
                                         WeightLoader& loader) {
  auto squares = device.upload(patches_of_squares(*config.vision, config.image_tokens->per_image),
                               "a picture's squares");
  if (squares.ok()) return std::move(squares).value();
  loader.fail(squares.error().code, squares.error().message);
  return {};
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
                                                 .is_transposed = true,
                                                 .has_suffix = false}}},
                num_cols, /*has_bias=*/false, MatrixRole::kEncoder);
}

class Gemma3Tower final : public ItemTower {
 public:
  Gemma3Tower(const ModelConfig& config, Device& device, WeightLoader& loader,
              const std::string& tower, const std::string& projector)
      : vision_(*config.vision),
        per_image_(config.image_tokens->per_image),
        encoder_(loader, device, tower, vision_),
        squares_(upload_squares(config, device, loader)),
        norm_(loader, projector + "mm_soft_emb_norm", vision_.hidden_size,
              {.eps = vision_.layer_norm_eps, .weight_offset = 1}),
        projection_(load_projection(config, loader, projector)) {}

  [[nodiscard]] std::int64_t max_item_rows() const noexcept override { return per_image_; }

  [[nodiscard]] Result<void> check_item(const EncoderItem& item) const override {
    if (item.modality != "image")
      return Error{ErrorCode::kUnsupported,
                   "the model has no encoder for items of modality " + std::string(item.modality)};
    const std::int64_t expected[] = {vision_.num_channels, vision_.image_size, vision_.image_size};
    if (!std::ranges::equal(item.shape, expected))
      return invalid_argument("a picture has the shape " + shape_text(item.shape) +
                              ", the model's encoder takes " + shape_text(expected));
    if (item.num_rows != per_image_)
      return invalid_argument("a picture stands for " + std::to_string(item.num_rows) +
                              " tokens, the model's encoder makes " + std::to_string(per_image_));
    return {};
  }

  void encode(Device& device, Scratch scratch, const EncoderItem& item, Matrix out) const override {
    const Matrix patches = encoder_.encode(device, scratch, item.values);
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
    // The squares lie where the tower's other streams have been.
    MixerMemory memory = encoder_.memory(device);
    memory.workspace_bytes = std::max(memory.workspace_bytes, device.ops().matmul_workspace_bytes(
                                                                  projection_.spec(), per_image_));
    return memory;
  }

 private:
  VisionConfig vision_;
  std::int64_t per_image_;
  SiglipTower encoder_;
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
                                         " is not supported for pictures of " +
                                         std::to_string(side) + " x " + std::to_string(side) +
                                         " patches");
}

std::unique_ptr<const ItemTower> load_gemma3_tower(const ModelConfig& config, Device& device,
                                                   WeightLoader& loader) {
  // The names of transformers 4, and of 5 with and without the inner model's.
  for (const std::string root : {"", "model."}) {
    const std::string tower = root + "vision_tower.";
    const std::string projector = root + "multi_modal_projector.";
    for (const std::string inner : {"vision_model.", ""}) {
      if (!loader.has(tower + inner + "embeddings.patch_embedding.weight")) continue;
      loader.ignore(tower + inner + "head.");  // of the task that SigLIP was trained for
      if (!loader.parallel().is_first_stage()) {
        loader.ignore(tower);
        loader.ignore(projector);
        return nullptr;
      }
      if (!config.vision) {
        loader.fail(ErrorCode::kCorrupt,
                    "config.json: vision_config is missing, and the checkpoint has " + tower);
        return nullptr;
      }
      return std::make_unique<const Gemma3Tower>(config, device, loader, tower + inner, projector);
    }
  }
  if (config.vision) log_warning("the checkpoint has no encoder of pictures: it takes text alone");
  return nullptr;
}

}  // namespace troupe
