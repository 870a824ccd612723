// Arbitrary bytes as adapter_config.json: what is read has positive ranks and finite scalings.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/models/adapter_config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = troupe::parse_adapter_config(text);
  if (!config.ok()) return 0;
  for (const std::string_view module : {"model.layers.0.self_attn.q_proj", "lm_head", ""}) {
    if (config->rank_of(module) < 1) std::abort();
    if (!std::isfinite(config->scaling_of(module))) std::abort();
  }
  return 0;
}
