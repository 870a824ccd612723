#include "runtime/kv_transfer/lmcache/chunk_source.hpp"

namespace troupe::lmcache {

Result<std::size_t> copy_chunks(const ChunkSource& source, const std::string& target_url,
                                std::span<const std::string> keys, const std::stop_token& stop) {
  const Result<RemoteUrl> url = parse_remote_url(target_url);
  if (!url.ok() || (url->scheme != "lm" && url->scheme != "lms"))
    return Error{ErrorCode::kUnsupported,
                 "chunks are moved into lm:// and lms:// stores, and the other instance is reached "
                 "at " +
                     target_url +
                     ": LMCache's transport between its own instances (NIXL) is not offered",
                 {}};
  RemoteOptions target_options = source.store;
  target_options.url = target_url;
  if (url->scheme == "lm") target_options.token_file.clear();
  ASSIGN_OR_RETURN(const auto target, make_remote_store(target_options));
  ASSIGN_OR_RETURN(std::size_t next, target->count_leading(keys));
  ASSIGN_OR_RETURN(const auto own, make_remote_store(source.store));
  for (; next < keys.size(); ++next) {
    if (stop.stop_requested()) return Error{ErrorCode::kUnavailable, "the engine ends", {}};
    ASSIGN_OR_RETURN(const auto value, own->get(keys[next], source.chunk_bytes));
    if (!value) break;
    RETURN_IF_ERROR(target->put(keys[next], bytes_info(value->size()), *value));
  }
  // Nothing answers a put.
  return target->count_leading(keys.first(next));
}

}  // namespace troupe::lmcache
