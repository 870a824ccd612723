#pragma once
// The two passes of image_resizer.cpp: one filters along rows, the other along columns; and taking
// the channels apart. Scalar code and AVX2 code give the same bytes; which runs is chosen by the
// CPU.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

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

/// Rows of RGB pixels: an image or a part of one.
struct PixelRows {
  const std::uint8_t* first = nullptr;
  const std::uint8_t* end = nullptr;  ///< of the memory
  std::size_t bytes_per_row = 0;
  std::int32_t width = 0;
  std::int32_t height = 0;
};

enum class ResizeCode : std::uint8_t { kScalar, kAvx2, kAvx512 };
/// Those that this CPU runs, the fastest last.
[[nodiscard]] std::span<const ResizeCode> resize_codes();

/// How an image is resized. Without an axis its size stays.
struct ResizePasses {
  std::optional<AxisWeights> x;
  std::optional<AxisWeights> y;
  bool columns_first = false;
};

/// Takes the rows of an image one after the other; a row lasts as long as the call.
using RowSink = std::function<void(const std::uint8_t* row)>;

/// Gives the rows of the resized image to `sink`. No image is kept between the passes.
/// Pre: the weights are of those axes, the begins of y do not decrease, and |weight| < 1 << 26.
void filter_image(const PixelRows& in, const ResizePasses& passes, ResizeCode code,
                  const RowSink& sink);

/// Red, green and blue of the pixels to one place each.
void split_channels(const std::uint8_t* rgb, std::size_t num_pixels,
                    const std::array<std::uint8_t*, 3>& channels, ResizeCode code);

}  // namespace troupe
