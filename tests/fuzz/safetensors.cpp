// safetensors headers, config.json and generation_config.json from arbitrary bytes.
#include <cstdint>
#include <string_view>

#include "runtime/models/model_config.hpp"
#include "runtime/models/safetensors.hpp"
#include "tests/fuzz/mapped_bytes.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe;
  const MappedBytes mapped(data, size);
  const auto bytes = mapped.get();
  if (const auto tensors = parse_safetensors(bytes, "fuzz"); tensors.ok()) {
    std::size_t num_bytes = 0;
    for (const auto& [name, tensor] : *tensors) {
      CHECK(tensor.bytes.data() >= bytes.data() &&
            tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size());
      num_bytes += tensor.bytes.size();
    }
    CHECK(num_bytes <= size);
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)parse_model_config(text);
  (void)parse_generation_config(text);
  return 0;
}
