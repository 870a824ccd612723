#include "runtime/base/blake3.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace troupe {
namespace {

constexpr std::array<std::uint32_t, 8> kBlake3Iv = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                                    0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
constexpr std::size_t kBlockBytes = 64;
constexpr std::uint32_t kBlocksPerChunk = 16;
constexpr int kNumRounds = 7;

enum Blake3Flag : std::uint32_t { kChunkStart = 1, kChunkEnd = 2, kParent = 4, kRoot = 8 };

/// Which word each round takes where: the permutation of the specification, applied round by round.
constexpr auto kSchedule = [] {
  constexpr std::array<std::uint8_t, 16> permutation = {2, 6,  3,  10, 7, 0,  4,  13,
                                                        1, 11, 12, 5,  9, 14, 15, 8};
  std::array<std::array<std::uint8_t, 16>, kNumRounds> schedule{};
  for (std::size_t i = 0; i < 16; ++i) schedule[0][i] = static_cast<std::uint8_t>(i);
  for (std::size_t round = 1; round < kNumRounds; ++round) {
    for (std::size_t i = 0; i < 16; ++i) schedule[round][i] = schedule[round - 1][permutation[i]];
  }
  return schedule;
}();

inline void mix(std::array<std::uint32_t, 16>& v, std::size_t a, std::size_t b, std::size_t c,
                std::size_t d, std::uint32_t x, std::uint32_t y) {
  v[a] += v[b] + x;
  v[d] = std::rotr(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 12);
  v[a] += v[b] + y;
  v[d] = std::rotr(v[d] ^ v[a], 8);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 7);
}

template <std::size_t round>
void mix_round(std::array<std::uint32_t, 16>& v, const std::array<std::uint32_t, 16>& words) {
  constexpr auto at = kSchedule[round];
  mix(v, 0, 4, 8, 12, words[at[0]], words[at[1]]);
  mix(v, 1, 5, 9, 13, words[at[2]], words[at[3]]);
  mix(v, 2, 6, 10, 14, words[at[4]], words[at[5]]);
  mix(v, 3, 7, 11, 15, words[at[6]], words[at[7]]);
  mix(v, 0, 5, 10, 15, words[at[8]], words[at[9]]);
  mix(v, 1, 6, 11, 12, words[at[10]], words[at[11]]);
  mix(v, 2, 7, 8, 13, words[at[12]], words[at[13]]);
  mix(v, 3, 4, 9, 14, words[at[14]], words[at[15]]);
}

}  // namespace

std::array<std::uint32_t, 16> Blake3::Node::compress(std::uint32_t extra_flags) const {
  std::array<std::uint32_t, 16> words;
  for (std::size_t i = 0; i < 16; ++i) {
    words[i] = 0;
    for (std::size_t byte = 0; byte < 4; ++byte)
      words[i] |= std::uint32_t{block[4 * i + byte]} << (8 * byte);
  }
  std::array<std::uint32_t, 16> v;
  std::copy(chaining_value.begin(), chaining_value.end(), v.begin());
  std::copy_n(kBlake3Iv.begin(), 4, v.begin() + 8);
  v[12] = static_cast<std::uint32_t>(counter);
  v[13] = static_cast<std::uint32_t>(counter >> 32);
  v[14] = block_bytes;
  v[15] = flags | extra_flags;
  // Unrolled: all indices are constants.
  [&]<std::size_t... rounds>(std::index_sequence<rounds...>) { (mix_round<rounds>(v, words), ...); }
  (std::make_index_sequence<kNumRounds>());
  for (std::size_t i = 0; i < 8; ++i) v[i] ^= v[i + 8];
  return v;
}

Blake3::Words Blake3::Node::output() const {
  const auto state = compress(0);
  Words words;
  std::copy_n(state.begin(), words.size(), words.begin());
  return words;
}

Blake3::Node Blake3::parent(const Words& left, const Words& right) {
  Node node{kBlake3Iv, {}, 0, kBlockBytes, kParent};
  for (std::size_t i = 0; i < 16; ++i) {
    const std::uint32_t word = i < 8 ? left[i] : right[i - 8];
    for (std::size_t byte = 0; byte < 4; ++byte)
      node.block[4 * i + byte] = static_cast<std::uint8_t>(word >> (8 * byte));
  }
  return node;
}

Blake3::Blake3() { start_chunk(0); }

void Blake3::start_chunk(std::uint64_t counter) {
  chunk_ = {kBlake3Iv, {}, counter, 0, kChunkStart};
  num_chunk_blocks_ = 0;
}

void Blake3::compress_block() {
  chunk_.chaining_value = chunk_.output();
  chunk_.block.fill(0);
  chunk_.block_bytes = 0;
  chunk_.flags = 0;
  ++num_chunk_blocks_;
}

void Blake3::add_chunk(Words chaining_value, std::uint64_t num_chunks) {
  for (; (num_chunks & 1) == 0; num_chunks >>= 1)
    chaining_value = parent(subtrees_[--num_subtrees_], chaining_value).output();
  subtrees_[num_subtrees_++] = chaining_value;
}

void Blake3::update(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    // A full block is compressed only when more follows: the last one has other flags.
    if (chunk_.block_bytes == kBlockBytes) {
      if (num_chunk_blocks_ + 1 == kBlocksPerChunk) {
        chunk_.flags |= kChunkEnd;
        const std::uint64_t num_chunks = chunk_.counter + 1;
        add_chunk(chunk_.output(), num_chunks);
        start_chunk(num_chunks);
      } else {
        compress_block();
      }
    }
    const std::size_t taken = std::min(kBlockBytes - chunk_.block_bytes, bytes.size());
    std::memcpy(&chunk_.block[chunk_.block_bytes], bytes.data(), taken);
    chunk_.block_bytes += static_cast<std::uint32_t>(taken);
    bytes = bytes.subspan(taken);
  }
}

std::array<std::uint8_t, 32> Blake3::digest() const {
  Node node = chunk_;
  node.flags |= kChunkEnd;
  for (std::size_t i = num_subtrees_; i-- > 0;) node = parent(subtrees_[i], node.output());
  const auto words = node.compress(kRoot);
  std::array<std::uint8_t, 32> digest;
  for (std::size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
  return digest;
}

std::array<std::uint8_t, 32> blake3(std::span<const std::uint8_t> bytes) {
  Blake3 hasher;
  hasher.update(bytes);
  return hasher.digest();
}

}  // namespace troupe
