// Whisper (arXiv 2212.04356): an encoder of sounds, and a decoder of text that attends to what it
// makes of them.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/models/cross_attention.hpp"
#include "runtime/models/decoder.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/gather_logits.hpp"
#include "runtime/models/registry.hpp"
#include "runtime/models/whisper_encoder.hpp"

namespace troupe {
namespace {

constexpr float kLayerNormEps = 1e-5f;

void read_whisper_config(ConfigFields& text, bool /*is_gguf*/, ModelConfig& config) {
  const auto size = [&](std::string_view key, std::int64_t otherwise) {
    return text.integer(key, otherwise, 1, kMaxConfigSize);
  };
  // Of what encoder and decoder have each, the common names are the encoder's.
  config.hidden_size = text.integer_of("d_model", "hidden_size", 384, 1, kMaxConfigSize);
  config.intermediate_size = size("decoder_ffn_dim", 1536);
  config.num_layers = text.integer("decoder_layers", 4, 1, kMaxConfigLayers);
  config.num_heads = size("decoder_attention_heads", 6);
  config.num_kv_heads = config.num_heads;
  config.vocab_size = size("vocab_size", 51865);
  config.max_positions = size("max_target_positions", 448);
  config.max_model_len = config.max_positions;
  config.layer_norm_eps = kLayerNormEps;
  check_activation(text, "activation_function", "gelu", config);
  // scale_embedding is not read: neither transformers nor vLLM scales what the decoder looks up.
  const std::int64_t encoder_heads =
      text.integer_of("encoder_attention_heads", "num_attention_heads", 6, 1, kMaxConfigSize);
  const std::int64_t kv_heads = size("num_key_value_heads", encoder_heads);  // a third name
  if (kv_heads != encoder_heads)
    text.fail(ErrorCode::kUnsupported, "num_key_value_heads is " + std::to_string(kv_heads) +
                                           ", but encoder_attention_heads is " +
                                           std::to_string(encoder_heads));
  SpeechConfig speech{
      .num_mels = size("num_mel_bins", 80),
      .num_rows = size("max_source_positions", 1500),
      .num_layers = text.integer_of("encoder_layers", "num_hidden_layers", 4, 1, kMaxConfigLayers),
      .num_heads = encoder_heads,
      .intermediate_size = size("encoder_ffn_dim", 1536),
      .layer_norm_eps = kLayerNormEps};
  for (const auto& [key, heads] : {std::pair("decoder_attention_heads", config.num_heads),
                                   {"encoder_attention_heads", speech.num_heads}})
    if (config.hidden_size % heads != 0)
      text.fail(ErrorCode::kCorrupt, "d_model is " + std::to_string(config.hidden_size) +
                                         ", not a multiple of " + key + ", " +
                                         std::to_string(heads));
  config.head_dim = std::max<std::int64_t>(1, config.hidden_size / config.num_heads);
  if (config.head_dim > kMaxHeadDim)
    text.fail(ErrorCode::kUnsupported, "heads have " + std::to_string(config.head_dim) +
                                           " elements, at most " + std::to_string(kMaxHeadDim) +
                                           " are supported");
  config.attention_scale = 1 / std::sqrt(static_cast<float>(config.head_dim));
  config.sliding_windows.assign(static_cast<std::size_t>(config.num_layers), 0);
  config.speech = speech;
}

/// x + attention(norm(x)), then the same with cross attention and with an MLP.
struct WhisperLayer {
  WhisperLayer(WeightLoader& loader, const std::string& name, const ModelConfig& config,
               std::size_t layer)
      : self_attention_norm(load_norm(loader, name + ".self_attn_layer_norm", config)),
        self_attention(loader, name + ".self_attn", self_options(config, layer)),
        cross_attention_norm(load_norm(loader, name + ".encoder_attn_layer_norm", config)),
        cross_attention(loader, name + ".encoder_attn",
                        {.layer = 2 * layer + 1,
                         .hidden_size = config.hidden_size,
                         .num_heads = config.num_heads,
                         .head_dim = config.head_dim,
                         .num_encoder_rows = config.speech->num_rows,
                         .canonical_shards = config.canonical_shards()}),
        mlp_norm(load_norm(loader, name + ".final_layer_norm", config)),
        up(loader,
           {{name + ".fc1", config.intermediate_size, loader.shard(config.intermediate_size)}},
           config.hidden_size, /*has_bias=*/true),
        down(loader, name + ".fc2", config.hidden_size, config.intermediate_size,
             /*has_bias=*/true, config.canonical_shards()) {}

