#include "runtime/models/vision_transformer.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

Linear load_patch_embedding(WeightLoader& loader, const std::string& name,
                            const VisionConfig& config) {
  WeightLoader::Part part{name, config.hidden_size, {0, config.hidden_size}};
  const std::int64_t num_cols = config.num_channels * config.patch_size * config.patch_size;
  part.layout = WeightLoader::Layout{
      .shape = {config.hidden_size, config.num_channels, config.patch_size, config.patch_size},
      .row_stride = num_cols};
  return Linear(loader, {part}, num_cols, config.has_patch_bias, MatrixRole::kEncoder);
}

DeviceArray<float> load_positions(WeightLoader& loader, const std::string& name,
                                  const VisionConfig& config) {
  std::vector<float> rows =
      loader.rows(name + "position_embedding", config.num_rows(), config.hidden_size);
  if (config.has_class_token) {
    const std::vector<float> token = loader.values(name + "class_embedding", config.hidden_size);
    std::ranges::transform(token, rows, rows.begin(), std::plus<float>());
  }
  return loader.upload(std::move(rows));
}

std::optional<LayerNorm> load_norm(bool is_there, WeightLoader& loader, const std::string& name,
                                   const VisionConfig& config) {
  if (!is_there) return std::nullopt;
  return LayerNorm(loader, name, config.hidden_size, config.layer_norm_eps);
}

}  // namespace

VisionTransformer::VisionTransformer(WeightLoader& loader, Device& device,
                                     const std::string& prefix, const VisionConfig& config)
    : config_(config),
      patch_embedding_(load_patch_embedding(loader, prefix + "embeddings.patch_embedding", config)),
      positions_(load_positions(loader, prefix + "embeddings.", config)),
      // The name has been misspelt since the first release.
      input_norm_(load_norm(config.norms_input, loader, prefix + "pre_layrnorm", config)),
      layers_(loader, device, prefix + "encoder.layers.",
              {.hidden_size = config.hidden_size,
               .intermediate_size = config.intermediate_size,
               .num_layers = config.num_used_layers,
               .num_heads = config.num_heads,
               .num_rows = config.num_rows(),
               .layer_norm_eps = config.layer_norm_eps,
               .activation = config.activation}),
      output_norm_(load_norm(config.norms_output, loader, prefix + "post_layernorm", config)),
      streams_(loader.allocate(2 * Scratch::padded_bytes(config.num_rows(), config.hidden_size),
                               "an image's hidden states")) {
  for (std::int64_t layer = config.num_used_layers; layer < config.num_layers; ++layer)
    loader.ignore(prefix + "encoder.layers." + std::to_string(layer) + ".");
  loader.ignore(prefix + "embeddings.position_ids");  // 0, 1, 2, ...
  if (!config.norms_output) loader.ignore(prefix + "post_layernorm.");
}

std::vector<float> VisionTransformer::cut_patches(std::span<const float> pixels) const {
  const std::int64_t side = config_.patches_per_side();
  const std::int64_t patch = config_.patch_size;
  std::vector<float> rows;
  rows.reserve(
      static_cast<std::size_t>(config_.num_patches() * config_.num_channels * patch * patch));
  for (std::int64_t y = 0; y < side; ++y)
    for (std::int64_t x = 0; x < side; ++x)
      for (std::int64_t channel = 0; channel < config_.num_channels; ++channel)
        for (std::int64_t row = 0; row < patch; ++row) {
          const float* first =
              pixels.data() +
              ((channel * config_.image_size) + y * patch + row) * config_.image_size + x * patch;
          rows.insert(rows.end(), first, first + patch);
        }
  return rows;
}

VisionTransformer::Streams VisionTransformer::streams() const noexcept {
  Scratch memory(streams_.bytes());
  const std::int64_t num_rows = config_.num_rows();
  return {.x = memory.take(num_rows, config_.hidden_size),
          .residual = memory.take(num_rows, config_.hidden_size)};
}

void VisionTransformer::embed(Device& device, Scratch scratch, std::span<const float> pixels,
                              const Streams& streams) const {
  const auto row_bytes = static_cast<std::size_t>(config_.hidden_size) * sizeof(float);
  Matrix x = streams.x;
  if (config_.has_class_token) {
    device.fill_zero(x.data, row_bytes);
    x = {x.row(1), x.num_rows - 1, x.num_cols, x.row_stride};
  }
  const std::vector<float> cut = cut_patches(pixels);
  const Matrix patches = scratch.take(x.num_rows, patch_embedding_.spec().num_cols);
  device.copy_to_device(patches.data, cut.data(), cut.size() * sizeof(float));
  patch_embedding_.apply(device.ops(), device.context(), patches, x);
  const std::size_t num_bytes = static_cast<std::size_t>(config_.num_rows()) * row_bytes;
  device.copy(streams.residual.data, positions_.data(), num_bytes);
  if (!input_norm_) return;
  input_norm_->add_and_apply(device.ops(), device.context(), streams.x, streams.residual,
                             streams.residual);
  device.fill_zero(streams.x.data, num_bytes);
}

void VisionTransformer::encode_slice(Device& device, Scratch scratch, std::span<const float> pixels,
                                     std::int64_t slice) const {
  CHECK(std::ssize(pixels) == config_.num_channels * config_.image_size * config_.image_size,
        pixels.size());
  CHECK(slice >= 0 && slice < num_slices(), slice);
  const Streams all = streams();
  if (slice == 0)
    embed(device, scratch, pixels, all);
  else
    layers_.run_slice(device, scratch, all.x, all.residual, slice - 1);
}

Matrix VisionTransformer::finish(Device& device, Scratch& scratch) const {
  const Streams all = streams();
  const Matrix states = scratch.take(config_.num_rows(), config_.hidden_size);
  if (output_norm_)
    output_norm_->add_and_apply(device.ops(), device.context(), all.x, all.residual, states);
  else
    layers_.add(device, all.x, all.residual, states);
  return states;
}

MixerMemory VisionTransformer::memory(Device& device) const noexcept {
  const std::int64_t num_rows = config_.num_rows();
  MixerMemory memory = layers_.memory(device);
  memory.scratch_bytes = std::max(
      {memory.scratch_bytes, Scratch::padded_bytes(num_rows, patch_embedding_.spec().num_cols),
       Scratch::padded_bytes(num_rows, config_.hidden_size)});
  memory.workspace_bytes = std::max(memory.workspace_bytes, device.ops().matmul_workspace_bytes(
                                                                patch_embedding_.spec(), num_rows));
  return memory;
}

}  // namespace troupe
