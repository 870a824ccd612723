// Gemma 3 with pictures: its encoder, rows in place of embeddings, and tokens that see each other.
// Against transformers, with and without the spans.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <string>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/load_model.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/worker/flat_batch.hpp"
#include "runtime/worker/layer_caches.hpp"
#include "tests/support/replay_models_driver.hpp"

namespace troupe {
namespace {

using nlohmann::json;

const std::string kGolden = TROUPE_GOLDEN_DIR "/models/goldens/gemma3/";
constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kNumBlocks = 128;
constexpr std::int32_t kMaxTokens = 512;

/// A prompt with pictures, as the reference had it.
struct Case {
  std::string name;
  std::vector<TokenId> prompt;
  std::vector<std::int32_t> places;  ///< of the pictures' tokens
  std::vector<float> rows;           ///< for these
  std::vector<TwoWaySpan> spans;
  std::vector<float> logits;  ///< behind the prompt
  std::vector<TokenId> greedy;

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(prompt.size()); }
};

std::vector<float> golden_floats(const SafetensorsFile& arrays, const std::string& name) {
  const auto values = arrays.find(name)->elements<float>();
  return {values.begin(), values.end()};
}

/// All cases, `causal`: as if no token saw one behind it.
std::vector<Case> read_cases(bool causal) {
  const json golden = json::parse(read_file(kGolden + "golden.json").value());
  const SafetensorsFile arrays = SafetensorsFile::open(kGolden + "golden.safetensors").value();
  const auto floats = [&](const std::string& name) { return golden_floats(arrays, name); };
  const std::string kind = causal ? "causal_" : "";
  std::vector<Case> cases;
  for (const json& entry : golden.at("cases")) {
    if (causal && !entry.contains("causal_greedy_token_ids")) continue;
    Case& one = cases.emplace_back();
    one.name = entry.at("name");
    one.prompt = entry.at("prompt_token_ids").get<std::vector<TokenId>>();
    one.places = entry.at("image_token_positions").get<std::vector<std::int32_t>>();
    one.greedy = entry.at(kind + "greedy_token_ids").get<std::vector<TokenId>>();
    one.logits = floats("case." + one.name + "." + kind + "last_logits");
    const std::size_t num_pictures = entry.at("images").size();
    for (std::size_t i = 0; i < num_pictures; ++i) {
      const json& images = golden.at("images");
      const auto image = std::ranges::find_if(
          images, [&](const json& known) { return known.at("file") == entry["images"][i]; });
      const auto rows = floats("projector." + std::to_string(image - images.begin()));
      one.rows.insert(one.rows.end(), rows.begin(), rows.end());
      const std::size_t per_picture = one.places.size() / num_pictures;
      const std::int32_t first = one.places[i * per_picture];
      if (!causal) one.spans.push_back({first, first + static_cast<std::int32_t>(per_picture)});
    }
  }
  return cases;
}

class Gemma {
 public:
  explicit Gemma(const std::string& isa)
      : device_(Device::create({.name = "cpu", .cpu_isa = isa, .num_threads = 2}).value()),
        loaded_(load_model(TROUPE_GOLDEN_DIR "/models/models/gemma3", *device_,
                           {.dtype = "float32"}, {})
                    .value()),
        tables_({kBlockSize}),
        flat_(tables_) {
    BOOST_TEST(loaded_.model->sees_items_both_ways());
    BOOST_REQUIRE(
        loaded_.model->reserve({.max_num_tokens = kMaxTokens, .max_num_logit_rows = 8}).ok());
    for (const LayerCacheSpec& layer : loaded_.model->kv_cache_specs(kBlockSize, DType::kF32)) {
      const std::int64_t page = layer.spec.page_bytes();
      memory_.push_back(
          Memory::allocate(static_cast<std::size_t>(kNumBlocks * page), "a layer's pages").value());
      caches_.push_back(
          layer_cache(layer.spec, 0, memory_.back().data(), kNumBlocks, page).value());
    }
  }

