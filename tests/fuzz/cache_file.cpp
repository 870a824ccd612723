// The beginning of a file of the cache server: what is accepted lies inside the file, and is what
// the same key and value would be written as.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "runtime/cache_server/value.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto head = parse_cache_file_head(bytes.substr(0, kMaxCacheFileHead), size);
  if (!head.ok()) return 0;
  if (head->head_bytes > size || head->num_bytes != size - head->head_bytes) std::abort();
  const std::string_view value = bytes.substr(head->head_bytes);
  const bool sound =
      check_cache_file(bytes.substr(0, head->head_bytes), {value.data(), value.size()}).ok();
  CacheValue copy(head->info, value.size());
  if (!value.empty()) std::memcpy(copy.bytes().data(), value.data(), value.size());
  // Only the four bytes that are reserved may differ.
  const std::string again = pack_cache_file_head(head->key, copy);
  if (again.size() != head->head_bytes) std::abort();
  if (!sound && again == bytes.substr(0, head->head_bytes)) std::abort();
  return 0;
}
