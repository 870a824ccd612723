#pragma once
// A decoded image.

#include <array>
#include <cstdint>
#include <vector>

namespace troupe {

/// Red, green, blue.
using ImageColor = std::array<std::uint8_t, 3>;
inline constexpr ImageColor kWhite = {255, 255, 255};

/// Red, green, blue: three bytes a pixel, rows from top to bottom without gaps.
/// Invariant: rgb.size() == 3 * width * height.
struct Image {
  std::int32_t width = 0;
  std::int32_t height = 0;
  std::vector<std::uint8_t> rgb;

  bool operator==(const Image&) const = default;
};

}  // namespace troupe
