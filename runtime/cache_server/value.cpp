#include "runtime/cache_server/value.hpp"

#include <array>
#include <cstring>

#include "runtime/base/hash.hpp"

namespace troupe {
namespace {

constexpr std::size_t kChecksumEnd = offsetof(CacheFileHeader, version);

/// Of two digests, so that nothing is copied.
std::array<std::uint8_t, 16> checksum_of(std::string_view head, std::span<const char> bytes) {
  const auto value = xxh3_128(std::string_view(bytes.data(), bytes.size()));
  std::string text(head.substr(kChecksumEnd));
  text.append(reinterpret_cast<const char*>(value.data()), value.size());
  return xxh3_128(text);
}

Error corrupt_file(const std::string& field, const std::string& found) {
  return {ErrorCode::kCorrupt, "file of the cache: " + field + " is " + found, {}};
}

}  // namespace

std::string pack_cache_file_head(const CacheKey& key, const CacheValue& value) {
  CacheFileHeader header{.owner_bytes = static_cast<std::uint32_t>(key.owner.size()),
                         .key_bytes = static_cast<std::uint32_t>(key.key.size()),
                         .info = value.info(),
                         .num_bytes = value.size()};
  std::string head(reinterpret_cast<const char*>(&header), sizeof(header));
  head += key.owner + key.key;
  const auto checksum = checksum_of(head, value.bytes());
  std::memcpy(head.data() + offsetof(CacheFileHeader, checksum), checksum.data(), checksum.size());
  return head;
}

Result<CacheFileHead> parse_cache_file_head(std::string_view bytes, std::uint64_t file_bytes) {
  CacheFileHeader header;
  if (bytes.size() < sizeof(header)) return corrupt_file("size", std::to_string(bytes.size()));
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != CacheFileHeader::kMagic)
    return corrupt_file("magic",
                        to_hex(std::span(reinterpret_cast<const std::uint8_t*>(header.magic.data()),
                                         header.magic.size())));
  if (header.version != CacheFileHeader::kVersion)
    return corrupt_file("version", std::to_string(header.version));
  const std::uint64_t head_bytes =
      sizeof(header) + std::uint64_t{header.owner_bytes} + header.key_bytes;
  if (head_bytes > bytes.size()) return corrupt_file("head", std::to_string(head_bytes));
  if (file_bytes < head_bytes || header.num_bytes != file_bytes - head_bytes)
    return corrupt_file("num_bytes", std::to_string(header.num_bytes) + " in a file of " +
                                         std::to_string(file_bytes));
  return CacheFileHead{
      .key = {std::string(bytes.substr(sizeof(header), header.owner_bytes)),
              std::string(bytes.substr(sizeof(header) + header.owner_bytes, header.key_bytes))},
      .info = header.info,
      .head_bytes = head_bytes,
      .num_bytes = header.num_bytes};
}

Result<void> check_cache_file(std::string_view head, std::span<const char> bytes) {
  const auto checksum = checksum_of(head, bytes);
  if (std::memcmp(head.data() + offsetof(CacheFileHeader, checksum), checksum.data(),
                  checksum.size()) != 0)
    return corrupt_file("xxh3_128", to_hex(checksum) + ", which is not that of its header");
  return {};
}

}  // namespace troupe
