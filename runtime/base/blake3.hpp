#pragma once
// The BLAKE3 hash function (github.com/BLAKE3-team/BLAKE3-specs), unkeyed, 256 bits.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe {

/// Hashes bytes incrementally.
class Blake3 {
 public:
  Blake3();
  void update(std::span<const std::uint8_t> bytes);
  /// The hash of all bytes so far. More may follow.
  [[nodiscard]] std::array<std::uint8_t, 32> digest() const;

 private:
  using Words = std::array<std::uint32_t, 8>;
  /// The input of a compression; the root of the tree is compressed with another flag.
  struct Node {
    Words chaining_value;
    std::array<std::uint8_t, 64> block;
    std::uint64_t counter;
    std::uint32_t block_bytes;
    std::uint32_t flags;

    [[nodiscard]] std::array<std::uint32_t, 16> compress(std::uint32_t extra_flags) const;
    [[nodiscard]] Words output() const;
  };

  void start_chunk(std::uint64_t counter);
  void compress_block();
  /// Joins the finished chunk with the subtrees that it completes.
  void add_chunk(Words chaining_value, std::uint64_t num_chunks);
  static Node parent(const Words& left, const Words& right);

  Node chunk_;                          ///< the current one's block, not yet compressed
  std::uint32_t num_chunk_blocks_ = 0;  ///< compressed
  /// The roots of complete subtrees, the largest first: one for each bit of the number of chunks.
  std::array<Words, 54> subtrees_{};
  std::size_t num_subtrees_ = 0;
};

[[nodiscard]] std::array<std::uint8_t, 32> blake3(std::span<const std::uint8_t> bytes);

}  // namespace troupe
