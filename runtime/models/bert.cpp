// BERT (arXiv 1810.04805): an encoder of texts, whose layers have their norms behind them; and
// RoBERTa (arXiv 1907.11692, 1911.02116), whose positions begin behind that of padding.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/models/classification_head.hpp"
#include "runtime/models/decoder.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/device_batch.hpp"
#include "runtime/models/parallel.hpp"
#include "runtime/models/quantize.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_encoder(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 768,
              .intermediate_size = 3072,
              .num_layers = 12,
              .num_heads = 12,
              .vocab_size = 30522,
              .max_positions = 512},
             config);
  // The family has no fields for these.
  config.num_kv_heads = config.num_heads;
  config.head_dim = std::max<std::int64_t>(1, config.hidden_size / config.num_heads);
  check_activation(text, "hidden_act", "gelu", config);
  const std::string positions = text.text("position_embedding_type", "absolute");
  if (positions != "absolute")
    text.fail(ErrorCode::kUnsupported,
              "position_embedding_type " + positions + " is not supported, only absolute");
  if (text.boolean("is_decoder", false))  // its attention would be causal
    text.fail(ErrorCode::kUnsupported, "is_decoder is true, which is not supported");
  config.layer_norm_eps = static_cast<float>(text.number("layer_norm_eps", 1e-12));
  config.num_token_types = text.integer("type_vocab_size", 2, 1, 1 << 16);
  config.max_positions = config.max_model_len;
  set_equal_windows(text, 0, config);
}

void read_bert_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_encoder(text, is_gguf, config);
}

void read_roberta_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_encoder(text, is_gguf, config);
  config.first_position = text.integer("pad_token_id", 1, 0, INT32_MAX) + 1;
  config.max_model_len -= config.first_position;
  if (config.max_model_len < 1)
    text.fail(ErrorCode::kCorrupt, "max_position_embeddings is " +
                                       std::to_string(config.max_positions) +
                                       ", positions begin behind pad_token_id");
}

/// Post-norm: x = norm(x + attention(x)), x = norm(x + mlp(x)).
struct BertLayer {
  BertLayer(WeightLoader& loader, const std::string& name, const ModelConfig& config,
            std::size_t layer)
      : attention(loader, name + ".attention", options_of(config, layer)),
        attention_norm(loader, name + ".attention.output.LayerNorm", config.hidden_size,
                       config.layer_norm_eps),
        up(loader,
           {{name + ".intermediate.dense", config.intermediate_size,
             loader.shard(config.intermediate_size)}},
           config.hidden_size, /*has_bias=*/true),
        down(loader, name + ".output.dense", config.hidden_size, config.intermediate_size,
             /*has_bias=*/true, config.canonical_shards()),
        norm(loader, name + ".output.LayerNorm", config.hidden_size, config.layer_norm_eps) {}

  static AttentionOptions options_of(const ModelConfig& config, std::size_t layer) {
    AttentionOptions attention = attention_options(config, layer, nullptr);
    attention.qkv_bias = true;
    attention.output_bias = true;
    attention.names = {"self.query", "self.key", "self.value", "output.dense"};
    return attention;
  }

  Attention attention;
  LayerNorm attention_norm;
  Linear up;
  RowParallelLinear down;
  LayerNorm norm;
};

