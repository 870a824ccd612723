#pragma once
// What LMCache's stores of whole values (Redis, files) keep beside a tensor, and under which names.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/lmcache/lm_protocol.hpp"

namespace troupe::lmcache {

/// Little endian: length, format, then type and shape of each KV group.
struct RemoteMetadata {
  struct Group {
    TensorDtype dtype = TensorDtype::kFloat16;
    std::array<std::int32_t, 4> shape{};
    bool operator==(const Group&) const = default;
  };
  std::int32_t length = 0;
  MemoryFormat format = MemoryFormat::kKv2Ltd;
  std::vector<Group> groups;
  bool operator==(const RemoteMetadata&) const = default;

  [[nodiscard]] static constexpr std::size_t num_bytes(std::size_t num_groups) noexcept {
    return sizeof(std::int32_t) * (2 + 5 * num_groups);
  }
};

[[nodiscard]] std::string pack_remote_metadata(const RemoteMetadata& metadata);
/// Errors: kCorrupt, its size is not that of any number of groups, or the length is negative.
[[nodiscard]] Result<RemoteMetadata> parse_remote_metadata(std::string_view bytes);

/// Of Redis in its first layout: two keys. In the second one ("resp") the key itself has the bytes.
[[nodiscard]] inline std::string redis_bytes_key(std::string_view key) {
  return std::string(key) + "kv_bytes";
}
[[nodiscard]] inline std::string redis_metadata_key(std::string_view key) {
  return std::string(key) + "metadata";
}

/// Of a folder of files (fs://): its file for a key. '/' is "-SEP-".
[[nodiscard]] std::string remote_file_name(std::string_view key);
/// Of the local disk: '/' is '-'.
[[nodiscard]] std::string disk_file_name(std::string_view key);

}  // namespace troupe::lmcache
