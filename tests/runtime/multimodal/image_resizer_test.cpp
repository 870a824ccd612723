#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <random>

#include "runtime/multimodal/image_resizer.hpp"
#include "runtime/multimodal/resize_passes.hpp"

using namespace troupe;

namespace {

Image random_image(std::mt19937& random, std::int32_t width, std::int32_t height) {
  Image image{width, height, {}};
  image.rgb.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  for (std::uint8_t& byte : image.rgb) byte = static_cast<std::uint8_t>(random());
  return image;
}

/// Weights of `bits` bits that add up to about 1, some below 0. The begins do not decrease.
AxisWeights random_weights(std::mt19937& random, std::int32_t in_size, std::size_t num_outputs,
                           int bits) {
  AxisWeights axis{.bits = bits, .stride = 12, .begins = {}, .num_taps = {}, .weights = {}};
  axis.weights.resize(num_outputs * axis.stride);
  const auto size = static_cast<std::size_t>(in_size);
  for (std::size_t i = 0; i < num_outputs; ++i) axis.begins.push_back(random() % size);
  std::ranges::sort(axis.begins);
  for (std::size_t i = 0; i < num_outputs; ++i) {
    axis.num_taps.push_back(1 + random() % std::min<std::size_t>(11, size - axis.begins[i]));
    for (std::size_t t = 0; t < axis.num_taps[i]; ++t)
      axis.weights[i * axis.stride + t] =
          static_cast<std::int32_t>(random() % (1U << bits)) - (1 << (bits - 2));
  }
  return axis;
}

std::vector<std::uint8_t> filtered(const PixelRows& rows, std::size_t row_bytes,
                                   const ResizePasses& passes, ResizeCode code) {
  std::vector<std::uint8_t> out;
  filter_image(rows, passes, code,
               [&](const std::uint8_t* row) { out.insert(out.end(), row, row + row_bytes); });
  return out;
}

}  // namespace

BOOST_AUTO_TEST_CASE(all_codes_give_the_same_bytes) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const auto size = [&] { return static_cast<std::int32_t>(1 + random() % 70); };
    const std::int32_t out_size = size();
    const int bits = round % 2 == 0 ? 22 : 14;
    // Exactly as long as needed: the address sanitizer sees reads behind it.
    const Image image = random_image(random, size(), size());
    const PixelRows rows{image.rgb.data(), image.rgb.data() + image.rgb.size(),
                         static_cast<std::size_t>(image.width) * 3, image.width, image.height};
    const auto num_outputs = static_cast<std::size_t>(out_size);
    const AxisWeights x_axis = random_weights(random, image.width, num_outputs, bits);
    const AxisWeights y_axis = random_weights(random, image.height, num_outputs, bits);
    const auto same = [&](std::size_t row_bytes, const ResizePasses& passes) {
      const std::vector<std::uint8_t> expected =
          filtered(rows, row_bytes, passes, ResizeCode::kScalar);
      return std::ranges::all_of(resize_codes(), [&](ResizeCode code) {
        return filtered(rows, row_bytes, passes, code) == expected;
      });
    };
    BOOST_TEST(same(num_outputs * 3, {x_axis, {}, false}));
    BOOST_TEST(same(rows.bytes_per_row, {{}, y_axis, false}));
    BOOST_TEST(same(num_outputs * 3, {x_axis, y_axis, false}));
    BOOST_TEST(same(num_outputs * 3, {x_axis, y_axis, true}));
  }
}

BOOST_AUTO_TEST_CASE(both_passes_in_one_give_what_one_after_the_other_gives) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    const auto size = [&] { return static_cast<std::int32_t>(1 + random() % 150); };
    const Image image = random_image(random, size(), size());
    const PixelRows rows{image.rgb.data(), image.rgb.data() + image.rgb.size(),
                         static_cast<std::size_t>(image.width) * 3, image.width, image.height};
    const std::int32_t width = size();
    const std::size_t row_bytes = static_cast<std::size_t>(width) * 3;
    const auto height = static_cast<std::size_t>(size());
    const ResizePasses x{random_weights(random, image.width, row_bytes / 3, 14), {}, false};
    const ResizePasses y{{}, random_weights(random, image.height, height, 14), false};
    for (const bool columns_first : {false, true}) {
      const std::vector<std::uint8_t> between =
          filtered(rows, columns_first ? rows.bytes_per_row : row_bytes, columns_first ? y : x,
                   ResizeCode::kScalar);
      const PixelRows next{between.data(), between.data() + between.size(),
                           columns_first ? rows.bytes_per_row : row_bytes,
                           columns_first ? image.width : width,
                           columns_first ? static_cast<std::int32_t>(height) : image.height};
      BOOST_TEST((filtered(rows, row_bytes, {x.x, y.y, columns_first}, resize_codes().back()) ==
                  filtered(next, row_bytes, columns_first ? x : y, ResizeCode::kScalar)));
    }
  }
}

