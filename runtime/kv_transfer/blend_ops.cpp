#include "runtime/kv_transfer/blend_ops.hpp"

#include "messages/wire.hpp"

namespace troupe {

std::string pack_blend_ops(const BlendOps& ops) {
  std::vector<char> bytes;
  wire::encode(ops, bytes);
  return {bytes.begin(), bytes.end()};
}

std::optional<BlendOps> unpack_blend_ops(std::string_view text) {
  BlendOps ops;
  if (!wire::decode(text.data(), text.size(), ops)) return std::nullopt;
  return ops;
}

}  // namespace troupe
