#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011).

#include <array>
#include <cstdint>

namespace troupe {

/// The 128 bits for (counter, key). Bijective in the counter for each key, so different counters
/// never give the same block.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox4x32_10(
    std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) noexcept {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

/// 64 random bits for draw number `draw` of the token at `position`. They depend on nothing else,
/// so the same token is sampled in every batch, after every restart and on every machine.
[[nodiscard]] constexpr std::uint64_t philox_bits(std::uint64_t key, std::uint64_t position,
                                                  std::uint32_t draw) noexcept {
  const auto block = philox4x32_10(
      {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), draw, 0},
      {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
  return block[0] | static_cast<std::uint64_t>(block[1]) << 32;
}

/// The same as a number in [0, 1), a multiple of 2^-53.
[[nodiscard]] constexpr double philox_uniform(std::uint64_t key, std::uint64_t position,
                                              std::uint32_t draw) noexcept {
  return static_cast<double>(philox_bits(key, position, draw) >> 11) * 0x1p-53;
}

}  // namespace troupe
