#pragma once
// A value of the cache server, in memory and as a file.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/lmcache/lm_protocol.hpp"

namespace troupe {

/// Bytes that are received into place, so they are not initialised.
class CacheValue {
 public:
  CacheValue(const lmcache::TensorInfo& info, std::size_t num_bytes)
      : info_(info), num_bytes_(num_bytes), bytes_(new char[num_bytes]) {}

  [[nodiscard]] const lmcache::TensorInfo& info() const noexcept { return info_; }
  [[nodiscard]] std::size_t size() const noexcept { return num_bytes_; }
  [[nodiscard]] std::span<char> bytes() noexcept { return {bytes_.get(), num_bytes_}; }
  [[nodiscard]] std::span<const char> bytes() const noexcept { return {bytes_.get(), num_bytes_}; }

 private:
  lmcache::TensorInfo info_;
  std::size_t num_bytes_;
  std::unique_ptr<char[]> bytes_;
};
using CacheValuePtr = std::shared_ptr<const CacheValue>;

/// Identifies a value: clients with different tokens cannot access each other's.
struct CacheKey {
  std::string owner;  ///< name of the client's token; empty: it needs none
  std::string key;    ///< of LMCache
  bool operator==(const CacheKey&) const = default;
};

/// A file: header, owner, key, bytes. Little endian; the checksum, XXH3 of 128 bits, is of all that
/// follows it.
struct CacheFileHeader {
  static constexpr std::array<char, 8> kMagic = {'T', 'R', 'O', 'U', 'P', 'E', 'L', 'M'};
  static constexpr std::uint32_t kVersion = 1;

  std::array<char, 8> magic = kMagic;
  std::array<std::uint8_t, 16> checksum{};
  std::uint32_t version = kVersion;
  std::uint32_t owner_bytes = 0;
  std::uint32_t key_bytes = 0;
  lmcache::TensorInfo info;
  std::uint32_t reserved = 0;
  std::uint64_t num_bytes = 0;
};
static_assert(sizeof(CacheFileHeader) == 72);

/// Everything in front of the value's bytes.
[[nodiscard]] std::string pack_cache_file_head(const CacheKey& key, const CacheValue& value);

struct CacheFileHead {
  CacheKey key;
  lmcache::TensorInfo info;
  std::size_t head_bytes = 0;
  std::uint64_t num_bytes = 0;
};
/// The beginning of a file of file_bytes. Errors: kCorrupt naming the field; the checksum is not
/// checked.
[[nodiscard]] Result<CacheFileHead> parse_cache_file_head(std::string_view bytes,
                                                          std::uint64_t file_bytes);
/// Longest beginning that parse_cache_file_head needs.
inline constexpr std::size_t kMaxCacheFileHead = 4096;
/// Of a whole file. Errors: kCorrupt.
[[nodiscard]] Result<void> check_cache_file(std::string_view head, std::span<const char> bytes);

}  // namespace troupe