  static LayerNorm load_norm(WeightLoader& loader, const std::string& name,
                             const ModelConfig& config) {
    return LayerNorm(loader, name, config.hidden_size, config.layer_norm_eps);
  }
  /// Caches of both kinds of attention are numbered in turns.
  static AttentionOptions self_options(const ModelConfig& config, std::size_t layer) {
    AttentionOptions attention = attention_options(config, layer, nullptr);
    attention.layer = 2 * layer;
    attention.qkv_bias = true;
    attention.k_bias = false;
    attention.output_bias = true;
    attention.names.output = "out_proj";
    return attention;
  }

  LayerNorm self_attention_norm;
  Attention self_attention;
  LayerNorm cross_attention_norm;
  CrossAttention cross_attention;
  LayerNorm mlp_norm;
  Linear up;
  RowParallelLinear down;
};

class WhisperModel final : public Model {
 public:
  WhisperModel(const ModelConfig& config, Device& device, WeightLoader& loader)
      : config_(config),
        device_(device),
        encoder_(loader, device, "model.encoder.", config.hidden_size, *config.speech),
        words_(loader.table("model.decoder.embed_tokens", config.vocab_size, config.hidden_size)),
        positions_(loader.table("model.decoder.embed_positions", config.max_positions,
                                config.hidden_size)),
        norm_(WhisperLayer::load_norm(loader, "model.decoder.layer_norm", config)),
        head_(loader,
              {{config.tie_word_embeddings ? "model.decoder.embed_tokens" : "proj_out",
                config.vocab_size, loader.shard(config.vocab_size)}},
              config.hidden_size, false, MatrixRole::kHead),
        tensor_parallel_size_(loader.parallel().tensor_parallel_size),
        device_batch_(device) {
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
      layers_.push_back(std::make_unique<const WhisperLayer>(
          loader, "model.decoder.layers." + std::to_string(layer), config,
          static_cast<std::size_t>(layer)));
    if (config.tie_word_embeddings) loader.ignore("proj_out.");
    weight_bytes_ = loader.num_packed_bytes();
  }

  [[nodiscard]] std::int64_t hidden_size() const noexcept override { return config_.hidden_size; }
  [[nodiscard]] std::int64_t vocab_size() const noexcept override { return config_.vocab_size; }
  [[nodiscard]] std::int64_t max_model_len() const noexcept override {
    return config_.max_model_len;
  }
  [[nodiscard]] std::int64_t weight_bytes() const noexcept override { return weight_bytes_; }
  [[nodiscard]] std::int32_t canonical_shards() const noexcept override {
    return config_.canonical_shards();
  }
  [[nodiscard]] std::vector<LayerCacheSpec> kv_cache_specs(std::int32_t block_size,
                                                           DType dtype) const override {
    std::vector<LayerCacheSpec> specs;
    for (const auto& layer : layers_) {
      layer->self_attention.add_cache_specs(block_size, dtype, specs);
      layer->cross_attention.add_cache_specs(block_size, dtype, specs);
    }
    return specs;
  }
  [[nodiscard]] std::int64_t max_item_rows() const noexcept override {
    return encoder_.max_item_rows();
  }
  [[nodiscard]] Result<void> check_item(const EncoderItem& item) const override {
    return encoder_.check_item(item);
  }
  [[nodiscard]] std::int64_t num_item_slices() const noexcept override {
    return encoder_.num_item_slices();
  }
  void encode_slice(const EncoderItem& item, std::int64_t slice, Matrix out) override {
    encoder_.encode_slice(device_, Scratch(activations_.bytes()), item, slice, out);
  }

  Result<void> reserve(const BatchLimits& limits) override {
    const std::int64_t num_tokens = limits.max_num_tokens;
    const MixerLimits mixer_limits{.max_num_tokens = num_tokens,
                                   .max_seq_len = config_.max_model_len};
    MixerMemory most;
    const auto add = [&](const MixerMemory& memory, std::int64_t streams) {
      most.scratch_bytes = std::max(most.scratch_bytes, memory.scratch_bytes + streams);
      most.workspace_bytes = std::max(most.workspace_bytes, memory.workspace_bytes);
    };
    constexpr std::int64_t kNumStreams = 3;  // residual, x, normed
    const std::int64_t streams =
        kNumStreams * Scratch::padded_bytes(num_tokens, config_.hidden_size);
    add(encoder_.memory(device_), 0);
    add({.scratch_bytes = gather_logits_bytes(limits.max_num_logit_rows, head_.spec().num_rows,
                                              tensor_parallel_size_),
         .workspace_bytes =
             device_.ops().matmul_workspace_bytes(head_.spec(), limits.max_num_logit_rows)},
        0);
    for (const auto& layer : layers_) {
      add(layer->self_attention.memory(device_, mixer_limits), streams);
      add(layer->cross_attention.memory(device_, mixer_limits), streams);
      add({.scratch_bytes =
               Scratch::padded_bytes(num_tokens, Scratch::spread(layer->up.spec().num_rows)),
           .workspace_bytes =
               std::max(device_.ops().matmul_workspace_bytes(layer->up.spec(), num_tokens),
                        device_.ops().matmul_workspace_bytes(layer->down.spec(), num_tokens))},
          streams);
    }
    ASSIGN_OR_RETURN(activations_,
                     device_.allocate(static_cast<std::size_t>(most.scratch_bytes), "activations"));
    return device_.reserve_workspace(most.workspace_bytes);
  }