class BertModel final : public Model {
 public:
  BertModel(const ModelConfig& config, Device& device, WeightLoader& loader)
      : config_(config),
        device_(device),
        words_(loader.table(prefix(loader) + "embeddings.word_embeddings", config.vocab_size,
                            config.hidden_size)),
        positions_(loader.table(prefix(loader) + "embeddings.position_embeddings",
                                config.max_positions, config.hidden_size)),
        types_(loader.table(prefix(loader) + "embeddings.token_type_embeddings",
                            config.num_token_types, config.hidden_size)),
        classes_(load_classes(config, loader)),
        first_type_(first_row(types_, config, loader)),
        norm_(loader, prefix(loader) + "embeddings.LayerNorm", config.hidden_size,
              config.layer_norm_eps),
        device_batch_(device) {
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
      layers_.push_back(std::make_unique<const BertLayer>(
          loader, prefix(loader) + "encoder.layer." + std::to_string(layer), config,
          static_cast<std::size_t>(layer)));
    loader.ignore(prefix(loader) + "pooler.");  // of the task that it was trained for
    for (const char* const head : {"cls.", "lm_head.", "classifier."}) loader.ignore(head);
    loader.ignore(prefix(loader) + "embeddings.position_ids");
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
  [[nodiscard]] bool is_encoder() const noexcept override { return true; }
  [[nodiscard]] std::vector<LayerCacheSpec> kv_cache_specs(std::int32_t block_size,
                                                           DType dtype) const override {
    std::vector<LayerCacheSpec> specs;
    for (const auto& layer : layers_)
      if (auto spec = layer->attention.cache_spec(block_size, dtype))
        specs.push_back(*std::move(spec));
    return specs;
  }

  Result<void> reserve(const BatchLimits& limits) override {
    const std::int64_t num_tokens = limits.max_num_tokens;
    const MixerLimits mixer_limits{.max_num_tokens = num_tokens,
                                   .max_seq_len = config_.max_model_len};
    MixerMemory most;
    for (const auto& layer : layers_) {
      const MixerMemory attention = layer->attention.memory(device_, mixer_limits);
      most.scratch_bytes =
          std::max({most.scratch_bytes, attention.scratch_bytes,
                    Scratch::padded_bytes(num_tokens, Scratch::spread(layer->up.spec().num_rows))});
      most.workspace_bytes =
          std::max({most.workspace_bytes, attention.workspace_bytes,
                    device_.ops().matmul_workspace_bytes(layer->up.spec(), num_tokens),
                    device_.ops().matmul_workspace_bytes(layer->down.spec(), num_tokens)});
    }
    constexpr std::int64_t kNumStreams = 3;  // x, what is added to it, and types' embeddings
    const std::int64_t num_bytes =
        most.scratch_bytes + kNumStreams * Scratch::padded_bytes(num_tokens, config_.hidden_size);
    ASSIGN_OR_RETURN(activations_,
                     device_.allocate(static_cast<std::size_t>(num_bytes), "activations"));
    return device_.reserve_workspace(most.workspace_bytes);
  }

  void forward(const ForwardBatch& batch, std::span<const LayerKvCache> caches, Communicator* peers,
               Matrix hidden) override {
    Scratch scratch(activations_.bytes());
    const Matrix x = scratch.take(batch.num_tokens(), config_.hidden_size);
    const Matrix added = scratch.take(batch.num_tokens(), config_.hidden_size);
    const ForwardBatch* const device_batch = device_batch_.put(batch);
    if (device_batch == nullptr) return;
    const LayerStep step = LayerStep::of(device_, batch, *device_batch, caches, peers, scratch);
    embed(step, x, added, scratch);
    std::int32_t number = 0;
    for (const auto& layer : layers_) {
      for (LayerHook* const hook : batch.layer_hooks) hook->before_layer(number);
      layer->attention.forward(step, x, added);
      layer->attention_norm.add_and_apply(step.ops, step.context, added, x, x);
      Scratch inner = scratch;
      const Matrix wide = inner.take_spread(batch.num_tokens(), layer->up.spec().num_rows);
      layer->up.apply(step.ops, step.context, x, wide);
      step.ops.gelu(step.context, {.out = wide});
      layer->down.apply(step, wide, added);
      layer->norm.add_and_apply(step.ops, step.context, added, x, x);
      for (LayerHook* const hook : batch.layer_hooks) hook->after_layer(number);
      ++number;
    }
    copy_outputs(step, x, hidden);
  }

  [[nodiscard]] std::vector<float> pool(PoolingType type, ConstMatrix hidden) const override {
    const std::vector<float> pooled = Model::pool(type, hidden);
    return classes_ ? classes_->apply(pooled) : pooled;
  }

  void compute_logits(ConstMatrix, Communicator*, Matrix) override {
    CHECK(false);  // a pooling model is not asked for any
  }

 private:
  static std::string prefix(const WeightLoader& loader) {
    for (const char* const name : {"bert.", "roberta."})
      if (loader.has(std::string(name) + "embeddings.word_embeddings.weight")) return name;
    return "";
  }

  static DeviceArray<float> first_row(const EmbeddingTable& types, const ModelConfig& config,
                                      WeightLoader& loader) {
    std::vector<float> row(static_cast<std::size_t>(config.hidden_size));
    if (types.stored != nullptr && !loader.is_check())
      widen_row(*types.stored, 0, 0, config.hidden_size, row.data());
    return loader.upload(std::move(row));
  }

  static std::optional<ClassificationHead> load_classes(const ModelConfig& config,
                                                        WeightLoader& loader) {
    if (config.task != ModelTask::kClassify) return std::nullopt;
    const bool is_bert = config.first_position == 0;
    return std::optional<ClassificationHead>(
        std::in_place, loader, config,
        is_bert ? prefix(loader) + "pooler.dense" : std::string("classifier.dense"),
        is_bert ? "classifier" : "classifier.out_proj");
  }

  void embed(const LayerStep& step, Matrix x, Matrix added, Scratch scratch) {
    const ForwardBatch& batch = step.device_batch;
    look_up(step, words_, config_.vocab_size, 0, batch.token_ids.data(), x);
    look_up(step, positions_, config_.max_positions, config_.first_position, batch.positions.data(),
            added);
    // Where there is one type alone, tokenizers may number two.
    if (batch.token_types.empty() || config_.num_token_types == 1) {
      step.ops.add_bias(step.context, {.bias = first_type_.data(), .out = added});
    } else {
      const Matrix types = scratch.take(added.num_rows, config_.hidden_size);
      look_up(step, types_, config_.num_token_types, 0, batch.token_types.data(), types);
      // Without a weight it is the sum alone.
      step.ops.add_rms_norm(step.context, {.x = types, .residual = added, .out = types});
    }
    norm_.add_and_apply(step.ops, step.context, x, added, x);
  }

  /// out[i] = table[first + ids[i]]
  void look_up(const LayerStep& step, const EmbeddingTable& table, std::int64_t num_rows,
               std::int64_t first, const std::int32_t* ids, Matrix out) const {
    const std::size_t element_bytes = table.type() == ElementType::kF32 ? 4 : 2;
    const std::byte* const rows =
        table.data() + static_cast<std::size_t>(first * config_.hidden_size) * element_bytes;
    step.ops.embedding(step.context,
                       {.table = {rows, table.type(), num_rows - first, config_.hidden_size},
                        .ids = ids,
                        .out = out});
  }

  ModelConfig config_;
  Device& device_;
  EmbeddingTable words_;
  EmbeddingTable positions_;
  EmbeddingTable types_;
  std::optional<ClassificationHead> classes_;  ///< of a classifier
  DeviceArray<float> first_type_;              ///< a row of types_
  LayerNorm norm_;
  std::vector<std::unique_ptr<const BertLayer>> layers_;
  std::int64_t weight_bytes_ = 0;
  DeviceMemory activations_;
  DeviceBatch device_batch_;
};

std::unique_ptr<Model> make_bert(const ModelConfig& config, Device& device, WeightLoader& loader) {
  if (loader.parallel().pipeline_parallel_size > 1)
    loader.fail(ErrorCode::kUnsupported, "pipeline parallelism is not supported for BertModel");
  return std::make_unique<BertModel>(config, device, loader);
}

}  // namespace

extern const RegisteredArchitecture kBert = {
    .name = "BertModel", .model_type = "bert", .read_config = read_bert_config, .make = make_bert};
extern const RegisteredArchitecture kRoberta = {.name = "RobertaModel",
                                                .model_type = "roberta",
                                                .read_config = read_roberta_config,
                                                .make = make_bert};
extern const RegisteredArchitecture kXlmRoberta = {.name = "XLMRobertaModel",
                                                   .model_type = "xlm-roberta",
                                                   .read_config = read_roberta_config,
                                                   .make = make_bert};

}  // namespace troupe
