#include "runtime/multimodal/image_resizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>
#include <vector>

#include "runtime/base/check.hpp"
#include "runtime/multimodal/resize_passes.hpp"

namespace troupe {
namespace {

constexpr int kPillowWeightBits = 22;
constexpr int kMaxTorchWeight = 1 << 15;  // excluded

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double filter_support(ResizeFilter filter) {
  switch (filter) {
    case ResizeFilter::kBox:
      return 0.5;
    case ResizeFilter::kBicubic:
      return 2.0;
    case ResizeFilter::kLanczos:
      return 3.0;
    default:
      return 1.0;
  }
}

double filter_value(ResizeFilter filter, double x) {
  if (filter == ResizeFilter::kBox) return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
  if (filter == ResizeFilter::kLanczos) return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
  x = std::abs(x);
  if (filter == ResizeFilter::kBicubic) {
    constexpr double a = -0.5;
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
  }
  if (x >= 1.0) return 0.0;
  if (filter == ResizeFilter::kHamming) {
    if (x == 0.0) return 1.0;
    x *= std::numbers::pi;
    return std::sin(x) / x * (double{0.54F} + double{0.46F} * std::cos(x));
  }
  return 1.0 - x;
}

AxisWeights axis_weights(std::int32_t in_size, std::int32_t out_size, ResizeFilter filter,
                         ResizeKind kind) {
  const double scale = static_cast<double>(in_size) / out_size;
  const double filter_scale = std::max(scale, 1.0);
  const double support = filter_support(filter) * filter_scale;
  const double inverse = 1.0 / filter_scale;
  const auto num_outputs = static_cast<std::size_t>(out_size);
  AxisWeights axis;
  const std::size_t max_taps = static_cast<std::size_t>(std::ceil(support)) * 2 + 1;
  axis.stride =
      (max_taps + AxisWeights::kTapStep - 1) / AxisWeights::kTapStep * AxisWeights::kTapStep;
  axis.begins.resize(num_outputs);
  axis.num_taps.resize(num_outputs);
  axis.weights.resize(num_outputs * axis.stride);
  std::vector<double> exact(num_outputs * axis.stride);
  double max_weight = 0;
  for (std::size_t i = 0; i < num_outputs; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const int begin = std::max(static_cast<int>(center - support + 0.5), 0);
    const int end = std::min(static_cast<int>(center + support + 0.5), in_size);
    double* weights = &exact[i * axis.stride];
    double sum = 0;
    for (int t = 0; t < end - begin; ++t) {
      weights[t] = filter_value(filter, (t + begin - center + 0.5) * inverse);
      sum += weights[t];
    }
    for (int t = 0; t < end - begin; ++t) {
      if (sum != 0) weights[t] /= sum;
      max_weight = std::max(max_weight, weights[t]);
    }
    axis.begins[i] = static_cast<std::size_t>(begin);
    axis.num_taps[i] = static_cast<std::size_t>(end - begin);
  }
  axis.bits = kPillowWeightBits;
  if (kind == ResizeKind::kTorchvision) {
    // As many bits as the largest weight leaves in 16.
    axis.bits = 0;
    while (axis.bits < kPillowWeightBits &&
           static_cast<int>(0.5 + max_weight * (1 << (axis.bits + 1))) < kMaxTorchWeight)
      ++axis.bits;
  }
  for (std::size_t i = 0; i < exact.size(); ++i)
    axis.weights[i] =
        static_cast<std::int32_t>((exact[i] < 0 ? -0.5 : 0.5) + exact[i] * (1 << axis.bits));
  return axis;
}

PixelRows rows_of(const Image& image) {
  return {image.rgb.data(), image.rgb.data() + image.rgb.size(),
          static_cast<std::size_t>(image.width) * 3, image.width, image.height};
}

/// Which element of an axis is nearest to each output. Both add up or multiply as their library.
std::vector<std::size_t> nearest_elements(std::int32_t in_size, std::int32_t out_size,
                                          ResizeKind kind) {
  std::vector<std::size_t> elements(static_cast<std::size_t>(out_size));
  const auto last = static_cast<std::size_t>(in_size) - 1;
  const double scale = static_cast<double>(in_size) / out_size;
  const float float_scale = static_cast<float>(in_size) / static_cast<float>(out_size);
  double position = scale * 0.5;
  for (std::size_t i = 0; i < elements.size(); ++i, position += scale) {
    const auto torch_position = (static_cast<float>(i) + 0.5F) * float_scale;
    elements[i] = std::min(kind == ResizeKind::kPillow ? static_cast<std::size_t>(position)
                                                       : static_cast<std::size_t>(torch_position),
                           last);
  }
  return elements;
}

void nearest_rows(const PixelRows& in, std::int32_t width, std::int32_t height, ResizeKind kind,
                  const RowSink& sink) {
  const std::vector<std::size_t> columns = nearest_elements(in.width, width, kind);
  std::vector<std::uint8_t> out(columns.size() * 3);
  for (const std::size_t from_row : nearest_elements(in.height, height, kind)) {
    const std::uint8_t* row = in.first + from_row * in.bytes_per_row;
    std::uint8_t* to = out.data();
    for (const std::size_t column : columns) {
      std::memcpy(to, row + column * 3, 3);
      to += 3;
    }
    sink(out.data());
  }
}

}  // namespace

bool supports_filter(ResizeKind kind, ResizeFilter filter) noexcept {
  if (kind == ResizeKind::kPillow) return filter <= ResizeFilter::kHamming;
  return filter == ResizeFilter::kNearest || filter == ResizeFilter::kBilinear ||
         filter == ResizeFilter::kBicubic;
}

void resize_image_rows(const Image& image, const ImageBox& box, std::int32_t width,
                       std::int32_t height, ResizeFilter filter, ResizeKind kind,
                       const RowSink& sink) {
  CHECK(box.x0 >= 0 && box.y0 >= 0 && box.x0 < box.x1 && box.y0 < box.y1 && box.x1 <= image.width &&
            box.y1 <= image.height,
        "box", box.x0, box.y0, box.x1, box.y1);
  CHECK(width > 0 && height > 0 && supports_filter(kind, filter), width, height);
  PixelRows in = rows_of(image);
  in.first +=
      static_cast<std::size_t>(box.y0) * in.bytes_per_row + static_cast<std::size_t>(box.x0) * 3;
  in.width = box.x1 - box.x0;
  in.height = box.y1 - box.y0;
  if (filter == ResizeFilter::kNearest) {
    nearest_rows(in, width, height, kind, sink);
    return;
  }
  ResizePasses passes;  // an axis whose size stays is not filtered
  if (in.width != width) passes.x = axis_weights(in.width, width, filter, kind);
  if (in.height != height) passes.y = axis_weights(in.height, height, filter, kind);
  passes.columns_first = kind == ResizeKind::kPillow && height < in.height &&
                         std::int64_t{in.height} - height > 2 * (std::int64_t{in.width} - width);
  filter_image(in, passes, resize_codes().back(), sink);
}

Image resize_image(const Image& image, const ImageBox& box, std::int32_t width, std::int32_t height,
                   ResizeFilter filter, ResizeKind kind) {
  Image out{width, height, {}};
  const std::size_t row_bytes = static_cast<std::size_t>(width) * 3;
  out.rgb.reserve(row_bytes * static_cast<std::size_t>(height));
  resize_image_rows(image, box, width, height, filter, kind, [&](const std::uint8_t* row) {
    out.rgb.insert(out.rgb.end(), row, row + row_bytes);
  });
  return out;
}

Image resize_image(const Image& image, std::int32_t width, std::int32_t height, ResizeFilter filter,
                   ResizeKind kind) {
  return resize_image(image, {0, 0, image.width, image.height}, width, height, filter, kind);
}

}  // namespace troupe
