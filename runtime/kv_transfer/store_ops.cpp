#include "runtime/kv_transfer/store_ops.hpp"

#include <atomic>

#include "runtime/kv_transfer/metadata_text.hpp"

namespace troupe {

RequestId next_load_id() {
  static std::atomic<std::uint64_t> num_left{~std::uint64_t{0}};
  return RequestId{num_left--};
}

std::string pack_store_ops(const StoreOps& ops) { return metadata_text(ops); }

std::optional<StoreOps> unpack_store_ops(std::string_view text) {
  StoreOps ops;
  if (!wire::decode(text.data(), text.size(), ops)) return std::nullopt;
  return ops;
}

}  // namespace troupe
