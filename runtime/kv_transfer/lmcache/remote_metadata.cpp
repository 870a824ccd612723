#include "runtime/kv_transfer/lmcache/remote_metadata.hpp"

#include <cstring>

namespace troupe::lmcache {
namespace {

std::string without_slashes(std::string_view key, std::string_view slash) {
  std::string name;
  for (const char c : key) c == '/' ? name += slash : name += c;
  return name;
}

}  // namespace

std::string pack_remote_metadata(const RemoteMetadata& metadata) {
  std::vector<std::int32_t> words = {metadata.length, static_cast<std::int32_t>(metadata.format)};
  for (const RemoteMetadata::Group& group : metadata.groups) {
    words.push_back(static_cast<std::int32_t>(group.dtype));
    words.insert(words.end(), group.shape.begin(), group.shape.end());
  }
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(std::int32_t)};
}

Result<RemoteMetadata> parse_remote_metadata(std::string_view bytes) {
  const std::size_t num_groups =
      bytes.size() < RemoteMetadata::num_bytes(1)
          ? 0
          : (bytes.size() - RemoteMetadata::num_bytes(0)) /
                (RemoteMetadata::num_bytes(1) - RemoteMetadata::num_bytes(0));
  if (num_groups == 0 || bytes.size() != RemoteMetadata::num_bytes(num_groups))
    return Error{ErrorCode::kCorrupt,
                 "remote metadata has " + std::to_string(bytes.size()) +
                     " bytes, expected 28, and 20 for each further group",
                 {}};
  std::vector<std::int32_t> words(bytes.size() / sizeof(std::int32_t));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  if (words[0] < 0)
    return Error{
        ErrorCode::kCorrupt, "remote metadata: the length is " + std::to_string(words[0]), {}};
  RemoteMetadata metadata{words[0], static_cast<MemoryFormat>(words[1]), {}};
  for (std::size_t i = 2; i < words.size(); i += 5) {
    RemoteMetadata::Group& group = metadata.groups.emplace_back();
    group.dtype = static_cast<TensorDtype>(words[i]);
    std::memcpy(group.shape.data(), &words[i + 1], sizeof(group.shape));
  }
  return metadata;
}

std::string remote_file_name(std::string_view key) {
  return without_slashes(key, "-SEP-") + ".data";
}

std::string disk_file_name(std::string_view key) { return without_slashes(key, "-") + ".pt"; }

}  // namespace troupe::lmcache
