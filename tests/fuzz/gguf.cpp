// GGUF files from arbitrary bytes, and what their metadata says.
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/base/check.hpp"
#include "runtime/base/json.hpp"
#include "runtime/gguf/mmproj.hpp"
#include "runtime/gguf/model_files.hpp"
#include "runtime/models/registry.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto gguf = parse_gguf(bytes, "fuzz");
  if (!gguf.ok()) return 0;
  for (const auto& [name, tensor] : gguf->tensors) {
    CHECK(tensor.bytes.empty() ||
          (tensor.bytes.data() >= bytes.data() &&
           tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size()));
  }
  for (const RegisteredArchitecture* architecture : registered_architectures()) {
    if (architecture->gguf == nullptr) continue;
    (void)gguf_config_json(*gguf, *architecture->gguf, "fuzz");
    for (const auto& [name, tensor] : gguf->tensors)
      (void)huggingface_weights(name, tensor, *architecture->gguf, *gguf->metadata, "fuzz");
    if (const GgufProjector* projector = architecture->gguf->projector; projector != nullptr) {
      GgufMetadata metadata(*gguf->metadata, "fuzz");
      nlohmann::json config = {{"hidden_size", 64}};
      config["vision_config"] = mmproj_vision_config(metadata, *projector);
      projector->add_config(metadata, metadata, config);
      const MmprojNames names(*gguf, *projector);
      for (const auto& [name, tensor] : gguf->tensors) (void)names.huggingface_name(name);
    }
  }
  (void)gguf_generation_config_json(*gguf, "fuzz");
  (void)gguf_tokenizer_json(*gguf, "fuzz");
  (void)gguf_tokenizer_config_json(*gguf, "fuzz");
  return 0;
}
