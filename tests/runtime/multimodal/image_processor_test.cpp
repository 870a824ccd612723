<<<<<<< HEAD
#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/base/json.hpp"
#include "runtime/multimodal/image_processor.hpp"

using namespace troupe;
using nlohmann::json;

namespace {

std::string config_error(const json& config) {
  const auto processor = ImageProcessor::parse(config.dump(), "config");
  return processor.ok() ? "" : processor.error().message;
}

std::string kwargs_error(const json& kwargs) {
  const auto changed = ImageProcessor::parse("{}", "config")->with_kwargs(kwargs);
  if (changed.ok()) return "";
  BOOST_TEST((changed.error().code == ErrorCode::kInvalidArgument));
  BOOST_TEST(changed.error().param == "mm_processor_kwargs");
  return changed.error().message;
}

Image grey_picture(std::int32_t width, std::int32_t height) {
  Image image{width, height, {}};
  image.rgb.assign(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3, 51);
  return image;
}

}  // namespace

BOOST_AUTO_TEST_CASE(gemma3s_configuration_is_read) {
  const auto processor = ImageProcessor::parse(
      R"({"do_convert_rgb": null, "do_normalize": true, "do_pan_and_scan": null, "do_rescale": true,
          "do_resize": true, "image_mean": [0.5, 0.5, 0.5], "image_processor_type":
          "Gemma3ImageProcessor", "image_seq_length": 4, "image_std": [0.5, 0.5, 0.5],
          "pan_and_scan_max_num_crops": null, "pan_and_scan_min_crop_size": null,
          "pan_and_scan_min_ratio_to_activate": null, "processor_class": "Gemma3Processor",
          "resample": 2, "rescale_factor": 0.00392156862745098,
          "size": {"height": 56, "width": 48}})",
      "preprocessor_config.json");
  BOOST_REQUIRE(processor.ok());
  BOOST_TEST(processor->settings().height == 56);
  BOOST_TEST(processor->settings().width == 48);
  BOOST_TEST(processor->settings().image_seq_length == 4);
  BOOST_TEST(!processor->settings().pan_and_scan.enabled);
  const auto tensors = processor->process(grey_picture(100, 20));
  BOOST_REQUIRE(tensors.ok());
  BOOST_REQUIRE(tensors->size() == 1U);
  BOOST_TEST(((*tensors)[0].shape == std::array<std::int64_t, 3>{3, 56, 48}));
  BOOST_TEST((*tensors)[0].values.size() == 3U * 56 * 48);
  BOOST_TEST((*tensors)[0].values[0] == (51 - 127.5F) / 127.5F);
}

BOOST_AUTO_TEST_CASE(what_changes_the_result_and_is_not_known_is_an_error) {
  BOOST_TEST(config_error({{"do_flip", true}}) == "config: the field do_flip is not known");
  BOOST_TEST(config_error({{"do_flip", nullptr}}) == "");
  BOOST_TEST(config_error({{"do_center_crop", true}}) ==
             "config: do_center_crop is true, supported is false");
  BOOST_TEST(config_error({{"do_center_crop", false}}) == "");
  BOOST_TEST(config_error({{"image_processor_type", "CLIPImageProcessor"}}) ==
             "config: image_processor_type is \"CLIPImageProcessor\", supported is a Gemma3 or "
             "Siglip processor");
  BOOST_TEST(config_error({{"size", {{"shortest_edge", 224}}}}) ==
             "config: size is {\"shortest_edge\":224}, supported is an object of height and width");
  BOOST_TEST(config_error({{"size", {{"height", 0}, {"width", 5}}}}) ==
             "config: size.height is 0, expected is a whole number from 1 to 16384");
  BOOST_TEST(config_error({{"resample", 1}}) ==
             "config: resample is 1, supported is 0 (nearest), 2 (bilinear) or 3 (bicubic)");
  BOOST_TEST(config_error({{"image_std", {0.5, 0, 0.5}}}) ==
             "config: image_std is [0.5,0,0.5], expected is three numbers other than 0");
  BOOST_TEST(config_error({{"do_resize", 1}}) ==
             "config: do_resize is 1, expected is true or false");
  BOOST_TEST(config_error(json::array()) == "config is not a JSON object");
  BOOST_TEST(ImageProcessor::parse("{", "config").error().message == "config is not JSON");
}

