#include "runtime/kv_transfer/lmcache_ops.hpp"

#include "runtime/kv_transfer/metadata_text.hpp"

namespace troupe {

std::string pack_lmcache_ops(const LMCacheOps& ops) { return metadata_text(ops); }

std::optional<LMCacheOps> unpack_lmcache_ops(std::string_view text) {
  LMCacheOps ops;
  if (!wire::decode(text.data(), text.size(), ops)) return std::nullopt;
  return ops;
}

}  // namespace troupe