  void forward(const ForwardBatch& batch, std::span<const LayerKvCache> caches, Communicator* peers,
               Matrix hidden) override {
    Scratch scratch(activations_.bytes());
    const Matrix residual = scratch.take(batch.num_tokens(), config_.hidden_size);
    const Matrix x = scratch.take(batch.num_tokens(), config_.hidden_size);
    const Matrix normed = scratch.take(batch.num_tokens(), config_.hidden_size);
    const ForwardBatch* const device_batch = device_batch_.put(batch);
    if (device_batch == nullptr) return;
    const LayerStep step = LayerStep::of(device_, batch, *device_batch, caches, peers, scratch);
    look_up(step, words_, config_.vocab_size, device_batch->token_ids.data(),
            config_.embedding_scale, residual);
    look_up(step, positions_, config_.max_positions, device_batch->positions.data(), 1, x);
    const auto norm = [&](const LayerNorm& by) {
      by.add_and_apply(step.ops, step.context, x, residual, residual, normed);
    };
    std::int32_t number = 0;
    for (const auto& layer : layers_) {
      for (LayerHook* const hook : batch.layer_hooks) hook->before_layer(number);
      norm(layer->self_attention_norm);
      layer->self_attention.forward(step, normed, x);
      norm(layer->cross_attention_norm);
      layer->cross_attention.forward(step, normed, x);
      norm(layer->mlp_norm);
      Scratch inner = scratch;
      const Matrix wide = inner.take_spread(batch.num_tokens(), layer->up.spec().num_rows);
      layer->up.apply(step.ops, step.context, normed, wide);
      step.ops.gelu(step.context, {.out = wide});
      layer->down.apply(step, wide, x);
      for (LayerHook* const hook : batch.layer_hooks) hook->after_layer(number);
      ++number;
    }
    norm(norm_);
    copy_outputs(step, normed, hidden);
  }

  void compute_logits(ConstMatrix hidden, Communicator* peers, Matrix out) override {
    gather_logits(device_, Scratch(activations_.bytes()), peers, out, [&](Matrix part) {
      head_.apply(device_.ops(), device_.context(), hidden, part);
    });
  }

 private:
  void look_up(const LayerStep& step, const EmbeddingTable& table, std::int64_t num_rows,
               const std::int32_t* ids, float scale, Matrix out) const {
    step.ops.embedding(step.context,
                       {.table = {table.data(), table.type(), num_rows, config_.hidden_size},
                        .ids = ids,
                        .scale = scale,
                        .out = out});
  }

  ModelConfig config_;
  Device& device_;
  WhisperEncoder encoder_;
  EmbeddingTable words_;
  EmbeddingTable positions_;
  std::vector<std::unique_ptr<const WhisperLayer>> layers_;
  LayerNorm norm_;
  Linear head_;  ///< rows of this rank
  std::int32_t tensor_parallel_size_;
  std::int64_t weight_bytes_ = 0;
  DeviceMemory activations_;
  DeviceBatch device_batch_;
};

std::unique_ptr<Model> make_whisper(const ModelConfig& config, Device& device,
                                    WeightLoader& loader) {
  if (loader.parallel().pipeline_parallel_size > 1)
    loader.fail(ErrorCode::kUnsupported,
                "pipeline parallelism is not supported for WhisperForConditionalGeneration");
  return std::make_unique<WhisperModel>(config, device, loader);
}

}  // namespace

extern const RegisteredArchitecture kWhisper = {.name = "WhisperForConditionalGeneration",
                                                .model_type = "whisper",
                                                .ties_embeddings = true,
                                                .read_config = read_whisper_config,
                                                .make = make_whisper};

}  // namespace troupe