BOOST_AUTO_TEST_CASE(channels_are_taken_apart_without_a_byte_beyond_them) {
  std::mt19937 random(4);
  for (std::size_t num_pixels = 0; num_pixels < 70; ++num_pixels) {
    const Image image = random_image(random, static_cast<std::int32_t>(num_pixels), 1);
    std::array<std::vector<std::uint8_t>, 3> expected;
    for (std::size_t i = 0; i < image.rgb.size(); ++i) expected[i % 3].push_back(image.rgb[i]);
    for (const ResizeCode code : resize_codes()) {
      std::array<std::vector<std::uint8_t>, 3> channels;
      for (auto& channel : channels) channel.assign(num_pixels + 1, 77);
      split_channels(image.rgb.data(), num_pixels,
                     {channels[0].data(), channels[1].data(), channels[2].data()}, code);
      for (std::size_t c = 0; c < 3; ++c) {
        BOOST_TEST(channels[c].back() == 77);
        channels[c].pop_back();
        BOOST_TEST((channels[c] == expected[c]));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_part_is_resized_as_an_image_of_its_own) {
  std::mt19937 random(2);
  const Image image = random_image(random, 50, 40);
  const ImageBox box{7, 3, 40, 40};
  Image part{33, 37, {}};
  for (std::size_t y = 3; y < 40; ++y)
    part.rgb.insert(part.rgb.end(), &image.rgb[(y * 50 + 7) * 3],
                    &image.rgb[(y * 50 + 40) * 3 - 1] + 1);
  for (const ResizeKind kind : {ResizeKind::kTorchvision, ResizeKind::kPillow}) {
    for (int filter = 0; filter <= 5; ++filter) {
      const auto by = static_cast<ResizeFilter>(filter);
      if (!supports_filter(kind, by)) continue;
      for (const auto& [width, height] : {std::pair{20, 90}, {33, 37}, {33, 10}, {60, 37}, {1, 1}})
        BOOST_TEST((resize_image(image, box, width, height, by, kind) ==
                    resize_image(part, width, height, by, kind)));
    }
  }
}

BOOST_AUTO_TEST_CASE(one_color_stays_one_color_at_every_size) {
  for (const auto& [width, height] : {std::pair{1, 1}, {1, 3000}, {3000, 1}, {640, 480}}) {
    Image image{width, height, {}};
    for (std::int64_t i = 0; i < std::int64_t{width} * height; ++i)
      image.rgb.insert(image.rgb.end(), {255, 128, 0});
    for (const ResizeKind kind : {ResizeKind::kTorchvision, ResizeKind::kPillow}) {
      const Image resized = resize_image(image, 224, 224, ResizeFilter::kBilinear, kind);
      BOOST_TEST(resized.rgb.size() == 224U * 224 * 3);
      bool same = true;
      for (std::size_t i = 0; i < resized.rgb.size(); i += 3)
        same &= resized.rgb[i] == 255 && resized.rgb[i + 1] == 128 && resized.rgb[i + 2] == 0;
      BOOST_TEST(same);
    }
  }
}

BOOST_AUTO_TEST_CASE(torchvision_knows_three_filters) {
  BOOST_TEST(supports_filter(ResizeKind::kTorchvision, ResizeFilter::kBicubic));
  BOOST_TEST(!supports_filter(ResizeKind::kTorchvision, ResizeFilter::kLanczos));
  BOOST_TEST(supports_filter(ResizeKind::kPillow, ResizeFilter::kLanczos));
}
