#pragma once
// One factory per architecture, each in the file of its name. Errors stay in the loader; the caller
// asks it with finish().

#include <memory>

#include "runtime/models/device.hpp"
#include "runtime/models/model.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

using ModelFactory = std::unique_ptr<Model> (*)(const ModelConfig& config, Device& device,
                                                WeightLoader& loader);

std::unique_ptr<Model> make_llama(const ModelConfig& config, Device& device, WeightLoader& loader);
std::unique_ptr<Model> make_qwen2(const ModelConfig& config, Device& device, WeightLoader& loader);
std::unique_ptr<Model> make_qwen3(const ModelConfig& config, Device& device, WeightLoader& loader);
std::unique_ptr<Model> make_mistral(const ModelConfig& config, Device& device,
                                    WeightLoader& loader);
std::unique_ptr<Model> make_gemma3(const ModelConfig& config, Device& device, WeightLoader& loader);

}  // namespace troupe
