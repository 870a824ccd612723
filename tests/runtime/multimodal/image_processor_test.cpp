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

Image grey_image(std::int32_t width, std::int32_t height) {
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
  const auto tensors = processor->process(grey_image(100, 20));
  BOOST_REQUIRE(tensors.ok());
  BOOST_REQUIRE(tensors->size() == 1U);
  BOOST_TEST(((*tensors)[0].shape == std::array<std::int64_t, 3>{3, 56, 48}));
  BOOST_TEST((*tensors)[0].levels.size() == 3U * 56 * 48);
  BOOST_TEST((*tensors)[0].values()[0] == (51 - 127.5F) / 127.5F);
}

BOOST_AUTO_TEST_CASE(what_changes_the_result_and_is_not_known_is_an_error) {
  BOOST_TEST(config_error({{"do_flip", true}}) == "config: the field do_flip is not known");
  BOOST_TEST(config_error({{"do_flip", nullptr}}) == "");
  BOOST_TEST(config_error({{"do_center_crop", true}}) ==
             "config: do_center_crop is true, supported is false");
  BOOST_TEST(config_error({{"do_center_crop", false}}) == "");
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
  const auto tensors = changed->process(grey_image(100, 40));
  BOOST_REQUIRE(tensors.ok());
  BOOST_TEST(tensors->size() == 4U);  // the image, then 100 / 40 + 0.5 parts
  BOOST_TEST((*tensors)[3].values()[5] == 51 * static_cast<float>(1.0 / 255));
  BOOST_TEST(processor->process(grey_image(100, 40))->size() == 1U);
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

BOOST_AUTO_TEST_CASE(without_resizing_the_tensor_has_the_images_size) {
  const auto processor = ImageProcessor::parse(
      R"({"do_resize": false, "do_rescale": false, "do_normalize": false})", "config");
  const auto tensors = processor->process(grey_image(5, 3));
  BOOST_TEST(((*tensors)[0].shape == std::array<std::int64_t, 3>{3, 3, 5}));
  BOOST_TEST((*tensors)[0].values()[0] == 51.0F);
  BOOST_TEST(!processor->process(Image{}).ok());
}

BOOST_AUTO_TEST_CASE(a_part_without_pixels_is_an_error) {
  const auto boxes = pan_and_scan_boxes(5, 1, {true, 1, 4, 1.0});
  BOOST_REQUIRE(!boxes.ok());
  BOOST_TEST(boxes.error().message ==
             "pan and scan: part 4 of 4 of an image of 5x1 pixels is empty");
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
