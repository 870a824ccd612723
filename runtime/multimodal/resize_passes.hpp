#pragma once
// The two passes of image_resizer.cpp: one filters along rows, the other along columns. Scalar code
// and AVX2 code give the same bytes; which runs is chosen by the CPU.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/multimodal/image.hpp"

namespace troupe {

/// What one axis of an image is filtered with, in whole numbers:
/// out[i] = clamp((1/2 + sum over t of weights[i][t] * in[begins[i] + t]) >> bits, 0, 255).
struct AxisWeights {
  /// Each output's taps are padded with zeros to a multiple of this.
  static constexpr std::size_t kTapStep = 4;

  int bits = 0;            ///< a weight of 1 is 1 << bits
  std::size_t stride = 0;  ///< from one output's weights to the next's
  std::vector<std::size_t> begins;
  std::vector<std::size_t> num_taps;
  std::vector<std::int32_t> weights;  ///< [outputs, stride]
};

/// Rows of RGB pixels: a picture or a part of one.
struct PixelRows {
  const std::uint8_t* first = nullptr;
  const std::uint8_t* end = nullptr;  ///< of the memory
  std::size_t bytes_per_row = 0;
  std::int32_t width = 0;
  std::int32_t height = 0;
};

enum class ResizeCode : std::uint8_t { kScalar, kAvx2 };
/// The fastest that this CPU runs.
[[nodiscard]] ResizeCode best_resize_code();

/// Both: pre: the weights are of that axis, and |weight| < 1 << 26.
[[nodiscard]] Image filter_rows(const PixelRows& in, std::int32_t width, const AxisWeights& axis,
                                ResizeCode code);
[[nodiscard]] Image filter_columns(const PixelRows& in, std::int32_t height,
                                   const AxisWeights& axis, ResizeCode code);

}  // namespace troupe