  /// A row of the tables with blocks for so many tokens.
  std::int32_t add_sequence(std::int32_t num_tokens) {
    BlockTable blocks(1);
    for (std::int32_t i = 0; i * kBlockSize < num_tokens; ++i) blocks[0].push_back(next_block_++);
    BOOST_REQUIRE(next_block_ <= kNumBlocks);
    return tables_.add(blocks);
  }
  [[nodiscard]] Model& model() { return *loaded_.model; }
  void clear() {
    flat_.clear();
    outputs_.clear();
  }
  /// The tokens [begin, end) of the case's prompt; the last one's hidden state is asked for.
  void add(const Case& one, std::int32_t begin, std::int32_t end, std::int32_t row) {
    const auto width = loaded_.model->hidden_size();
    const auto first = std::ranges::lower_bound(one.places, begin);
    const auto last = std::ranges::lower_bound(one.places, end);
    std::vector<std::int32_t> embedded;
    std::vector<std::int32_t> rows;
    for (auto place = first; place < last; ++place) {
      embedded.push_back(*place - begin);
      rows.push_back(static_cast<std::int32_t>(std::ssize(outputs_) / width) +
                     static_cast<std::int32_t>(place - first));
    }
    outputs_.insert(outputs_.end(), one.rows.begin() + (first - one.places.begin()) * width,
                    one.rows.begin() + (last - one.places.begin()) * width);
    std::vector<TwoWaySpan> spans;
    for (const TwoWaySpan& span : one.spans)
      if (span.end > begin && span.begin < end) spans.push_back(span);
    flat_.add(std::span(one.prompt)
                  .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
              begin, row, 1, {.spans = spans, .embedded_tokens = embedded, .embedding_rows = rows});
  }
  void add(TokenId token, std::int32_t position, std::int32_t row) {
    flat_.add(std::span(&token, 1), position, row, 1);
  }
  /// Of each sequence, the logits behind it.
  std::vector<std::vector<float>> forward() {
    Model& model = *loaded_.model;
    const std::int64_t width = model.hidden_size();
    const ForwardBatch batch = flat_.view({outputs_.data(), std::ssize(outputs_) / width, width});
    std::vector<float> hidden(static_cast<std::size_t>(batch.num_outputs() * model.hidden_size()));
    model.forward(batch, caches_, nullptr,
                  {hidden.data(), batch.num_outputs(), model.hidden_size()});
    std::vector<std::vector<float>> logits;
    for (std::int64_t i = 0; i < batch.num_outputs(); ++i) {
      std::vector<float>& row = logits.emplace_back(static_cast<std::size_t>(model.vocab_size()));
      model.compute_logits({hidden.data() + i * model.hidden_size(), 1, model.hidden_size()},
                           nullptr, {row.data(), 1, model.vocab_size()});
    }
    return logits;
  }

