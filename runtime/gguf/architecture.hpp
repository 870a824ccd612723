#pragma once
// How llama.cpp's converters write a model family into a GGUF file. The family-specific parts are
// in runtime/models; this folder has what all of them share.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "runtime/gguf/metadata.hpp"

namespace troupe {

/// How a tensor's shape differs elsewhere.
enum class GgufShape : std::uint8_t {
  kSame,
  kRow,          ///< a vector is a matrix of one row
  kVector,       ///< a matrix is a vector
  kConvolution,  ///< a matrix has one more dimension, of 1, in its middle
};

/// Renames the prefix of a tensor's name after "blk.N." to a name after "model.layers.N.". An
/// asterisk in it is the index of each matrix stacked in the tensor.
struct GgufRenaming {
  std::string_view gguf;
  std::string_view name;
  GgufShape shape = GgufShape::kSame;
};

/// A vision encoder of the family, which is in a file of its own (mmproj.hpp).
struct GgufProjector {
  std::string_view type;  ///< clip.projector_type
  /// Tensors that are not the encoder's own: whole names.
  std::span<const GgufRenaming> tensors = {};
  /// Adds what config.json says of images beside vision_config. `mmproj` and `text`: the metadata
  /// of the two files.
  void (*add_config)(GgufMetadata& mmproj, GgufMetadata& text, nlohmann::json& config) = nullptr;
};

struct GgufArchitecture {
  std::string_view name;  ///< general.architecture, and prefix of the keys
  /// "expert_count" is above 0: distinguishes two architectures of the same name.
  bool has_experts = false;
  /// Distinguishes two of the same name by their other keys. Null: it is the only one.
  bool (*matches)(GgufMetadata& metadata, const std::string& prefix) = nullptr;
  double rope_theta = 1e4;  ///< default, if the file has none
  /// The halves of each head's rows of q and k are interleaved, since llama.cpp rotates neighbours.
  bool interleaves_heads = false;
  /// The tensor kRopeDivisors scales the rotary frequencies.
  bool has_rope_divisors = false;
  /// rope.dimension_count may be less than a head.
  bool rotates_part = false;
  /// The tensors kShortRopeDivisors and kLongRopeDivisors scale them by LongRoPE.
  bool has_long_rope = false;
  /// The keys that add_config reads, without the prefix.
  std::span<const std::string_view> keys = {};
  /// Layer tensors whose names differ from those of the plain decoder.
  std::span<const GgufRenaming> tensors = {};
  /// The same of tensors outside of layers: whole prefixes.
  std::span<const GgufRenaming> outside = {};
  /// Adds architecture-specific fields to config.json. Null: none.
  void (*add_config)(GgufMetadata& metadata, const std::string& prefix,
                     nlohmann::json& config) = nullptr;
  const GgufProjector* projector = nullptr;  ///< null: the family takes no images
};

/// Each key under the architecture's prefix must be known, irrelevant to the result, or have a
/// neutral value. Errors go to `metadata`: kUnsupported, naming the first other key and its value.
void check_architecture_keys(GgufMetadata& metadata, const GgufArchitecture& architecture,
                             std::int64_t head_dim);

}  // namespace troupe
