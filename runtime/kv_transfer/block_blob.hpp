#pragma once
// A stored block: a header that identifies it, and the bytes of its layers' pages.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/store_key.hpp"

namespace troupe {

/// XXH3 of all that determines the bytes of a block besides its key: the model, the types, the
/// layout of the cache, how it is split, and the rank.
using BlockOrigin = std::array<std::uint8_t, 16>;

/// Little endian. The checksum, XXH3 of 128 bits, is of all that follows it.
struct BlobHeader {
  static constexpr std::array<char, 8> kMagic = {'T', 'R', 'O', 'U', 'P', 'E', 'K', 'V'};
  static constexpr std::uint32_t kVersion = 1;

  std::array<char, 8> magic = kMagic;
  std::array<std::uint8_t, 16> checksum{};
  std::uint32_t version = kVersion;
  std::int32_t group = 0;
  std::uint64_t num_bytes = 0;  ///< behind the header
  BlockOrigin origin{};
  BlockHash hash;
};
static_assert(sizeof(BlobHeader) == 88);

using Blob = std::vector<std::byte>;

/// A blob with its header, but for the checksum; the content is to be filled in.
[[nodiscard]] Blob make_blob(const BlockOrigin& origin, const StoreKey& key, std::size_t num_bytes);
[[nodiscard]] inline std::span<std::byte> blob_content(Blob& blob) noexcept {
  return std::span(blob).subspan(sizeof(BlobHeader));
}
[[nodiscard]] inline std::span<const std::byte> blob_content(const Blob& blob) noexcept {
  return std::span(blob).subspan(sizeof(BlobHeader));
}
/// Completes it: a blob may be saved then.
void seal_blob(Blob& blob);
/// Errors: kCorrupt naming the first field that is not as expected, and both values.
[[nodiscard]] Result<void> check_blob(const Blob& blob, const BlockOrigin& origin,
                                      const StoreKey& key, std::size_t num_bytes);
/// The same without the checksum, which takes the longest.
[[nodiscard]] Result<void> check_blob_header(const Blob& blob, const BlockOrigin& origin,
                                             const StoreKey& key, std::size_t num_bytes);

}  // namespace troupe
