#include "runtime/models/whisper_encoder.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kConvWidth = 3;
constexpr std::int64_t kConvStride = 2;  ///< of the second one

/// A convolution over a sequence, with a frame of zeros at each end.
Linear load_convolution(WeightLoader& loader, const std::string& name, std::int64_t num_inputs,
                        std::int64_t num_outputs) {
  WeightLoader::Part part{name, num_outputs, {0, num_outputs}};
  const std::int64_t num_cols = num_inputs * kConvWidth;
  part.layout =
      WeightLoader::Layout{.shape = {num_outputs, num_inputs, kConvWidth}, .row_stride = num_cols};
  return Linear(loader, {part}, num_cols, /*has_bias=*/true, MatrixRole::kEncoder);
}

/// What the kernel sees at each of num_rows places, `stride` apart: [num_rows, channels * width],
/// of value(channel, frame), 0 beyond the frames.
template <class Value>
std::vector<float> seen_frames(std::int64_t num_rows, std::int64_t stride,
                               std::int64_t num_channels, std::int64_t num_frames,
                               const Value& value) {
  std::vector<float> rows;
  rows.reserve(static_cast<std::size_t>(num_rows * num_channels * kConvWidth));
  for (std::int64_t row = 0; row < num_rows; ++row)
    for (std::int64_t channel = 0; channel < num_channels; ++channel)
      for (std::int64_t k = 0; k < kConvWidth; ++k) {
        const std::int64_t frame = row * stride + k - 1;
        rows.push_back(frame < 0 || frame >= num_frames ? 0.0f : value(channel, frame));
      }
  return rows;
}

}  // namespace

WhisperEncoder::WhisperEncoder(WeightLoader& loader, Device& device, const std::string& prefix,
                               std::int64_t hidden_size, const SpeechConfig& config)
    : hidden_size_(hidden_size),
      config_(config),
      conv1_(load_convolution(loader, prefix + "conv1", config.num_mels, hidden_size)),
      conv2_(load_convolution(loader, prefix + "conv2", hidden_size, hidden_size)),
      positions_(
          loader.upload(loader.rows(prefix + "embed_positions", config.num_rows, hidden_size))),
      layers_(loader, device, prefix + "layers.",
              {.hidden_size = hidden_size,
               .intermediate_size = config.intermediate_size,
               .num_layers = config.num_layers,
               .num_heads = config.num_heads,
               .num_rows = config.num_rows,
               .layer_norm_eps = config.layer_norm_eps,
               .activation = config.activation,
               .k_bias = false,
               .names = {.attention_norm = "self_attn_layer_norm",
                         .mlp_norm = "final_layer_norm",
                         .up = "fc1",
                         .down = "fc2"}}),
      norm_(loader, prefix + "layer_norm", hidden_size, config.layer_norm_eps) {}

Result<void> WhisperEncoder::check_item(const EncoderItem& item) const {
  const std::vector<std::int64_t> expected = {config_.num_mels, kConvStride * config_.num_rows};
  if (item.modality != "audio")
    return Error{ErrorCode::kUnsupported,
                 "the model takes sounds, not items of kind " + std::string(item.modality)};
  if (!std::ranges::equal(item.shape, expected) || item.num_rows != config_.num_rows)
    return invalid_argument("a sound has " + std::to_string(item.num_rows) +
                            " rows, the model's have " + std::to_string(config_.num_rows) +
                            ", of features of " + std::to_string(expected[0]) + " by " +
                            std::to_string(expected[1]));
  return {};
}

void WhisperEncoder::encode_slice(Device& device, Scratch scratch, const EncoderItem& item,
                                  std::int64_t slice, Matrix out) const {
  CHECK(slice == 0, slice);
  const OpTable& ops = device.ops();
  const OpContext context = device.context();
  const std::int64_t num_rows = config_.num_rows;
  const std::int64_t num_frames = kConvStride * num_rows;
  const Matrix x = scratch.take(num_rows, hidden_size_);
  const Matrix residual = scratch.take(num_rows, hidden_size_);
  std::vector<float> frames(static_cast<std::size_t>(num_frames * hidden_size_));
  {
    Scratch inner = scratch;
    const Matrix first = inner.take(num_frames, hidden_size_);
    const std::vector<float> seen = seen_frames(
        num_frames, 1, config_.num_mels, num_frames, [&](std::int64_t channel, std::int64_t frame) {
          return item.values[static_cast<std::size_t>(channel * num_frames + frame)];
        });
    const Matrix rows = inner.take(num_frames, conv1_.spec().num_cols);
    device.copy_to_device(rows.data, seen.data(), seen.size() * sizeof(float));
    conv1_.apply(ops, context, rows, first);
    ops.gelu(context, {.gelu = Gelu::kErf, .out = first});
    device.copy_to_host(frames.data(), first.data, frames.size() * sizeof(float));
    if (!device.synchronize().ok()) return;  // reported by the step's status
  }
  {
    Scratch inner = scratch;
    const std::vector<float> seen =
        seen_frames(num_rows, kConvStride, hidden_size_, num_frames,
                    [&](std::int64_t channel, std::int64_t frame) {
                      return frames[static_cast<std::size_t>(frame * hidden_size_ + channel)];
                    });
    const Matrix rows = inner.take(num_rows, conv2_.spec().num_cols);
    device.copy_to_device(rows.data, seen.data(), seen.size() * sizeof(float));
    conv2_.apply(ops, context, rows, x);
    ops.gelu(context, {.gelu = Gelu::kErf, .out = x});
  }
  device.copy(residual.data, positions_.data(),
              static_cast<std::size_t>(num_rows * hidden_size_) * sizeof(float));
  layers_.forward(device, scratch, x, residual);
  norm_.add_and_apply(ops, context, x, residual, residual, out);
}

MixerMemory WhisperEncoder::memory(Device& device) const noexcept {
  const std::int64_t num_rows = config_.num_rows;
  const std::int64_t num_frames = kConvStride * num_rows;
  MixerMemory memory = layers_.memory(device);
  memory.scratch_bytes = std::max({memory.scratch_bytes,
                                   Scratch::padded_bytes(num_frames, hidden_size_) +
                                       Scratch::padded_bytes(num_frames, conv1_.spec().num_cols),
                                   Scratch::padded_bytes(num_rows, conv2_.spec().num_cols)}) +
                         2 * Scratch::padded_bytes(num_rows, hidden_size_);
  memory.workspace_bytes = std::max({memory.workspace_bytes,
                                     device.ops().matmul_workspace_bytes(conv1_.spec(), num_frames),
                                     device.ops().matmul_workspace_bytes(conv2_.spec(), num_rows)});
  return memory;
}

}  // namespace troupe
