// Arbitrary bytes as the config.json of a draft head: what is read fits the model.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/models/draft_head_config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using troupe::DraftHeadKind;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const troupe::ModelConfig target{.architecture = "DeepseekV3ForCausalLM",
                                   .hidden_size = 128,
                                   .num_layers = 4,
                                   .vocab_size = 768,
                                   .max_model_len = 1024};
  for (const auto kind : {DraftHeadKind::kEagle, DraftHeadKind::kEagle3, DraftHeadKind::kMtp}) {
    const auto config = troupe::parse_draft_head_config(kind, text, target);
    if (!config.ok()) continue;
    if (config->layers.num_layers < 1 || config->layers.vocab_size != target.vocab_size)
      std::abort();
    if (config->draft_vocab_size < 1 || config->draft_vocab_size > target.vocab_size) std::abort();
    for (const std::int32_t layer : config->input_layers)
      if (layer < 0 || layer >= target.num_layers) std::abort();
  }
  return 0;
}
