#include "runtime/kv_transfer/lmcache/chunk_hash.hpp"

#include <algorithm>

#include "runtime/base/blake3.hpp"
#include "runtime/base/cbor.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/hash.hpp"

namespace troupe::lmcache {
namespace {

constexpr std::string_view kDefaultSeed = "vllm-none-hash";

template <class T>
void append_big_endian(std::vector<std::uint8_t>& bytes, T x) {
  for (int shift = 8 * (static_cast<int>(sizeof(T)) - 1); shift >= 0; shift -= 8)
    bytes.push_back(static_cast<std::uint8_t>(x >> shift));
}

std::uint64_t first_word(std::span<const std::uint8_t> digest) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < sizeof(word); ++i) word = word << 8 | digest[i];
  return word;
}

PythonInt folded_sha256(std::span<const std::uint8_t> bytes) {
  return {first_word(sha256(bytes)), false};
}

}  // namespace

Result<ChunkHashAlgorithm> parse_chunk_hash_algorithm(std::string_view name) {
  if (name == "sha256_cbor") return ChunkHashAlgorithm::kSha256Cbor;
  if (name == "builtin") return ChunkHashAlgorithm::kBuiltin;
  return invalid_argument("pre_caching_hash_algorithm is " + std::string(name) +
                          ", it must be sha256_cbor or builtin");
}

Result<PythonInt> none_hash(ChunkHashAlgorithm algorithm, const HashEnvironment& environment) {
  if (!environment.has_vllm) return PythonInt{};
  if (algorithm == ChunkHashAlgorithm::kSha256Cbor) {
    std::vector<std::uint8_t> bytes;
    CborWriter(bytes).text(environment.seed ? std::string_view(*environment.seed) : kDefaultSeed);
    return folded_sha256(bytes);
  }
  if (!environment.seed)
    return invalid_argument(
        "pre_caching_hash_algorithm builtin needs PYTHONHASHSEED: without it the hashes of each "
        "process differ");
  const auto key = python_hash_key(*environment.seed);
  if (!key)
    return invalid_argument("PYTHONHASHSEED is " + *environment.seed +
                            ", it must be a number from 0 to 4294967295");
  return PythonInt::of(python_hash_text(*environment.seed, *key));
}

PythonInt ChunkHasher::hash(PythonInt parent, std::span<const std::int64_t> tokens) const {
  if (algorithm_ == ChunkHashAlgorithm::kBuiltin) {
    const std::array<std::int64_t, 3> elements = {python_hash(parent), python_hash_integers(tokens),
                                                  python_hash_tuple({})};
    return PythonInt::of(python_hash_tuple(elements));
  }
  CHECK(!parent.negative, parent.magnitude);
  std::vector<std::uint8_t> bytes;
  bytes.reserve(16 + 5 * tokens.size());
  CborWriter writer(bytes);
  writer.array(3);
  writer.natural(parent.magnitude);
  writer.array(tokens.size());
  for (const std::int64_t token : tokens) writer.integer(token);
  writer.array(0);
  return folded_sha256(bytes);
}

std::vector<Chunk> ChunkHasher::chunks(std::span<const std::int64_t> tokens, bool partial) const {
  std::vector<Chunk> chunks;
  PythonInt parent = none_;
  for (std::size_t begin = 0; begin < tokens.size(); begin += chunk_size_) {
    const std::size_t end = std::min(begin + chunk_size_, tokens.size());
    if (end - begin < chunk_size_ && !partial) break;
    parent = hash(parent, tokens.subspan(begin, end - begin));
    chunks.push_back({begin, end, parent});
  }
  return chunks;
}

std::vector<Chunk> ChunkHasher::segments(std::span<const std::int64_t> tokens,
                                         std::span<const std::int64_t> separator) const {
  std::vector<Chunk> segments;
  for (std::size_t begin = 0;;) {
    // Clang 14, which builds the fuzz targets, cannot compile std::ranges::search.
    const auto found = std::search(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                   tokens.end(), separator.begin(), separator.end());
    const auto end = static_cast<std::size_t>(found - tokens.begin());
    segments.push_back({begin, end, hash(none_, tokens.subspan(begin, end - begin))});
    if (found == tokens.end() || separator.empty()) return segments;
    begin = end + separator.size();
  }
}

std::vector<std::int64_t> placeholder_tokens(std::string_view identifier, std::size_t count) {
  const auto seed = sha256(
      std::span(reinterpret_cast<const std::uint8_t*>(identifier.data()), identifier.size()));
  std::vector<std::int64_t> tokens;
  tokens.reserve(count);
  std::array<std::uint8_t, 32> block{};
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 8 == 0) {
      std::vector<std::uint8_t> bytes(seed.begin(), seed.end());
      append_big_endian(bytes, static_cast<std::uint64_t>(i / 8));
      block = sha256(bytes);
    }
    const std::uint8_t* const word = block.data() + 4 * (i % 8);
    tokens.push_back((word[0] & 0x7f) << 24 | word[1] << 16 | word[2] << 8 | word[3]);
  }
  return tokens;
}

MpChunkHash mp_none_hash() { return blake3(std::array<std::uint8_t, 12>{}); }

std::vector<MpChunkHash> mp_chunk_hashes(std::span<const std::int64_t> tokens,
                                         std::size_t chunk_size) {
  std::vector<MpChunkHash> hashes;
  MpChunkHash parent = mp_none_hash();
  for (std::size_t begin = 0; begin + chunk_size <= tokens.size(); begin += chunk_size) {
    std::vector<std::uint8_t> bytes(parent.begin(), parent.end());
    for (const std::int64_t token : tokens.subspan(begin, chunk_size))
      append_big_endian(bytes, static_cast<std::uint32_t>(token));
    parent = blake3(bytes);
    hashes.push_back(parent);
  }
  return hashes;
}

std::int64_t mp_builtin_hash(PythonInt parent, std::span<const std::int64_t> tokens,
                             std::int64_t hash_of_none) {
  const std::array<std::int64_t, 3> elements = {python_hash(parent), python_hash_integers(tokens),
                                                hash_of_none};
  return python_hash_tuple(elements);
}

}  // namespace troupe::lmcache
