// decode_images < requests.jsonl > results.jsonl: for each line {"file"}, {"width", "height",
// "rgb"} (whether it is stored as RGB) or {"error"}; the pixels (RGB) go to the file's name +
// ".rgb". With "resize": [width, height] and "resample" the image is resized first, as Pillow
// does.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/multimodal/image_decoder.hpp"
#include "runtime/multimodal/image_resizer.hpp"

namespace {

using Json = nlohmann::json;

troupe::Result<troupe::Image> decoded(const troupe::Result<std::string>& bytes) {
  if (!bytes.ok()) return bytes.error();
  return troupe::decode_image(std::as_bytes(std::span(*bytes)));
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
