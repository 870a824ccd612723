// A layer is a list of mixers with their norms: kinds that no architecture has yet, with states and
// with latent vectors in the cache, stand beside attention without anything else being told.

#include <boost/test/unit_test.hpp>
#include <string>
#include <utility>

#include "runtime/models/decoder.hpp"
#include "runtime/models/load_model.hpp"
#include "runtime/worker/flat_batch.hpp"
#include "runtime/worker/layer_caches.hpp"

namespace troupe {
namespace {

constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kMaxTokens = 256;
constexpr std::int32_t kNumBlocks = 64;
const std::string kFolder = TROUPE_GOLDEN_DIR "/models/models/llama";

/// s[t] = s[t - 1] / 2 + x[t]: a state space of one number per channel.
class DecayingSum final : public Mixer {
 public:
  DecayingSum(std::int32_t layer, std::int64_t size) : layer_(layer), size_(size) {}

  void forward(const LayerStep& step, ConstMatrix x, Matrix out) const override {
    const LayerKvCache& cache = step.caches[static_cast<std::size_t>(layer_)];
    const auto& states = std::get<StateCacheView>(cache.pages);
    const ForwardBatch::Group& group = step.batch.groups[cache.group];
    const auto state_of = [&](BlockId block) {
      return reinterpret_cast<float*>(states.data + block * states.page_bytes);
    };
    for (std::size_t seq = 0; seq < step.batch.seq_lens.size(); ++seq) {
      std::vector<float> state(static_cast<std::size_t>(size_));
      if (group.states_before[seq] != kNullBlock)
        std::copy_n(state_of(group.states_before[seq]), size_, state.begin());
      const std::int32_t end = step.batch.query_start_loc[seq + 1];
      const std::int32_t first_query =
          end - (step.query_start_loc[seq + 1] - step.query_start_loc[seq]);
      for (std::int32_t token = step.batch.query_start_loc[seq]; token < end; ++token) {
        for (std::size_t i = 0; i < state.size(); ++i) state[i] = state[i] / 2 + x.row(token)[i];
        if (token >= first_query)
          std::ranges::copy(state, out.row(step.query_start_loc[seq] + token - first_query));
      }
      std::ranges::copy(state, state_of(group.states_after[end - 1]));
    }
  }
  MixerMemory memory(Device&, const MixerLimits&) const noexcept override { return {}; }
  std::optional<LayerCacheSpec> cache_spec(std::int32_t, DType) const override {
    return LayerCacheSpec{
        layer_,
        {.kind = MambaSpec{.state_bytes = size_ * static_cast<std::int64_t>(sizeof(float))},
         .block_size = kMaxTokens}};
  }

 private:
  std::int32_t layer_;
  std::int64_t size_;
};

/// The mean of all tokens up to the query's, each kept as one vector.
class LatentMean final : public Mixer {
 public:
  LatentMean(std::int32_t layer, std::int64_t size) : layer_(layer), size_(size) {}

  void forward(const LayerStep& step, ConstMatrix x, Matrix out) const override {
    const LayerKvCache& cache = step.caches[static_cast<std::size_t>(layer_)];
    auto* const latents = static_cast<float*>(std::get<LatentCacheView>(cache.pages).data);
    const ForwardBatch::Group& group = step.batch.groups[cache.group];
    for (std::int64_t token = 0; token < step.batch.num_tokens(); ++token)
      std::copy_n(x.row(token), size_, latents + group.slots[token] * size_);
    for (std::size_t seq = 0; seq < step.batch.seq_lens.size(); ++seq) {
      const std::int32_t* table =
          group.block_tables + step.batch.block_table_rows[seq] * group.block_table_stride;
      std::int32_t position =
          step.batch.seq_lens[seq] - (step.query_start_loc[seq + 1] - step.query_start_loc[seq]);
      for (std::int32_t query = step.query_start_loc[seq]; query < step.query_start_loc[seq + 1];
           ++query, ++position) {
        std::fill_n(out.row(query), size_, 0.0f);
        for (std::int32_t seen = 0; seen <= position; ++seen) {
          const std::int64_t slot =
              std::int64_t{table[seen / kBlockSize]} * kBlockSize + seen % kBlockSize;
          for (std::int64_t i = 0; i < size_; ++i)
            out.row(query)[i] += latents[slot * size_ + i] / static_cast<float>(position + 1);
        }
      }
    }
  }
  MixerMemory memory(Device&, const MixerLimits&) const noexcept override { return {}; }
  std::optional<LayerCacheSpec> cache_spec(std::int32_t block_size, DType dtype) const override {
    return LayerCacheSpec{layer_,
                          {.kind = MlaSpec{{.num_kv_heads = 1,
                                            .head_dim = static_cast<std::int32_t>(size_),
                                            .dtype = dtype}},
                           .block_size = block_size}};
  }

