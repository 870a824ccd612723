#include "runtime/kv_transfer/blend_ops.hpp"

#include "runtime/kv_transfer/metadata_text.hpp"

namespace troupe {

std::string pack_blend_ops(const BlendOps& ops) { return metadata_text(ops); }

std::optional<BlendOps> unpack_blend_ops(std::string_view text) {
  BlendOps ops;
  if (!wire::decode(text.data(), text.size(), ops)) return std::nullopt;
  return ops;
}

}  // namespace troupe
