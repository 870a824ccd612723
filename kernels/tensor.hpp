#pragma once
// Non-owning views of the memory that kernels read and write. Activations are always f32; weights
// are stored in a wide ElementType, the KV cache in any.

#include <cstddef>
#include <cstdint>

// Views are used by code that is compiled once per instruction set. Their members must never be
// emitted as shared functions: the linker would keep one copy, perhaps of a set the CPU lacks.
#if defined(__CUDACC__)
#define TROUPE_INLINE __host__ __device__ inline
#else
#define TROUPE_INLINE [[gnu::always_inline]] inline
#endif

namespace troupe {

/// The number format in memory. 8-bit types are for the KV cache only, with a scale for each token
/// and head of keys and of values.
enum class ElementType : std::uint8_t {
  kF32,
  kBF16,
  kF16,
  kI8,      ///< in [-127, 127]
  kF8E4M3,  ///< 4 bits of exponent, 3 of fraction (OCP 8-bit floating point, E4M3)
};

[[nodiscard]] constexpr std::int64_t element_bytes(ElementType type) noexcept {
  return type == ElementType::kF32                                 ? 4
         : type == ElementType::kBF16 || type == ElementType::kF16 ? 2
                                                                   : 1;
}
/// Size of a token's scale, an f32; wide types have none.
[[nodiscard]] constexpr std::int64_t scale_bytes(ElementType type) noexcept {
  return element_bytes(type) == 1 ? 4 : 0;
}

/// [num_rows, num_cols] of T; row i starts at data + i * row_stride (in elements).
template <class T>
struct MatrixView {
  T* data = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t num_cols = 0;
  std::int64_t row_stride = 0;

  constexpr MatrixView() = default;
  constexpr MatrixView(T* data_in, std::int64_t rows, std::int64_t cols)
      : MatrixView(data_in, rows, cols, cols) {}
  constexpr MatrixView(T* data_in, std::int64_t rows, std::int64_t cols, std::int64_t stride)
      : data(data_in), num_rows(rows), num_cols(cols), row_stride(stride) {}

  [[nodiscard]] TROUPE_INLINE T* row(std::int64_t i) const noexcept {
    return data + i * row_stride;
  }
  /// Every writable view is also a readable one.
  TROUPE_INLINE operator MatrixView<const T>() const noexcept {
    return {data, num_rows, num_cols, row_stride};
  }
};
using Matrix = MatrixView<float>;
using ConstMatrix = MatrixView<const float>;

/// [num_tokens, num_heads, head_dim] of T; the heads of a token are adjacent, tokens are
/// token_stride elements apart. So q, k and v can be views of one [num_tokens, q + k + v] buffer.
template <class T>
struct HeadsView {
  T* data = nullptr;
  std::int64_t num_tokens = 0;
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t token_stride = 0;

  constexpr HeadsView() = default;
  constexpr HeadsView(T* data_in, std::int64_t tokens, std::int64_t heads, std::int64_t dim,
                      std::int64_t stride)
      : data(data_in), num_tokens(tokens), num_heads(heads), head_dim(dim), token_stride(stride) {}

  [[nodiscard]] TROUPE_INLINE T* row(std::int64_t token, std::int64_t head) const noexcept {
    return data + token * token_stride + head * head_dim;
  }
  TROUPE_INLINE operator HeadsView<const T>() const noexcept {
    return {data, num_tokens, num_heads, head_dim, token_stride};
  }
};
using Heads = HeadsView<float>;
using ConstHeads = HeadsView<const float>;

/// A weight as stored in a checkpoint: [num_rows, num_cols] = [outputs, inputs], dense, row-major.
/// The memory may be a mapped file and needs no alignment beyond that of its elements.
struct StoredMatrix {
  const void* data = nullptr;
  ElementType type = ElementType::kF32;
  std::int64_t num_rows = 0;
  std::int64_t num_cols = 0;
};

/// The KV pages of one layer: num_blocks pages of block_bytes() each, page b at data + b *
/// page_stride(). A page holds keys and values of block_size tokens for all KV heads, or latent
/// vectors; its layout is private to rope_and_write_kv and attention. Copying a page's bytes copies
/// its tokens. Pages need no initialisation: attention reads only slots that were written.
struct KvCacheView {
  void* data = nullptr;
  ElementType type = ElementType::kF32;
  std::int64_t num_blocks = 0;
  std::int64_t block_size = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t padded_page_bytes = 0;  ///< 0: a page ends with its content
  /// Not 0: latent vectors (MLA): a value is the last latent_dim elements of its key, and stored
  /// nowhere else.
  std::int64_t latent_dim = 0;

  /// Elements of a value.
  [[nodiscard]] constexpr std::int64_t value_dim() const noexcept {
    return latent_dim != 0 ? latent_dim : head_dim;
  }
  /// Keys, or values, of one head in one block.
  [[nodiscard]] constexpr std::int64_t head_bytes() const noexcept {
    return block_size * (head_dim * element_bytes(type) + scale_bytes(type));
  }
  [[nodiscard]] constexpr std::int64_t block_bytes() const noexcept {
    return (latent_dim != 0 ? 1 : 2) * num_kv_heads * head_bytes();
  }
  [[nodiscard]] constexpr std::int64_t page_stride() const noexcept {
    return padded_page_bytes != 0 ? padded_page_bytes : block_bytes();
  }
};

}  // namespace troupe
