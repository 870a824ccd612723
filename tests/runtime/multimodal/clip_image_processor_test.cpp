// The image processors of CLIP and SigLIP: sizes, crops and configurations, against transformers'.
#include "runtime/multimodal/image_processor.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/multimodal/image_decoder.hpp"

namespace troupe {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const fs::path kGolden = TROUPE_GOLDEN_DIR;

std::string processor_error(const std::string& config) {
  const auto processor = ImageProcessor::parse(config, "p.json");
  return processor.ok() ? "" : processor.error().message;
}

BOOST_AUTO_TEST_CASE(llava_processors_make_the_pixels_of_transformers) {
  for (const std::string name : {"llava", "llava_siglip"}) {
    const fs::path folder = kGolden / "models" / "goldens" / name;
    const json golden = json::parse(read_file(folder / "golden.json").value());
    const SafetensorsFile arrays = SafetensorsFile::open(folder / "golden.safetensors").value();
    const ImageProcessor processor =
        ImageProcessor::load(kGolden / "models" / "models" / name).value();
    const auto check = [&](const std::string& file, const json& settings,
                           const std::string& array) {
      const std::string bytes = read_file(kGolden / "images" / file).value();
      const Image image = decode_image(std::as_bytes(std::span(bytes))).value();
      const auto tensors = processor.with_kwargs(settings).value().process(image).value();
      const TensorView* expected = arrays.find(array);
      BOOST_TEST_REQUIRE(tensors.size() == 1u);
      BOOST_TEST((std::ranges::equal(tensors[0].shape, expected->shape) &&
                  std::ranges::equal(tensors[0].values(), expected->elements<float>())),
                 name << ", " << file << ", " << settings.dump());
    };
    for (std::size_t i = 0; i < golden.at("images").size(); ++i) {
      const std::string file = golden["images"][i].at("file");
      check(file.substr(std::string("images/").size()), json::object(),
            "pixel_values." + std::to_string(i));
    }
    BOOST_TEST(golden.at("processed").size() >= 3u);
    for (std::size_t i = 0; i < golden["processed"].size(); ++i)
      check(golden["processed"][i].at("file"), golden["processed"][i].at("settings"),
            "pixels." + std::to_string(i));
  }
}

BOOST_AUTO_TEST_CASE(defaults_are_those_of_the_class) {
  const auto settings = [](const std::string& type) {
    return ImageProcessor::parse(R"({"image_processor_type":")" + type + "\"}", "p.json")
        .value()
        .settings();
  };
  BOOST_TEST(settings("CLIPImageProcessor").shortest_edge == 224);
  BOOST_TEST(settings("CLIPImageProcessorFast").do_center_crop);
  BOOST_TEST(settings("LlavaImageProcessor").crop_width == 224);
  BOOST_TEST(settings("CLIPImageProcessor").image_mean[0] == 0.48145466);
  BOOST_TEST((settings("SiglipImageProcessor").resample == ResizeFilter::kBicubic));
  BOOST_TEST(settings("SiglipImageProcessor").shortest_edge == 0);
  BOOST_TEST((settings("Gemma3ImageProcessorFast").resample == ResizeFilter::kBilinear));
}

BOOST_AUTO_TEST_CASE(what_would_change_the_pixels_and_is_not_known_is_refused_by_name) {
  const std::string clip = R"({"image_processor_type":"CLIPImageProcessor",)";
  BOOST_TEST(processor_error(R"({"image_processor_type":"FastImageProcessor"})") ==
             "p.json: image_processor_type is \"FastImageProcessor\", supported is a Gemma3, "
             "Siglip, CLIP or Llava processor");
  BOOST_TEST(processor_error(clip + R"("do_pan_and_scan":true})") ==
             "p.json: the field do_pan_and_scan is not known");
  BOOST_TEST(processor_error(clip + R"("size":{"longest_edge":30}})") ==
             "p.json: size is {\"longest_edge\":30}, supported is an object of height and width "
             "or of shortest_edge");
  BOOST_TEST(processor_error(clip + R"("size":{"shortest_edge":0}})") ==
             "p.json: size.shortest_edge is 0, expected is a whole number from 1 to 16384");
  BOOST_TEST(processor_error(clip + R"("crop_size":{"shortest_edge":30}})") ==
             "p.json: crop_size is {\"shortest_edge\":30}, supported is an object of height and "
             "width");
  BOOST_TEST(processor_error(clip + R"("do_pad":true})") ==
             "p.json: do_pad is true, supported is false");
  BOOST_TEST(processor_error(R"({"image_processor_type":"SiglipImageProcessor",
      "do_center_crop":true})") ==
             "p.json: crop_size is null, expected is a size, as do_center_crop is on");
  BOOST_TEST(processor_error(R"({"do_center_crop":true,"crop_size":30})") ==
             "p.json: do_center_crop is true, supported is false");
}

BOOST_AUTO_TEST_CASE(an_image_that_would_become_too_large_is_refused) {
  const auto processor =
      ImageProcessor::parse(R"({"image_processor_type":"CLIPImageProcessor"})", "p.json").value();
  Image line{60000, 1, {}};
  line.rgb.resize(std::size_t{60000} * 3);
  BOOST_TEST(processor.process(line).error().message ==
             "an image of 60000x1 pixels would be resized to 224x13440000, at most 67108864 "
             "pixels are supported");
}

BOOST_AUTO_TEST_CASE(a_crop_is_the_middle_with_black_where_there_is_no_image) {
  const Image image{3, 1, {1, 1, 1, 2, 2, 2, 3, 3, 3}};
  const auto cropped = [&](std::int32_t width, std::int32_t height, ResizeKind kind) {
    return center_crop(image, width, height, kind).rgb;
  };
  using Pixels = std::vector<std::uint8_t>;
  for (const ResizeKind kind : {ResizeKind::kTorchvision, ResizeKind::kPillow}) {
    BOOST_TEST((cropped(1, 1, kind) == Pixels{2, 2, 2}));
    BOOST_TEST((cropped(2, 1, kind) == Pixels{1, 1, 1, 2, 2, 2}));
    BOOST_TEST((cropped(5, 1, kind) == Pixels{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 0, 0, 0}));
  }
  // transformers' two backends put an odd row or column on different sides.
  BOOST_TEST((cropped(1, 2, ResizeKind::kTorchvision) == Pixels{2, 2, 2, 0, 0, 0}));
  BOOST_TEST(
      (cropped(4, 1, ResizeKind::kTorchvision) == Pixels{1, 1, 1, 2, 2, 2, 3, 3, 3, 0, 0, 0}));
  BOOST_TEST((cropped(1, 2, ResizeKind::kPillow) == Pixels{0, 0, 0, 2, 2, 2}));
  BOOST_TEST((cropped(4, 1, ResizeKind::kPillow) == Pixels{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3}));
}

}  // namespace
}  // namespace troupe
