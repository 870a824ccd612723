// bench_images FOLDER SECONDS FILE...: images per second of CPU time on one thread, from a
// file's bytes to the pixel values that the model in FOLDER takes.

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "runtime/base/file.hpp"
#include "runtime/multimodal/image_decoder.hpp"
#include "runtime/multimodal/image_processor.hpp"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("usage: bench_images FOLDER SECONDS FILE...\n", stderr);
    return 2;
  }
  const auto processor = troupe::ImageProcessor::load(argv[1]);
  if (!processor.ok()) {
    std::fprintf(stderr, "%s\n", processor.error().message.c_str());
    return 1;
  }
  std::vector<std::string> files;
  for (int i = 3; i < argc; ++i) files.push_back(troupe::read_file(argv[i]).value());
  const double seconds = std::atof(argv[2]);
  const std::clock_t start = std::clock();
  double elapsed = 0;
  std::size_t count = 0;
  for (; elapsed < seconds; ++count) {
    const auto image = troupe::decode_image(std::as_bytes(std::span(files[count % files.size()])));
    if (!image.ok() || !processor->process(*image).ok()) return 1;
    elapsed = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  }
  std::printf("%.2f\n", static_cast<double>(count) / elapsed);
  return 0;
}
