// images: decoded pixels, both kinds of resizing, pixel values, and pan and scan. Arrays that the
// folder does not have are left out. Where a decoder may differ (JPEG, lossy WebP), resizing starts
// from the reference's pixels.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/multimodal/image_decoder.hpp"
#include "runtime/multimodal/image_processor.hpp"
#include "tests/support/replay.hpp"

namespace troupe {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Other versions of the decoders' libraries (README of the golden data).
constexpr int kMaxLossyStep = 4;
constexpr double kMaxLossyMean = 0.5;

struct ImageKind {
  ResizeKind kind;
  const char* name;
};
constexpr std::array kImageKinds = {ImageKind{ResizeKind::kTorchvision, "fast"},
                                    ImageKind{ResizeKind::kPillow, "pil"}};

template <class T>
T loaded(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}

json read_image_json(const fs::path& path) { return json::parse(loaded(read_file(path))); }

Image load_image(const fs::path& path) {
  const std::string bytes = loaded(read_file(path));
  return loaded(decode_image(std::as_bytes(std::span(bytes))));
}

std::string compare_pixels(const Image& image, const Image& expected, bool lossy) {
  if (image.width != expected.width || image.height != expected.height)
    return std::to_string(image.width) + "x" + std::to_string(image.height) + " instead of " +
           std::to_string(expected.width) + "x" + std::to_string(expected.height);
  int max = 0;
  double sum = 0;
  for (std::size_t i = 0; i < image.rgb.size(); ++i) {
    const int step = std::abs(image.rgb[i] - expected.rgb[i]);
    max = std::max(max, step);
    sum += step;
  }
  const double mean = sum / static_cast<double>(image.rgb.size());
  if (max == 0 || (lossy && max <= kMaxLossyStep && mean <= kMaxLossyMean)) return {};
  return "differs by up to " + std::to_string(max) + ", mean " + std::to_string(mean);
}

/// Compares with uint8 [3, height, width].
std::string compare_planes(const Image& image, std::span<const std::uint8_t> planes) {
  if (planes.size() != image.rgb.size()) return "another size";
  const std::size_t num_pixels = planes.size() / 3;
  std::size_t num_different = 0;
  for (std::size_t i = 0; i < planes.size(); ++i)
    num_different += image.rgb[i % num_pixels * 3 + i / num_pixels] != planes[i];
  return num_different == 0 ? "" : std::to_string(num_different) + " values differ";
}

std::string compare_values(const PixelTensor& tensor, const TensorView& expected) {
  if (!std::ranges::equal(tensor.shape, expected.shape)) return "another shape";
  const auto values = expected.elements<float>();
  const std::vector<float> found = tensor.values();
  std::size_t num_different = 0;
  for (std::size_t i = 0; i < values.size(); ++i) num_different += found[i] != values[i];
  return num_different == 0 ? "" : std::to_string(num_different) + " values differ";
}

class ImageReplay {
 public:
  explicit ImageReplay(const fs::path& folder)
      : folder_(folder),
        index_(read_image_json(folder / "images.json")),
        resized_(loaded(SafetensorsFile::open(folder / "resized_u8.safetensors"))),
        values_(loaded(SafetensorsFile::open(folder / "pixel_values.safetensors"))) {}

  ReplayReport run() {
    for (const json& image : index_["images"]) replay_image(image);
    for (const json& image : index_["pan_and_scan"]) replay_pan_and_scan(image);
    replay_crop_plans();
    return report_;
  }

 private:
  void add(const std::string& what, const std::string& difference) {
    report_.add(difference.empty() ? "" : what + ": " + difference);
  }

  Image decoded(const std::string& file) const {
    for (const json& image : index_["images"]) {
      if (image["file"] == file) return load_image(folder_ / image["decoded"].get<std::string>());
    }
    throw std::runtime_error("no image " + file);
  }

