#pragma once
// Hashes of chunks of tokens as LMCache's: in one process with an engine, and of its server of
// several processes (MP).

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/lmcache/python_hash.hpp"

namespace troupe::lmcache {

enum class ChunkHashAlgorithm : std::uint8_t {
  kSha256Cbor,  ///< the same in every process
  kBuiltin,     ///< hash() of Python: depends on PYTHONHASHSEED
};
/// "sha256_cbor", "builtin". Errors: kInvalidArgument naming the value.
[[nodiscard]] Result<ChunkHashAlgorithm> parse_chunk_hash_algorithm(std::string_view name);

/// Where the engine that hashes runs.
struct HashEnvironment {
  bool has_vllm = true;             ///< vLLM can be imported there
  std::optional<std::string> seed;  ///< PYTHONHASHSEED
};

/// The parent of every first chunk. Errors: kInvalidArgument, builtin with vLLM and no seed: it is
/// random there, or the seed is no number.
[[nodiscard]] Result<PythonInt> none_hash(ChunkHashAlgorithm algorithm,
                                          const HashEnvironment& environment);

struct Chunk {
  std::size_t begin = 0;  ///< tokens
  std::size_t end = 0;
  PythonInt hash;
  bool operator==(const Chunk&) const = default;
};

/// Immutable.
class ChunkHasher {
 public:
  /// Pre: chunk_size > 0.
  ChunkHasher(ChunkHashAlgorithm algorithm, PythonInt none, std::size_t chunk_size)
      : algorithm_(algorithm), none_(none), chunk_size_(chunk_size) {}

  /// H((parent, tokens, ())).
  [[nodiscard]] PythonInt hash(PythonInt parent, std::span<const std::int64_t> tokens) const;
  /// The tokens cut into chunks, each chained to the one before; with `partial` also the last ones
  /// that fill none.
  [[nodiscard]] std::vector<Chunk> chunks(std::span<const std::int64_t> tokens, bool partial) const;
  /// For blending: what lies between separators, each hashed by itself; a segment may be empty.
  /// Pre: `separator` is not empty.
  [[nodiscard]] std::vector<Chunk> segments(std::span<const std::int64_t> tokens,
                                            std::span<const std::int64_t> separator) const;

  [[nodiscard]] PythonInt none() const noexcept { return none_; }
  [[nodiscard]] std::size_t chunk_size() const noexcept { return chunk_size_; }

 private:
  ChunkHashAlgorithm algorithm_;
  PythonInt none_;
  std::size_t chunk_size_;
};

/// What is hashed in place of an item's placeholders: `count` numbers made of its identifier.
[[nodiscard]] std::vector<std::int64_t> placeholder_tokens(std::string_view identifier,
                                                           std::size_t count);

// ---- of the MP server ---------------------------------------------------------------------------

using MpChunkHash = std::array<std::uint8_t, 32>;

/// BLAKE3 of (8 zero bytes, 4 zero bytes): the parent of every first chunk.
[[nodiscard]] MpChunkHash mp_none_hash();
/// Of the complete chunks: BLAKE3 of the parent and the tokens, 4 bytes each, big endian. Pre:
/// chunk_size > 0; tokens fit into 32 bits.
[[nodiscard]] std::vector<MpChunkHash> mp_chunk_hashes(std::span<const std::int64_t> tokens,
                                                       std::size_t chunk_size);
/// As with `builtin`: hash((parent, tokens, None)). The hash of None is an address, another one in
/// each process of CPython 3.11.
[[nodiscard]] std::int64_t mp_builtin_hash(PythonInt parent, std::span<const std::int64_t> tokens,
                                           std::int64_t hash_of_none);

}  // namespace troupe::lmcache
