// Runs a fuzz target over files and folders of inputs, for builds without libFuzzer. Fails if there
// is no input.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {
std::size_t replay(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    std::size_t inputs = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      inputs += replay(entry.path());
    return inputs;
  }
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file),
                                std::istreambuf_iterator<char>()};
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  return 1;
}
}  // namespace

int main(int argc, char** argv) {
  std::size_t inputs = 0;
  for (int i = 1; i < argc; ++i) inputs += replay(argv[i]);
  std::printf("replayed %zu inputs\n", inputs);
  return inputs == 0 ? 1 : 0;
}
