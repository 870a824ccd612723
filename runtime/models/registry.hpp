#pragma once
// The supported architectures. Each is defined in its family's file, and has a line in
// registry.cpp.

#include <memory>
#include <span>
#include <string_view>

#include "runtime/gguf/architecture.hpp"
#include "runtime/models/config_fields.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/model.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

class ItemTower;

/// One architecture: how its config.json is read, what llama.cpp calls its parts, and how a model
/// of it is made.
struct RegisteredArchitecture {
  std::string_view name;        ///< as in config.json's `architectures`
  std::string_view model_type;  ///< as in config.json; it decides where the two disagree
  /// Not empty: what the language model is stands in text_config, which is of one of these
  /// model_types; of the first where it does not say.
  std::span<const std::string_view> text_model_types = {};
  bool ties_embeddings = false;  ///< where config.json does not say
  /// Reads the language model's fields, with the defaults of its class. What would change the
  /// result and is not supported is an error that names it. `is_gguf`: see parse_model_config.
  void (*read_config)(ConfigFields& text, bool is_gguf, ModelConfig& config) = nullptr;
  /// Reads vision_config, and what the outer configuration says of images. Null: it is not read;
  /// nor is it beside a language model's fields, but for what a GGUF file stands for.
  void (*read_vision)(ConfigFields& root, ConfigFields& vision, ModelConfig& config) = nullptr;
  const GgufArchitecture* gguf = nullptr;  ///< null: GGUF files do not have it
  /// Loads the model's weights. Errors stay in the loader, which the caller asks with finish().
  std::unique_ptr<Model> (*make)(const ModelConfig& config, Device& device,
                                 WeightLoader& loader) = nullptr;
  /// Loads its encoder alone; null where the checkpoint has none. Errors as for make. Null: the
  /// architecture has no encoder.
  std::unique_ptr<const ItemTower> (*load_tower)(const ModelConfig& config, Device& device,
                                                 WeightLoader& loader) = nullptr;
};

[[nodiscard]] std::span<const RegisteredArchitecture* const> registered_architectures() noexcept;

/// By its name; null: there is none.
[[nodiscard]] const RegisteredArchitecture* find_architecture(std::string_view name) noexcept;
/// That of a GGUF file with such metadata. Errors: kUnsupported, kCorrupt.
Result<const RegisteredArchitecture*> find_gguf_architecture(const nlohmann::json& metadata,
                                                             std::string_view file_name);

}  // namespace troupe
