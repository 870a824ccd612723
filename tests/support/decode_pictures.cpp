// decode_pictures < requests.jsonl > results.jsonl: for each line {"file"}, {"width", "height"} or
// {"error"}; the pixels (RGB) go to the file's name + ".rgb". With "resize": [width, height] and
// "resample" the picture is resized first, as Pillow does.

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

troupe::Result<troupe::Image> decoded(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string bytes, troupe::read_file(file));
  return troupe::decode_image(std::as_bytes(std::span(bytes)));
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json request = Json::parse(line);
    const std::string file = request["file"];
    auto image = decoded(file);
    Json result;
    if (!image.ok()) {
      result["error"] = image.error().message;
    } else {
      if (request.contains("resize"))
        image = troupe::resize_image(*image, request["resize"][0], request["resize"][1],
                                     static_cast<troupe::ResizeFilter>(request["resample"]),
                                     troupe::ResizeKind::kPillow);
      result = {{"width", image->width}, {"height", image->height}};
      std::ofstream pixels(file + ".rgb", std::ios::binary);
      pixels.write(reinterpret_cast<const char*>(image->rgb.data()),
                   static_cast<std::streamsize>(image->rgb.size()));
    }
    std::cout << result.dump() << '\n';
  }
  return 0;
}
