// pytorch_model.bin from arbitrary bytes.
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/models/torch_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe;
  // A mapping is aligned; the fuzzer's buffer need not be.
  std::vector<std::uint64_t> words(size / sizeof(std::uint64_t) + 1);
  if (size != 0) std::memcpy(words.data(), data, size);
  const auto bytes = std::as_bytes(std::span(words)).first(size);
  if (const auto tensors = parse_torch_file(bytes, "fuzz"); tensors.ok()) {
    for (const auto& [name, tensor] : *tensors)
      CHECK(tensor.bytes.empty() ||
            (tensor.bytes.data() >= bytes.data() &&
             tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size()));
  }
  return 0;
}
