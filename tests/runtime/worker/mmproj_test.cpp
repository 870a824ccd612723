// Gemma 3 with images from two GGUF files, against the folder that they were written from.
#include "runtime/gguf/mmproj.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

#include "runtime/models/load_model.hpp"
#include "runtime/multimodal/image_processor.hpp"
#include "tests/support/gguf_writer.hpp"
#include "tests/support/replay_vision_driver.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = TROUPE_GOLDEN_DIR "/models/models/gemma3";
const std::string kGolden = TROUPE_GOLDEN_DIR "/models/goldens/gemma3";

class GgufFolder {
 public:
  GgufFolder() : path_(fs::temp_directory_path() / ("mmproj-test-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~GgufFolder() { fs::remove_all(path_); }
  GgufFolder(const GgufFolder&) = delete;
  GgufFolder& operator=(const GgufFolder&) = delete;
  [[nodiscard]] std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

BOOST_AUTO_TEST_CASE(two_files_see_images_with_the_bits_of_the_folder) {
  const GgufFolder files;
  const std::string model = files.write("model.gguf", gguf_of_model(kFolder, GgmlType::kF32));
  const SafetensorsFile arrays = SafetensorsFile::open(kGolden + "/golden.safetensors").value();
  const std::vector<VisionCase> cases = read_vision_cases(kGolden);
  VisionDriver folder(kFolder.string(), "auto");
  const auto logits = folder.prefill(cases);
  for (const bool swaps_mlp : {false, true}) {
    const std::string mmproj =
        files.write("mmproj.gguf", mmproj_of_model(kFolder, {.swaps_mlp = swaps_mlp}));
    VisionDriver driver(model, "auto", {.dtype = "float32", .mmproj = mmproj});
    BOOST_TEST(driver.model().sees_items_both_ways());
    for (const std::string number : {"0", "1", "2"}) {
      const auto pixels = golden_floats(arrays, "pixel_values." + number);
      BOOST_TEST((driver.encode(pixels, 56) == folder.encode(pixels, 56)));
    }
    BOOST_TEST((driver.prefill(cases) == logits));
  }
}

BOOST_AUTO_TEST_CASE(the_files_say_of_images_what_the_folder_says) {
  const GgufFolder files;
  const std::string model = files.write("model.gguf", gguf_of_model(kFolder, GgmlType::kF32));
  const std::string mmproj = files.write("mmproj.gguf", mmproj_of_model(kFolder));
  const ModelConfig want = load_model_config(kFolder).value();
  const ModelConfig config = load_model_config(model, mmproj).value();
  BOOST_TEST(config.image_tokens->soft == want.image_tokens->soft);
  BOOST_TEST(config.image_tokens->marks->begin == want.image_tokens->marks->begin);
  BOOST_TEST(config.image_tokens->marks->end == want.image_tokens->marks->end);
  BOOST_TEST(config.image_tokens->per_image == want.image_tokens->per_image);
  BOOST_TEST(config.vision->num_patches() == want.vision->num_patches());
  const ImageProcessorSettings settings = ImageProcessor::load(mmproj).value().settings();
  const ImageProcessorSettings own = ImageProcessor::load(kFolder).value().settings();
  BOOST_TEST(settings.width == own.width);
  BOOST_TEST(settings.height == own.height);
  BOOST_TEST(settings.image_mean == own.image_mean, boost::test_tools::per_element());
  BOOST_TEST(settings.image_std == own.image_std, boost::test_tools::per_element());
  BOOST_TEST((settings.resample == own.resample));
  BOOST_TEST(!load_model_config(model).value().vision.has_value());
}

BOOST_AUTO_TEST_CASE(without_a_token_for_images_an_unused_one_stands_for_them) {
  const GgufFolder files;
  const std::string mmproj = files.write("mmproj.gguf", mmproj_of_model(kFolder));
  const auto soft = [&](const std::string& replaced) {
    std::string bytes = gguf_of_model(kFolder, GgmlType::kF32);
    const std::string name = "<image_soft_token>";
    const std::size_t at = bytes.find(name);
    BOOST_REQUIRE(at != std::string::npos);
    return load_model_config(files.write("model.gguf", bytes.replace(at, name.size(), replaced)),
                             mmproj);
  };
  BOOST_TEST(soft("<unused00000000>X>").value().image_tokens->soft == 943);
  BOOST_TEST(soft("<another_token>XX>").error().message ==
             "model.gguf: the vocabulary has no <start_of_image>, <end_of_image> or <unused> "
             "token");
}

BOOST_AUTO_TEST_CASE(files_that_do_not_go_together_are_refused_by_name) {
  const GgufFolder files;
  const std::string model = files.write("model.gguf", gguf_of_model(kFolder, GgmlType::kF32));
  const std::string mmproj = files.write("mmproj.gguf", mmproj_of_model(kFolder));
  const auto error_of = [&](const std::string& text, const std::string& encoder) {
    const auto config = load_model_config(text, encoder);
    return config.ok() ? "" : config.error().message;
  };
  BOOST_TEST(error_of(kFolder.string(), mmproj).find("is a folder, which has its encoder itself") !=
             std::string::npos);
  BOOST_TEST(error_of(model, model) ==
             "model.gguf: general.architecture is gemma3, that of a vision encoder is clip");
  const std::string llama = files.write(
      "llama.gguf", gguf_of_model(TROUPE_GOLDEN_DIR "/models/models/llama", GgmlType::kF32));
  BOOST_TEST(error_of(llama, mmproj) ==
             "mmproj is " + mmproj + ", but LlamaForCausalLM takes no images here");
  const auto changed = [&](const MmprojChanges& changes) {
    return error_of(model, files.write("other.gguf", mmproj_of_model(kFolder, changes)));
  };
  BOOST_TEST(changed({.projector = "idefics3"}) ==
             "other.gguf: clip.projector_type is idefics3, the language model's is gemma3");
  BOOST_TEST(
      changed({.add = [](GgufWriter& writer) {
        writer.add("clip.vision.window_size", std::uint32_t{7});
      }}) == "other.gguf: metadata \"clip.vision.window_size\" is 7, which is not supported");
  BOOST_TEST(changed({.add = [](GgufWriter& writer) { writer.add_flag("clip.use_silu", true); }}) ==
             "other.gguf: metadata \"clip.use_silu\" is true, which is not supported");
  BOOST_TEST(changed({.add = [](GgufWriter& writer) {
               writer.add_flag("clip.has_audio_encoder", false);
             }}) == "");
  BOOST_TEST(ImageProcessor::load(model).error().message ==
             "model.gguf: general.architecture is gemma3, that of a vision encoder is clip");
}

BOOST_AUTO_TEST_CASE(a_tensor_of_an_encoders_file_that_no_one_uses_is_refused) {
  const GgufFolder files;
  const std::string model = files.write("model.gguf", gguf_of_model(kFolder, GgmlType::kF32));
  const std::string mmproj = files.write(
      "mmproj.gguf", mmproj_of_model(kFolder, {.add = [](GgufWriter& writer) {
                                       const std::int64_t shape[] = {2};
                                       writer.add_tensor("v.pre_ln.weight", GgmlType::kF32, shape,
                                                         std::string(8, '\0'));
                                     }}));
  const auto device = Device::create({.name = "cpu", .num_threads = 1}).value();
  const auto loaded = load_model(model, *device, {.dtype = "float32", .mmproj = mmproj}, {});
  BOOST_TEST(loaded.error().message.find("mmproj.gguf: \"v.pre_ln.weight\"") != std::string::npos);
}

}  // namespace
}  // namespace troupe
