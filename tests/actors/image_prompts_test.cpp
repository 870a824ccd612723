// From messages with images to tokens and pixels, as an engine with the model is set up.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>

#include "actors/server_settings.hpp"
#include "messages/encoder_input.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/processors/input_processor.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const fs::path kGolden = TROUPE_GOLDEN_DIR;

class ImagePrompts {
 public:
  explicit ImagePrompts(const std::string& name) {
    Options options;
    options.model.model = (kGolden / "models" / "models" / name).string();
    options.media.allowed_local_media_path = (kGolden / "images").string();
    options.media.mm_processor_cache_type = "processor_only";  // items have their data
    const ModelConfig config = load_model_config(options.model.model).value();
    ModelLoaded model{.max_model_len = static_cast<std::int32_t>(config.max_model_len),
                      .vocab_size = static_cast<std::int32_t>(config.vocab_size)};
    model.max_item_embeds = static_cast<std::int32_t>(config.image_tokens->per_image);
    std::shared_ptr<const Tokenizer> tokenizer = Tokenizer::load(options.model.model).value();
    processor_ = make_input_processor(options, model, {}, std::move(tokenizer), nullptr).value();
  }

  /// The golden's messages, whose images have no address, with those of its files.
  [[nodiscard]] Result<ProcessedRequest> process(json messages, const json& files) const {
    std::size_t num_images = 0;
    for (json& message : messages)
      for (json& part : message.at("content"))
        if (part.at("type") == "image") {
          const std::string file = files.at(num_images++);
          const std::string url = "file://" + (kGolden / file).string();
          part = {{"type", "image_url"}, {"image_url", {{"url", url}}}};
        }
    GenerateRequest request;
    request.prompt = ChatPrompt{.messages_json = messages.dump()};
    return processor_->process(std::move(request), {});
  }

 private:
  std::shared_ptr<const InputProcessor> processor_;
};

BOOST_AUTO_TEST_CASE(messages_with_images_become_the_tokens_and_pixels_of_transformers) {
  for (const std::string name : {"llava", "llava_siglip"}) {
    const ImagePrompts prompts(name);
    const fs::path folder = kGolden / "models" / "goldens" / name;
    const json golden = json::parse(read_file(folder / "golden.json").value());
    const SafetensorsFile arrays = SafetensorsFile::open(folder / "golden.safetensors").value();
    std::size_t num_cases = 0;
    for (const json& entry : golden.at("cases")) {
      if (!entry.contains("messages")) continue;
      BOOST_TEST_CONTEXT(name << ", " << entry.at("name")) {
        ++num_cases;
        const ProcessedRequest request =
            prompts.process(entry["messages"], entry.at("images")).value();
        const EngineCoreRequest& sample = request.samples.at(0);
        const auto want = entry.at("prompt_token_ids").get<std::vector<TokenId>>();
        BOOST_TEST(sample.prompt_token_ids == want, boost::test_tools::per_element());
        BOOST_REQUIRE(sample.mm_features.size() == entry["images"].size());
        std::vector<std::int32_t> places;
        for (std::size_t i = 0; i < sample.mm_features.size(); ++i) {
          const MultiModalFeature& feature = sample.mm_features[i];
          for (std::int32_t row = 0; row < feature.length; ++row)
            places.push_back(feature.offset + row);
          const json& images = golden.at("images");
          const auto image = std::ranges::find_if(
              images, [&](const json& known) { return known.at("file") == entry["images"][i]; });
          const auto pixels = unpack_encoder_input(*feature.data).value();
          const TensorView* expected =
              arrays.find("pixel_values." + std::to_string(image - images.begin()));
          BOOST_TEST(std::ranges::equal(pixels.shape, expected->shape));
          BOOST_TEST(std::ranges::equal(pixels.values, expected->elements<float>()));
        }
        BOOST_TEST(places == entry.at("image_token_positions").get<std::vector<std::int32_t>>(),
                   boost::test_tools::per_element());
      }
    }
    BOOST_TEST(num_cases == 5u);
  }
}

BOOST_AUTO_TEST_CASE(a_text_that_names_the_image_token_stands_for_no_image) {
  const ImagePrompts prompts("llava");
  const json messages = json::parse(
      R"([{"role":"user","content":[{"type":"image"},{"type":"text","text":"<image>?"}]}])");
  BOOST_TEST(prompts.process(messages, {"images/rgb.png"}).error().message ==
             "the prompt has 1 images and 2 times <image>, which stands for one");
}

}  // namespace
}  // namespace troupe