BOOST_AUTO_TEST_CASE(a_request_changes_fields_and_may_not_invent_some) {
  const auto processor = ImageProcessor::parse(R"({"size": {"height": 8, "width": 8}})", "config");
  const auto changed = processor->with_kwargs(
      {{"do_pan_and_scan", true}, {"pan_and_scan_min_crop_size", 10}, {"do_normalize", false}});
  BOOST_REQUIRE(changed.ok());
  BOOST_TEST(changed->settings().width == 8);
  const auto tensors = changed->process(grey_picture(100, 40));
  BOOST_REQUIRE(tensors.ok());
  BOOST_TEST(tensors->size() == 4U);  // the picture, then 100 / 40 + 0.5 parts
  BOOST_TEST((*tensors)[3].values[5] == 51 * static_cast<float>(1.0 / 255));
  BOOST_TEST(processor->process(grey_picture(100, 40))->size() == 1U);
  BOOST_TEST(kwargs_error(nullptr) == "");
  BOOST_TEST(kwargs_error({{"crop", 1}}) == "mm_processor_kwargs: the field crop is not known");
  BOOST_TEST(kwargs_error({{"image_seq_length", 1}}) ==
             "mm_processor_kwargs: the field image_seq_length is not known");
  BOOST_TEST(
      kwargs_error({{"pan_and_scan_max_num_crops", 0}}) ==
      "mm_processor_kwargs: pan_and_scan_max_num_crops is 0, expected is a whole number from "
      "1 to 1024");
  BOOST_TEST(kwargs_error("text") == "mm_processor_kwargs is not a JSON object");
}

BOOST_AUTO_TEST_CASE(without_resizing_the_tensor_has_the_pictures_size) {
  const auto processor = ImageProcessor::parse(
      R"({"do_resize": false, "do_rescale": false, "do_normalize": false})", "config");
  const auto tensors = processor->process(grey_picture(5, 3));
  BOOST_TEST(((*tensors)[0].shape == std::array<std::int64_t, 3>{3, 3, 5}));
  BOOST_TEST((*tensors)[0].values[0] == 51.0F);
  BOOST_TEST(!processor->process(Image{}).ok());
}

BOOST_AUTO_TEST_CASE(a_part_without_pixels_is_an_error) {
  const auto boxes = pan_and_scan_boxes(5, 1, {true, 1, 4, 1.0});
  BOOST_REQUIRE(!boxes.ok());
  BOOST_TEST(boxes.error().message ==
             "pan and scan: part 4 of 4 of a picture of 5x1 pixels is empty");
}

BOOST_AUTO_TEST_CASE(a_folder_may_have_the_processor_in_either_file) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / "troupe_image_processor_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  BOOST_TEST((ImageProcessor::load(folder).error().code == ErrorCode::kNotFound));
  std::ofstream(folder / "processor_config.json")
      << R"({"image_processor": {"size": {"height": 7, "width": 9}}, "image_seq_length": 4})";
  BOOST_TEST(ImageProcessor::load(folder)->settings().width == 9);
  BOOST_TEST(ImageProcessor::load(folder)->settings().image_seq_length == 4);
  std::ofstream(folder / "preprocessor_config.json") << R"({"size": 6})";
  BOOST_TEST(ImageProcessor::load(folder)->settings().width == 6);
  fs::remove_all(folder);
}
=======
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
                  std::ranges::equal(tensors[0].values, expected->elements<float>())),
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

BOOST_AUTO_TEST_CASE(a_picture_that_would_become_too_large_is_refused) {
  const auto processor =
      ImageProcessor::parse(R"({"image_processor_type":"CLIPImageProcessor"})", "p.json").value();
  Image line{60000, 1, {}};
  line.rgb.resize(std::size_t{60000} * 3);
  BOOST_TEST(processor.process(line).error().message ==
             "a picture of 60000x1 pixels would be resized to 224x13440000, at most 67108864 "
             "pixels are supported");
}

BOOST_AUTO_TEST_CASE(a_crop_is_the_middle_with_black_where_there_is_no_picture) {
  Image image{3, 1, {1, 1, 1, 2, 2, 2, 3, 3, 3}};
  BOOST_TEST((center_crop(image, 1, 1).rgb == std::vector<std::uint8_t>{2, 2, 2}));
  BOOST_TEST((center_crop(image, 2, 1).rgb == std::vector<std::uint8_t>{1, 1, 1, 2, 2, 2}));
  BOOST_TEST((center_crop(image, 1, 2).rgb == std::vector<std::uint8_t>{2, 2, 2, 0, 0, 0}));
  BOOST_TEST((center_crop(image, 4, 1).rgb ==
              std::vector<std::uint8_t>{1, 1, 1, 2, 2, 2, 3, 3, 3, 0, 0, 0}));
}

}  // namespace
}  // namespace troupe
>>>>>>> llava