  void replay_image(const json& entry) {
    const std::string file = entry["file"];
    const bool lossy =
        entry["format"] == "JPEG" || (entry["format"] == "WEBP" && entry["mode"] == "RGB");
    const Image image = decoded(file);
    add(file + " decoded", compare_pixels(load_image(folder_ / file), image, lossy));
    for (const ImageKind& kind : kImageKinds) {
      for (const bool big : {false, true}) {
        const std::string name = kind.name + std::string(big ? "896." : ".") + file;
        const TensorView* planes = resized_.find(name);
        if (planes == nullptr) continue;
        const int size = index_[big ? "big_size" : "size"];
        add(name,
            compare_planes(resize_image(image, size, size, ResizeFilter::kBilinear, kind.kind),
                           planes->elements<std::uint8_t>()));
      }
      replay_values(image, file, kind, "", ImageProcessorSettings{});
      ImageProcessorSettings imagenet;
      imagenet.height = 31;
      imagenet.width = 47;
      imagenet.image_mean = {0.485, 0.456, 0.406};
      imagenet.image_std = {0.229, 0.224, 0.225};
      replay_values(image, file, kind, "_31x47_imagenet", imagenet);
    }
  }

  void replay_values(const Image& image, const std::string& file, const ImageKind& kind,
                     const std::string& variant, const ImageProcessorSettings& settings) {
    const std::string name = "pixel_values_" + std::string(kind.name) + variant + "." + file;
    const TensorView* expected = values_.find(name);
    if (expected == nullptr) return;
    const json config = {{"size", {{"height", settings.height}, {"width", settings.width}}},
                         {"image_mean", settings.image_mean},
                         {"image_std", settings.image_std}};
    const auto processor = loaded(ImageProcessor::parse(config.dump(), "golden", kind.kind));
    const auto tensors = loaded(processor.process(image));
    add(name, tensors.size() == 1 ? compare_values(tensors[0], *expected) : "several tensors");
  }

  void replay_pan_and_scan(const json& entry) {
    const std::string file = entry["file"];
    const Image image = decoded(file);
    const int size = index_["pan_and_scan_size"];
    json config = index_["pan_and_scan_settings"];
    config["size"] = {{"height", size}, {"width", size}};
    for (const ImageKind& kind : kImageKinds) {
      const TensorView* planes = resized_.find("pas_" + std::string(kind.name) + "." + file);
      if (planes == nullptr) continue;
      const auto processor = loaded(ImageProcessor::parse(config.dump(), "golden", kind.kind));
      const auto boxes =
          loaded(pan_and_scan_boxes(image.width, image.height, processor.settings().pan_and_scan));
      std::string difference = boxes_text(boxes) == entry["boxes"] ? "" : "other boxes";
      const auto tensors = loaded(processor.process(image));
      const auto expected = planes->elements<std::uint8_t>();
      const std::size_t num_values =
          static_cast<std::size_t>(size) * static_cast<std::size_t>(size) * 3;
      if (tensors.size() * num_values != expected.size()) difference = "another number of images";
      for (std::size_t i = 0; difference.empty() && i < tensors.size(); ++i) {
        const ImageBox box = i == 0 ? ImageBox{0, 0, image.width, image.height} : boxes[i - 1];
        const Image part = resize_image(image, box, size, size, ResizeFilter::kBilinear, kind.kind);
        difference = compare_planes(part, expected.subspan(i * num_values, num_values));
        if (difference.empty() &&
            normalized_pixels(part, processor.settings(), kind.kind).values() !=
                tensors[i].values())
          difference = "other pixel values";
      }
      add("pas_" + std::string(kind.name) + "." + file, difference);
    }
  }

  static json boxes_text(const std::vector<ImageBox>& boxes) {
    json list = json::array();
    for (const ImageBox& box : boxes) list.push_back({box.x0, box.y0, box.x1, box.y1});
    return list;
  }

  void replay_crop_plans() {
    std::ifstream lines(folder_ / "crop_plans.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const json plan = json::parse(line);
      const PanAndScan settings{true, plan["min_crop_size"], plan["max_num_crops"],
                                plan["min_ratio_to_activate"]};
      const auto boxes = pan_and_scan_boxes(plan["width"], plan["height"], settings);
      if (!boxes.ok())
        add(line, boxes.error().message);
      else
        add(line, boxes_text(*boxes) == plan["boxes"] ? "" : boxes_text(*boxes).dump());
    }
  }

  fs::path folder_;
  json index_;
  SafetensorsFile resized_;
  SafetensorsFile values_;
  ReplayReport report_;
};

}  // namespace

ReplayReport replay_images(const std::filesystem::path& folder) {
  return ImageReplay(folder).run();
}

}  // namespace troupe
