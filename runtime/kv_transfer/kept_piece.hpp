#pragma once
// A piece of a prompt that the BlendConnector keeps, in memory and as a file.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/block_blob.hpp"
#include "runtime/kv_transfer/store_key.hpp"

namespace troupe {

/// Bytes of a number of a key or value as pieces keep it: of a cache in 16 or 8 bits as bf16.
[[nodiscard]] std::int64_t kept_number_bytes(DType cache_dtype) noexcept;

/// Keys and values of the tokens of a piece, in the layers of this rank; keys as KvBlend has them.
class KeptPiece {
 public:
  KeptPiece(std::int32_t num_tokens, bool is_narrow)
      : num_tokens_(num_tokens), is_narrow_(is_narrow) {}

  /// Tokens from `offset` on have these in a layer. k and v: rows of `size` elements.
  void write(std::int32_t layer, std::int32_t offset, std::int64_t size, const float* k,
             const float* v);
  /// Pre: it has been written, with rows of that size.
  void read(std::int32_t layer, std::int32_t offset, std::int64_t size, float* k, float* v) const;

  /// As a file holds it: little endian. Of a whole piece; the key's group is its number of tokens.
  [[nodiscard]] Blob pack(const BlockOrigin& origin, const BlockHash& key) const;
  /// Errors: kCorrupt, a field of the header, the checksum, or layers that are no such piece's.
  [[nodiscard]] static Result<std::shared_ptr<KeptPiece>> unpack(const Blob& blob,
                                                                 const BlockOrigin& origin,
                                                                 const StoreKey& key,
                                                                 bool is_narrow);

  [[nodiscard]] std::size_t num_bytes() const noexcept;

 private:
  std::int32_t num_tokens_;
  bool is_narrow_;                              // bf16, else f32
  std::vector<std::vector<std::byte>> layers_;  // by number; of each token k, then v
};

}  // namespace troupe
