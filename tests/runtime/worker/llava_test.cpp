// LLaVA with CLIP and with SigLIP: encoder, projector and prompts with images against
// transformers.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <string>

#include "tests/support/replay_models_driver.hpp"
#include "tests/support/replay_vision_driver.hpp"

namespace troupe {
namespace {

const std::string kFolder = TROUPE_GOLDEN_DIR "/models";

struct LlavaModel {
  std::string name;
  std::int64_t num_rows = 0;  ///< of an image
};
const LlavaModel kModels[] = {{"llava", 16}, {"llava_siglip", 16}};

std::vector<VisionCase> read_cases(const LlavaModel& model) {
  std::vector<VisionCase> cases = read_vision_cases(kFolder + "/goldens/" + model.name);
  for (VisionCase& one : cases) one.spans.clear();  // images are causal, too
  return cases;
}

BOOST_AUTO_TEST_CASE(the_encoders_make_the_rows_of_the_reference_by_every_instruction_set) {
  for (const LlavaModel& golden : kModels) {
    const SafetensorsFile arrays =
        SafetensorsFile::open(kFolder + "/goldens/" + golden.name + "/golden.safetensors").value();
    for (const std::string& isa : available_isas()) {
      VisionDriver llava(kFolder + "/models/" + golden.name, isa);
      BOOST_TEST(!llava.model().sees_items_both_ways());
      BOOST_TEST(llava.model().max_item_rows() == golden.num_rows);
      for (const std::string number : {"0", "1", "2"}) {
        const auto rows = llava.encode(golden_floats(arrays, "pixel_values." + number), 56);
        BOOST_TEST(largest_error(rows, golden_floats(arrays, "projector." + number)) < 1e-3f,
                   golden.name << ", " << isa << ", image " << number);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(images_are_answered_as_by_the_reference_by_every_instruction_set) {
  for (const LlavaModel& golden : kModels) {
    const std::vector<VisionCase> cases = read_cases(golden);
    BOOST_TEST(cases.size() == 6u);
    for (const std::string& isa : available_isas()) {
      VisionDriver llava(kFolder + "/models/" + golden.name, isa);
      for (const VisionCase& one : cases)
        BOOST_TEST(llava.replay(one, SIZE_MAX) == "",
                   golden.name << ", " << isa << ", " << one.name);
    }
  }
}

BOOST_AUTO_TEST_CASE(images_of_llava_have_the_same_bits_alone_in_batches_and_in_chunks) {
  for (const LlavaModel& golden : kModels) {
    VisionDriver llava(kFolder + "/models/" + golden.name, "auto");
    const std::vector<VisionCase> cases = read_cases(golden);
    const std::vector<std::vector<float>> alone = llava.prefill(cases);
    // All at once, cut within their first image, as nothing forbids.
    std::vector<std::int32_t> rows;
    std::vector<std::int32_t> cuts;
    llava.clear();
    for (const VisionCase& one : cases) {
      rows.push_back(llava.add_sequence(one.size()));
      cuts.push_back(one.places.empty() ? 1 : one.places.front() + 5);
      llava.add(one, 0, cuts.back(), rows.back());
    }
    static_cast<void>(llava.forward());
    llava.clear();
    for (std::size_t i = 0; i < cases.size(); ++i)
      llava.add(cases[i], cuts[i], cases[i].size(), rows[i]);
    const std::vector<std::vector<float>> together = llava.forward();
    for (std::size_t i = 0; i < cases.size(); ++i)
      BOOST_TEST((together[i] == alone[i]), golden.name << ", " << cases[i].name);
  }
}

}  // namespace
}  // namespace troupe
