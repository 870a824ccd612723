// decode_images < requests.jsonl > results.jsonl: for each line {"file"}, {"width", "height",
// "rgb"} (whether it is stored as RGB) or {"error"}; the pixels (RGB) go to the file's name +
// ".rgb". With "resize": [width, height] and "resample" the image is resized first, as Pillow
// does. With "processor", the fields of a preprocessor_config.json, "backend" (torchvision or pil)
// and, if any, "kwargs" (mm_processor_kwargs) the result is {"shapes"}, of the image and its parts,
// and their values in float32 go to the file's name + ".f32".

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/multimodal/image_decoder.hpp"
#include "runtime/multimodal/image_processor.hpp"
#include "runtime/multimodal/image_resizer.hpp"

namespace {

using Json = nlohmann::json;

troupe::Result<troupe::Image> decoded(const troupe::Result<std::string>& bytes) {
  if (!bytes.ok()) return bytes.error();
  return troupe::decode_image(std::as_bytes(std::span(*bytes)));
}

troupe::Result<std::vector<troupe::PixelTensor>> processed(const Json& request,
                                                           const troupe::Image& image) {
  const auto kind = request.at("backend") == "pil" ? troupe::ResizeKind::kPillow
                                                   : troupe::ResizeKind::kTorchvision;
  auto processor =
      troupe::ImageProcessor::parse(request["processor"].dump(), "preprocessor_config.json", kind);
  if (processor.ok() && request.contains("kwargs"))
    processor = processor->with_kwargs(request["kwargs"]);
  if (!processor.ok()) return processor.error();
  return processor->process(image);
}

Json write_processed(const Json& request, const troupe::Image& image, const std::string& file) {
  const auto tensors = processed(request, image);
  if (!tensors.ok()) return {{"error", tensors.error().message}};
  Json shapes = Json::array();
  std::ofstream out(file + ".f32", std::ios::binary);
  for (const troupe::PixelTensor& tensor : *tensors) {
    shapes.push_back(tensor.shape);
    const std::vector<float> values = tensor.values();
    out.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
  return {{"shapes", shapes}};
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json request = Json::parse(line);
    const std::string file = request["file"];
    const auto bytes = troupe::read_file(file);
    auto image = decoded(bytes);
    Json result;
    if (!image.ok()) {
      result["error"] = image.error().message;
    } else if (request.contains("processor")) {
      result = write_processed(request, *image, file);
    } else {
      if (request.contains("resize"))
        image = troupe::resize_image(*image, request["resize"][0], request["resize"][1],
                                     static_cast<troupe::ResizeFilter>(request["resample"]),
                                     troupe::ResizeKind::kPillow);
      result = {{"width", image->width},
                {"height", image->height},
                {"rgb", troupe::stored_as_rgb(std::as_bytes(std::span(*bytes)))}};
      std::ofstream pixels(file + ".rgb", std::ios::binary);
      pixels.write(reinterpret_cast<const char*>(image->rgb.data()),
                   static_cast<std::streamsize>(image->rgb.size()));
    }
    std::cout << result.dump() << '\n';
  }
  return 0;
}
