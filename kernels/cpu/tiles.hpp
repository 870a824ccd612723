#pragma once
// The AMX tile instructions used by kernels or, for tests on CPUs without AMX, their emulation in
// plain memory (TROUPE_EMULATE_TILES).

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/convert.hpp"

namespace troupe::TROUPE_ISA {

/// The operand of LDTILECFG (Intel 64 manual, volume 1, 18.3).
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t num_rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

#if !defined(TROUPE_EMULATE_TILES)

TROUPE_INLINE void load_tile_config(const TileConfig& config) {
  // GCC 12 assumes that the intrinsic reads only the first 8 bytes of the config and may omit the
  // stores to the others.
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}
TROUPE_INLINE void release_tiles() { _tile_release(); }
// Macros, since GCC writes the tile number into the instruction's text.
#define TROUPE_TILE_ZERO(tile) _tile_zero(tile)
#define TROUPE_TILE_LOAD(tile, base, stride_bytes) _tile_loadd(tile, base, stride_bytes)
#define TROUPE_TILE_STORE(tile, base, stride_bytes) _tile_stored(tile, base, stride_bytes)
#define TROUPE_TILE_DOT(sums, a, b) _tile_dpbf16ps(sums, a, b)
#define TROUPE_TILE_DOT_INT8(sums, a, b) _tile_dpbssd(sums, a, b)

#else

struct EmulatedTiles {
  TileConfig config;
  std::uint8_t bytes[8][16][64] = {};
};
inline thread_local EmulatedTiles emulated_tiles;

inline void load_tile_config(const TileConfig& config) {
  emulated_tiles = {};
  emulated_tiles.config = config;
}
inline void release_tiles() { emulated_tiles = {}; }
template <int kTile>
void zero_tile() {
  std::memset(emulated_tiles.bytes[kTile], 0, sizeof emulated_tiles.bytes[kTile]);
}
template <int kTile>
void load_tile(const void* base, std::int64_t stride_bytes) {
  zero_tile<kTile>();
  for (int row = 0; row < emulated_tiles.config.num_rows[kTile]; ++row) {
    std::memcpy(emulated_tiles.bytes[kTile][row],
                static_cast<const char*>(base) + row * stride_bytes,
                emulated_tiles.config.row_bytes[kTile]);
  }
}
template <int kTile>
void store_tile(void* base, std::int64_t stride_bytes) {
  for (int row = 0; row < emulated_tiles.config.num_rows[kTile]; ++row) {
    std::memcpy(static_cast<char*>(base) + row * stride_bytes, emulated_tiles.bytes[kTile][row],
                emulated_tiles.config.row_bytes[kTile]);
  }
}
/// Whether the CPU would multiply such tiles without a fault.
template <int kSums, int kA, int kB>
bool shapes_fit() {
  const TileConfig& config = emulated_tiles.config;
  return config.palette == 1 && config.num_rows[kSums] == config.num_rows[kA] &&
         config.num_rows[kB] == config.row_bytes[kA] / 4 &&
         config.row_bytes[kB] == config.row_bytes[kSums];
}
/// TDPBF16PS: for each row of A and each pair in it, both products are added to the row's sums.
/// Mismatched shapes give NaN.
template <int kSums, int kA, int kB>
void dot_tiles() {
  const TileConfig& config = emulated_tiles.config;
  const int num_cols = config.row_bytes[kSums] / 4;
  const int num_pairs = config.row_bytes[kA] / 4;
  for (int m = 0; m < config.num_rows[kSums]; ++m) {
    for (int n = 0; n < num_cols; ++n) {
      float sum = load_element<ElementType::kF32>(emulated_tiles.bytes[kSums][m], n);
      for (int k = 0; k < num_pairs; ++k) {
        for (int i = 0; i < 2; ++i) {
          sum += load_element<ElementType::kBF16>(emulated_tiles.bytes[kA][m], 2 * k + i) *
                 load_element<ElementType::kBF16>(emulated_tiles.bytes[kB][k], 2 * n + i);
        }
      }
      store_element<ElementType::kF32>(emulated_tiles.bytes[kSums][m], n,
                                       shapes_fit<kSums, kA, kB>() ? sum : __builtin_nanf(""));
    }
  }
}
/// TDPBSSD: for each row of A and each group of four in it, the products of signed bytes are added
/// to the row's sums. Mismatched shapes give undefined values.
template <int kSums, int kA, int kB>
void dot_int8_tiles() {
  const TileConfig& config = emulated_tiles.config;
  for (int m = 0; m < config.num_rows[kSums]; ++m) {
    for (std::int64_t n = 0; n < config.row_bytes[kSums] / 4; ++n) {
      std::int32_t sum;
      std::memcpy(&sum, emulated_tiles.bytes[kSums][m] + 4 * n, sizeof sum);
      for (int k = 0; k < config.row_bytes[kA]; ++k)
        sum += static_cast<std::int8_t>(emulated_tiles.bytes[kA][m][k]) *
               static_cast<std::int8_t>(emulated_tiles.bytes[kB][k / 4][4 * n + k % 4]);
      if (!shapes_fit<kSums, kA, kB>()) sum = INT32_MIN;
      std::memcpy(emulated_tiles.bytes[kSums][m] + 4 * n, &sum, sizeof sum);
    }
  }
}

#define TROUPE_TILE_ZERO(tile) zero_tile<tile>()
#define TROUPE_TILE_LOAD(tile, base, stride_bytes) load_tile<tile>(base, stride_bytes)
#define TROUPE_TILE_STORE(tile, base, stride_bytes) store_tile<tile>(base, stride_bytes)
#define TROUPE_TILE_DOT(sums, a, b) dot_tiles<sums, a, b>()
#define TROUPE_TILE_DOT_INT8(sums, a, b) dot_int8_tiles<sums, a, b>()

#endif

/// This thread's tile configuration, from the first use() to the end of the lifetime.
class ConfiguredTiles {
 public:
  ConfiguredTiles() = default;
  ~ConfiguredTiles() {
    if (num_rows_ != 0) release_tiles();
  }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;

  /// Loads config_of(num_rows), unless it is loaded already.
  template <class ConfigOf>
  TROUPE_INLINE void use(int num_rows, const ConfigOf& config_of) {
    if (num_rows == num_rows_) return;
    num_rows_ = num_rows;
    load_tile_config(config_of(num_rows));
  }

 private:
  int num_rows_ = 0;
};

/// Up to 32 rows by two tiles: tiles 4 and 5 are rows, 6 and 7 the other factor, 0 and 1 the sums
/// of 4, 2 and 3 those of 5. Up to 16 rows need no 2, 3 and 5.
inline TileConfig square_config(int num_rows) {
  const int upper_rows = num_rows < 16 ? num_rows : 16;
  const int lower_rows = num_rows <= 16 ? upper_rows : num_rows - 16;
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    const bool lower = tile == 2 || tile == 3 || tile == 5;
    config.row_bytes[tile] = 64;
    config.num_rows[tile] =
        static_cast<std::uint8_t>(tile >= 6 ? 16 : (lower ? lower_rows : upper_rows));
  }
  return config;
}

/// Sums start at zero, or at their values in memory.
#define TROUPE_TILE_BEGIN(tile, fresh, base, stride_bytes) \
  do {                                                     \
    if (fresh)                                             \
      TROUPE_TILE_ZERO(tile);                              \
    else                                                   \
      TROUPE_TILE_LOAD(tile, base, stride_bytes);          \
  } while (false)

}  // namespace troupe::TROUPE_ISA
