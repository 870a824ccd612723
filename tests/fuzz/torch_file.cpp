// pytorch_model.bin from arbitrary bytes.
#include <cstdint>

#include "runtime/models/torch_file.hpp"
#include "tests/fuzz/mapped_bytes.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe;
  const MappedBytes mapped(data, size);
  const auto bytes = mapped.get();
  if (const auto tensors = parse_torch_file(bytes, "fuzz"); tensors.ok()) {
    for (const auto& [name, tensor] : *tensors)
      CHECK(tensor.bytes.empty() ||
            (tensor.bytes.data() >= bytes.data() &&
             tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size()));
  }
  return 0;
}