 private:
  std::unique_ptr<Device> device_;
  LoadedModel loaded_;
  std::vector<Memory> memory_;
  std::vector<LayerKvCache> caches_;
  BlockTables tables_;
  FlatBatch flat_;
  std::vector<float> outputs_;  // of the encoder
  BlockId next_block_ = 1;
};

void check_floats(const std::vector<float>& got, const std::vector<float>& want) {
  BOOST_REQUIRE(got.size() == want.size());
  float error = 0;
  for (std::size_t i = 0; i < got.size(); ++i) error = std::max(error, std::fabs(got[i] - want[i]));
  BOOST_TEST(error < 1e-3f);
}

BOOST_AUTO_TEST_CASE(the_encoder_makes_the_rows_of_the_reference_by_every_instruction_set) {
  const SafetensorsFile arrays = SafetensorsFile::open(kGolden + "golden.safetensors").value();
  for (const std::string& isa : available_isas()) {
    Gemma gemma(isa);
    BOOST_TEST(gemma.model().max_item_rows() == 4);
    for (int i = 0; i < 3; ++i) {
      const std::string number = std::to_string(i);
      const std::vector<float> pixels = golden_floats(arrays, "pixel_values." + number);
      const std::vector<float> want = golden_floats(arrays, "projector." + number);
      const std::int64_t shape[] = {3, 56, 56};
      const EncoderItem item{.modality = "image", .values = pixels, .shape = shape, .num_rows = 4};
      BOOST_TEST(gemma.model().check_item(item).ok());
      std::vector<float> rows(want.size());
      gemma.model().encode(item, {rows.data(), 4, gemma.model().hidden_size()});
      check_floats(rows, want);
    }
  }
}

BOOST_AUTO_TEST_CASE(pictures_that_the_encoder_cannot_take_are_refused_by_shape) {
  Gemma gemma("auto");
  const std::int64_t shape[] = {3, 56, 42};
  EncoderItem item{.modality = "image", .shape = shape, .num_rows = 4};
  BOOST_TEST(gemma.model().check_item(item).error().message ==
             "a picture has the shape [3, 56, 42], the model's encoder takes [3, 56, 56]");
  const std::int64_t right[] = {3, 56, 56};
  item.shape = right;
  item.num_rows = 5;
  BOOST_TEST(gemma.model().check_item(item).error().message ==
             "a picture stands for 5 tokens, the model's encoder makes 4");
  item.modality = "audio";
  BOOST_TEST(gemma.model().check_item(item).error().message ==
             "the model has no encoder for items of modality audio");
}

BOOST_AUTO_TEST_CASE(pictures_are_seen_as_the_reference_sees_them_by_every_instruction_set) {
  const std::vector<std::string> isas = available_isas();
  for (const bool causal : {false, true}) {
    const std::vector<Case> cases = read_cases(causal);
    BOOST_TEST(cases.size() >= 6u);
    for (const std::string& isa : isas) {
      Gemma gemma(isa);
      for (const Case& one : cases) {
        BOOST_TEST_CONTEXT(isa << ", " << one.name << (causal ? ", causal" : "")) {
          const auto num_greedy =
              static_cast<std::int32_t>(isa == isas.back() ? one.greedy.size() : 8);
          const std::int32_t row = gemma.add_sequence(one.size() + num_greedy);
          gemma.clear();
          gemma.add(one, 0, one.size(), row);
          std::vector<float> logits = gemma.forward().front();
          check_floats(logits, one.logits);
          for (std::int32_t i = 0; i < num_greedy; ++i) {
            const auto best =
                static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
            BOOST_REQUIRE(best == one.greedy[static_cast<std::size_t>(i)]);
            gemma.clear();
            gemma.add(best, one.size() + i, row);
            logits = gemma.forward().front();
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(pictures_have_the_same_bits_alone_in_batches_and_in_chunks) {
  Gemma gemma("auto");
  const std::vector<Case> cases = read_cases(/*causal=*/false);
  std::vector<std::vector<float>> alone;
  for (const Case& one : cases) {
    gemma.clear();
    gemma.add(one, 0, one.size(), gemma.add_sequence(one.size()));
    alone.push_back(gemma.forward().front());
  }
  // All at once, each of them up to the end of its first picture, and then the rest.
  std::vector<std::int32_t> rows;
  std::vector<std::int32_t> ends;
  gemma.clear();
  for (const Case& one : cases) {
    rows.push_back(gemma.add_sequence(one.size()));
    ends.push_back(one.spans.empty() ? 1 : one.spans.front().end);
    gemma.add(one, 0, ends.back(), rows.back());
  }
  static_cast<void>(gemma.forward());
  gemma.clear();
  for (std::size_t i = 0; i < cases.size(); ++i)
    gemma.add(cases[i], ends[i], cases[i].size(), rows[i]);
  const std::vector<std::vector<float>> together = gemma.forward();
  for (std::size_t i = 0; i < cases.size(); ++i)
    BOOST_TEST((together[i] == alone[i]), cases[i].name);
}

BOOST_AUTO_TEST_CASE(what_a_model_has_not_is_refused_by_name) {
  const auto device = Device::create({.name = "cpu", .num_threads = 1}).value();
  const LoadedModel loaded =
      load_model(TROUPE_GOLDEN_DIR "/models/models/llama", *device, {.dtype = "float32"}, {})
          .value();
  BOOST_TEST(!loaded.model->sees_items_both_ways());
  const EncoderItem picture{.modality = "image", .num_rows = 4};
  BOOST_TEST(loaded.model->check_item(picture).error().message ==
             "the model has no encoder, it cannot take image inputs");
  BOOST_TEST(loaded.model->max_item_rows() == 0);
}

BOOST_AUTO_TEST_CASE(a_text_is_pooled_by_its_last_or_first_token_or_the_mean_of_all) {
  const auto device = Device::create({.name = "cpu", .num_threads = 1}).value();
  const LoadedModel loaded =
      load_model(TROUPE_GOLDEN_DIR "/models/models/llama", *device, {.dtype = "float32"}, {})
          .value();
  const std::vector<float> states = {1, 2, 3, 4, 5, 9};
  const ConstMatrix hidden(states.data(), 3, 2);
  const Model& model = *loaded.model;
  BOOST_TEST((model.pool(PoolingType::kLast, hidden) == std::vector<float>{5, 9}));
  BOOST_TEST((model.pool(PoolingType::kCls, hidden) == std::vector<float>{1, 2}));
  BOOST_TEST((model.pool(PoolingType::kMean, hidden) == std::vector<float>{3, 5}));
}

}  // namespace
}  // namespace troupe