 private:
  std::int32_t layer_;
  std::int64_t size_;
};

/// Llama's embedding, first norm, attention and head, with the others between them.
class Hybrid {
 public:
  Hybrid()
      : device_(Device::create({.name = "cpu", .num_threads = 2}).value()),
        checkpoint_(Checkpoint::open(kFolder).value()),
        tables_({{kMaxTokens, kMaxTokens, BlockContent::kStates}, kBlockSize, kBlockSize}),
        flat_(tables_) {
    const ModelConfig config = load_model_config(kFolder).value();
    WeightLoader loader(checkpoint_, *device_, {}, config.quantization, {}, {});
    const auto norm = [&] {
      return RmsNorm(loader, "model.layers.0.input_layernorm", config.hidden_size,
                     {.eps = config.rms_norm_eps});
    };
    const auto rope = loader.rope_tables(config.rope, config.head_dim, config.max_model_len);
    AttentionOptions attention = attention_options(config, 0, rope);
    attention.layer = 2;
    std::vector<NormedMixer> first;
    first.push_back(
        {norm(), std::make_unique<const DecayingSum>(0, config.hidden_size), std::nullopt});
    std::vector<NormedMixer> second;
    second.push_back(
        {norm(), std::make_unique<const LatentMean>(1, config.hidden_size), std::nullopt});
    std::vector<NormedMixer> third;
    third.push_back(
        {norm(), std::make_unique<const Attention>(loader, "model.layers.0.self_attn", attention),
         norm()});
    std::vector<DecoderLayer> layers;
    layers.emplace_back(std::move(first));
    layers.emplace_back(std::move(second));
    layers.emplace_back(std::move(third));
    model_ = std::make_unique<DecoderModel>(config, *device_, loader, std::move(layers),
                                            DecoderOptions{.norm = {.eps = config.rms_norm_eps}});
    BOOST_REQUIRE(model_->reserve({.max_num_tokens = kMaxTokens, .max_num_logit_rows = 8}).ok());
    for (const LayerCacheSpec& layer : model_->kv_cache_specs(kBlockSize, DType::kF32)) {
      const std::int64_t page = layer.spec.page_bytes();
      memory_.push_back(
          Memory::allocate(static_cast<std::size_t>(kNumBlocks * page), "a layer's pages").value());
      caches_.push_back(
          layer_cache(layer.spec, caches_.size(), memory_.back().data(), kNumBlocks, page).value());
    }
  }

  [[nodiscard]] const DecoderModel& model() const { return *model_; }
  [[nodiscard]] std::int32_t add_sequence(std::size_t num_tokens) {
    BlockTable blocks(3);
    blocks[0] = {next_block_++};
    for (std::size_t begin = 0; begin < num_tokens; begin += kBlockSize) {
      blocks[1].push_back(next_block_);
      blocks[2].push_back(next_block_++);
    }
    return tables_.add(blocks);
  }
  struct Piece {
    const std::vector<TokenId>& tokens;
    std::int32_t begin;
    std::int32_t end;
    std::int32_t row;
  };
  /// The hidden state behind each piece.
  std::vector<std::vector<float>> forward(const std::vector<Piece>& pieces) {
    flat_.clear();
    for (const Piece& piece : pieces)
      flat_.add(std::span(piece.tokens)
                    .subspan(static_cast<std::size_t>(piece.begin),
                             static_cast<std::size_t>(piece.end - piece.begin)),
                piece.begin, piece.row, 1);
    std::vector<std::vector<float>> rows;
    const std::int64_t width = model_->hidden_size();
    std::vector<float> hidden(pieces.size() * static_cast<std::size_t>(width));
    model_->forward(flat_.view(), caches_, nullptr, {hidden.data(), std::ssize(pieces), width});
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto begin = hidden.begin() + static_cast<std::ptrdiff_t>(i) * width;
      rows.emplace_back(begin, begin + width);
    }
    return rows;
  }

 private:
  std::unique_ptr<Device> device_;
  Checkpoint checkpoint_;
  std::unique_ptr<DecoderModel> model_;
  std::vector<Memory> memory_;
  std::vector<LayerKvCache> caches_;
  BlockTables tables_;
  FlatBatch flat_;
  BlockId next_block_ = 1;
};

BOOST_AUTO_TEST_CASE(layers_with_states_latents_and_attention_give_the_same_bits_in_any_steps) {
  Hybrid hybrid;
  const std::vector<LayerCacheSpec> specs = hybrid.model().kv_cache_specs(kBlockSize, DType::kF32);
  BOOST_REQUIRE(specs.size() == 3u);
  BOOST_TEST(specs[0].spec.is<MambaSpec>());
  BOOST_TEST(specs[1].spec.is<MlaSpec>());
  BOOST_TEST(specs[2].spec.is<FullAttentionSpec>());

  const std::vector<TokenId> one = {5,  90, 17,  300, 2, 44, 44, 81, 9,
                                    12, 7,  250, 33,  6, 1,  8,  70, 3};
  const std::vector<TokenId> other = {11, 12, 13, 14, 15};
  const auto alone = [&](const std::vector<TokenId>& tokens) {
    return hybrid
        .forward({{tokens, 0, static_cast<std::int32_t>(tokens.size()),
                   hybrid.add_sequence(tokens.size())}})
        .front();
  };
  const std::vector<float> of_one = alone(one);
  const std::vector<float> of_other = alone(other);
  BOOST_TEST((of_one != of_other));

  // In chunks, the last ones beside the other sequence.
  const std::int32_t row = hybrid.add_sequence(one.size());
  const std::int32_t other_row = hybrid.add_sequence(other.size());
  static_cast<void>(hybrid.forward({{one, 0, 7, row}}));
  static_cast<void>(hybrid.forward({{other, 0, 4, other_row}, {one, 7, 17, row}}));
  const auto last = hybrid.forward({{one, 17, 18, row}, {other, 4, 5, other_row}});
  BOOST_TEST((last[0] == of_one));
  BOOST_TEST((last[1] == of_other));
}

}  // namespace
}  // namespace troupe
