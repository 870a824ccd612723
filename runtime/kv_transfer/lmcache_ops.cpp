#include "runtime/kv_transfer/lmcache_ops.hpp"

#include "messages/wire.hpp"

namespace troupe {

std::string pack_lmcache_ops(const LMCacheOps& ops) {
  std::vector<char> bytes;
  wire::encode(ops, bytes);
  return {bytes.begin(), bytes.end()};
}

std::optional<LMCacheOps> unpack_lmcache_ops(std::string_view text) {
  LMCacheOps ops;
  if (!wire::decode(text.data(), text.size(), ops)) return std::nullopt;
  return ops;
}

}  // namespace troupe
