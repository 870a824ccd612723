#pragma once
// How llama.cpp's converters write one family of models into a GGUF file. The families say it
// (runtime/models); what all of them share is in this folder.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "runtime/gguf/metadata.hpp"

namespace troupe {

/// The beginning of a tensor's name behind "blk.N.", and what takes its place behind
/// "model.layers.N.". An asterisk in it stands for the index of each of the matrices that lie one
/// behind the other in the tensor.
struct GgufRenaming {
  std::string_view gguf;
  std::string_view name;
};

struct GgufArchitecture {
  std::string_view name;  ///< general.architecture, and the prefix of the keys
  /// "expert_count" is above 0: of two architectures with one name the one for such files.
  bool has_experts = false;
  double rope_theta = 1e4;  ///< where the file gives none
  /// The halves of each head's rows of q and k are interleaved, as llama.cpp rotates neighbours.
  bool interleaves_heads = false;
  /// kRopeDivisors scales the rotation.
  bool has_rope_divisors = false;
  /// Without the prefix: the keys that add_config reads.
  std::span<const std::string_view> keys = {};
  /// Where names of a layer's tensors differ from those of the plain decoder.
  std::span<const GgufRenaming> tensors = {};
  /// Adds to config.json what only this architecture has. Null: nothing.
  void (*add_config)(GgufMetadata& metadata, const std::string& prefix,
                     nlohmann::json& config) = nullptr;
};

/// Each key under the architecture's own prefix must be one that is read, one that changes no
/// result, or have the value with which it changes none. Errors go to `metadata`: kUnsupported,
/// naming the first other key and its value.
void check_architecture_keys(GgufMetadata& metadata, const GgufArchitecture& architecture,
                             std::int64_t head_dim);

}  // namespace troupe
