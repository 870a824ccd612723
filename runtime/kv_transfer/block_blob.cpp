#include "runtime/kv_transfer/block_blob.hpp"

#include <cstddef>
#include <cstring>

#include "runtime/base/hash.hpp"

namespace troupe {
namespace {

constexpr std::size_t kChecksumEnd = offsetof(BlobHeader, version);

std::array<std::uint8_t, 16> checksum_of(const Blob& blob) {
  return xxh3_128(std::span(reinterpret_cast<const std::uint8_t*>(blob.data()), blob.size())
                      .subspan(kChecksumEnd));
}

Error corrupt_field(const std::string& field, const std::string& found,
                    const std::string& expected) {
  return {ErrorCode::kCorrupt, field + " is " + found + ", expected " + expected, {}};
}

}  // namespace

Blob make_blob(const BlockOrigin& origin, const StoreKey& key, std::size_t num_bytes) {
  Blob blob(sizeof(BlobHeader) + num_bytes);
  const BlobHeader header{
      .group = key.group, .num_bytes = num_bytes, .origin = origin, .hash = key.hash};
  std::memcpy(blob.data(), &header, sizeof(header));
  return blob;
}

void seal_blob(Blob& blob) {
  const auto checksum = checksum_of(blob);
  std::memcpy(blob.data() + offsetof(BlobHeader, checksum), checksum.data(), checksum.size());
}

Result<void> check_blob_header(const Blob& blob, const BlockOrigin& origin, const StoreKey& key,
                               std::size_t num_bytes) {
  if (blob.size() != sizeof(BlobHeader) + num_bytes)
    return corrupt_field("size", std::to_string(blob.size()),
                         std::to_string(sizeof(BlobHeader) + num_bytes));
  BlobHeader header;
  std::memcpy(&header, blob.data(), sizeof(header));
  if (header.magic != BlobHeader::kMagic)
    return corrupt_field("magic",
                         to_hex(std::span(reinterpret_cast<const std::uint8_t*>(&header.magic),
                                          header.magic.size())),
                         "TROUPEKV");
  if (header.version != BlobHeader::kVersion)
    return corrupt_field("version", std::to_string(header.version),
                         std::to_string(BlobHeader::kVersion));
  if (header.origin != origin)
    return corrupt_field("origin (model, types, layout, rank)", to_hex(header.origin),
                         to_hex(origin));
  if (header.group != key.group)
    return corrupt_field("group", std::to_string(header.group), std::to_string(key.group));
  if (header.hash != key.hash)
    return corrupt_field("hash", to_hex(header.hash.bytes), to_hex(key.hash.bytes));
  if (header.num_bytes != num_bytes)
    return corrupt_field("num_bytes", std::to_string(header.num_bytes), std::to_string(num_bytes));
  return {};
}

Result<void> check_blob(const Blob& blob, const BlockOrigin& origin, const StoreKey& key,
                        std::size_t num_bytes) {
  RETURN_IF_ERROR(check_blob_header(blob, origin, key, num_bytes));
  BlobHeader header;
  std::memcpy(&header, blob.data(), sizeof(header));
  const auto checksum = checksum_of(blob);
  if (header.checksum != checksum)
    return corrupt_field("xxh3_128", to_hex(checksum), to_hex(header.checksum));
  return {};
}

}  // namespace troupe
