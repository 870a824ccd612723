// Gemma 3 with images: its encoder, rows in place of embeddings, and tokens that see each other.
// Against transformers, with and without the spans.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <string>

#include "tests/support/replay_models_driver.hpp"
#include "tests/support/replay_vision_driver.hpp"

namespace troupe {
namespace {

const std::string kModel = TROUPE_GOLDEN_DIR "/models/models/gemma3";
const std::string kGolden = TROUPE_GOLDEN_DIR "/models/goldens/gemma3";

/// All cases, `causal`: as if no token saw one behind it.
std::vector<VisionCase> read_cases(bool causal) {
  std::vector<VisionCase> cases = read_vision_cases(kGolden, causal ? "causal_" : "");
  for (VisionCase& one : cases)
    if (causal) one.spans.clear();
  return cases;
}

BOOST_AUTO_TEST_CASE(the_encoder_makes_the_rows_of_the_reference_by_every_instruction_set) {
  const SafetensorsFile arrays = SafetensorsFile::open(kGolden + "/golden.safetensors").value();
  for (const std::string& isa : available_isas()) {
    VisionDriver gemma(kModel, isa);
    BOOST_TEST(gemma.model().sees_items_both_ways());
    BOOST_TEST(gemma.model().max_item_rows() == 4);
    for (const std::string number : {"0", "1", "2"}) {
      const auto rows = gemma.encode(golden_floats(arrays, "pixel_values." + number), 56);
      BOOST_TEST(largest_error(rows, golden_floats(arrays, "projector." + number)) < 1e-3f);
    }
  }
}

/// Where there is a bf16 unit, heads are padded for it.
BOOST_AUTO_TEST_CASE(the_encoder_in_bfloat16_is_close_to_the_reference_by_every_instruction_set) {
  const SafetensorsFile arrays = SafetensorsFile::open(kGolden + "/golden.safetensors").value();
  for (const std::string& isa : available_isas()) {
    VisionDriver gemma(kModel, isa, {.dtype = "bfloat16"});
    for (const std::string number : {"0", "1", "2"}) {
      const auto rows = gemma.encode(golden_floats(arrays, "pixel_values." + number), 56);
      const auto want = golden_floats(arrays, "projector." + number);
      const float largest = std::abs(
          *std::ranges::max_element(want, {}, [](float value) { return std::abs(value); }));
      BOOST_TEST(largest_error(rows, want) < 0.03f * largest, isa << ", image " << number);
    }
  }
}

BOOST_AUTO_TEST_CASE(images_that_the_encoder_cannot_take_are_refused_by_shape) {
  VisionDriver gemma(kModel, "auto");
  const std::int64_t shape[] = {3, 56, 42};
  EncoderItem item{.modality = "image", .shape = shape, .num_rows = 4};
  BOOST_TEST(gemma.model().check_item(item).error().message ==
             "an image has the shape [3, 56, 42], the model's encoder takes [3, 56, 56]");
  const std::int64_t right[] = {3, 56, 56};
  item.shape = right;
  item.num_rows = 5;
  BOOST_TEST(gemma.model().check_item(item).error().message ==
             "an image stands for 5 tokens, the model's encoder makes 4");
  item.modality = "audio";
  BOOST_TEST(gemma.model().check_item(item).error().message ==
             "the model has no encoder for items of modality audio");
}

BOOST_AUTO_TEST_CASE(images_are_seen_as_the_reference_sees_them_by_every_instruction_set) {
  const std::vector<std::string> isas = available_isas();
  for (const bool causal : {false, true}) {
    const std::vector<VisionCase> cases = read_cases(causal);
    BOOST_TEST(cases.size() >= 6u);
    for (const std::string& isa : isas) {
      VisionDriver gemma(kModel, isa);
      for (const VisionCase& one : cases)
        BOOST_TEST(gemma.replay(one, isa == isas.back() ? SIZE_MAX : 8) == "",
                   isa << ", " << one.name << (causal ? ", causal" : ""));
    }
  }
}

BOOST_AUTO_TEST_CASE(images_have_the_same_bits_alone_in_batches_and_in_chunks) {
  VisionDriver gemma(kModel, "auto");
  const std::vector<VisionCase> cases = read_cases(/*causal=*/false);
  const std::vector<std::vector<float>> alone = gemma.prefill(cases);
  // All at once, each of them up to the end of its first image, and then the rest.
  std::vector<std::int32_t> rows;
  std::vector<std::int32_t> ends;
  gemma.clear();
  for (const VisionCase& one : cases) {
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
  const EncoderItem image{.modality = "image", .num_rows = 4};
  BOOST_TEST(loaded.model->check_item(image).error().message ==
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
