#pragma once
// MultiModalFeature::data: one item for an encoder, an array of float32. All little endian: the
// number of dimensions and each dimension (64 bits), then the values, row major. Or, a quarter as
// large, with kHasLevels added to the number of dimensions: of each index of the first dimension
// the values of 256 levels (float32), then a level for each value (8 bits). Or where in memory that
// the processes of a host share such an array lies: kIsShared, the three numbers of
// SharedItemAddress (64 bits), the file's name.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "messages/request.hpp"

namespace troupe {

/// The number of an item's placeholder tokens that are embeddings: the rows of its encoder output.
[[nodiscard]] inline std::int32_t num_embeds(const MultiModalFeature& item) {
  if (item.is_embed.empty()) return item.length;
  return static_cast<std::int32_t>(
      std::count_if(item.is_embed.begin(), item.is_embed.end(), [](auto x) { return x != 0; }));
}

/// A view of the array in a feature's data.
struct EncoderInput {
  std::vector<std::int64_t> shape;
  std::span<const float> values;
  std::vector<float> widened;  ///< what `values` refers to, if the data has levels
};

inline constexpr std::int64_t kHasLevels = std::int64_t{1} << 32;
inline constexpr std::size_t kNumLevels = 256;

/// An item in memory that the processes of a host share (SharedItems).
struct SharedItemAddress {
  std::uint64_t segment = 0;   ///< random, distinguishes it from earlier segments of the file
  std::uint64_t position = 0;  ///< in its ring buffer
  std::uint64_t num_bytes = 0;
  std::string file;
  bool operator==(const SharedItemAddress&) const = default;
};
inline constexpr std::int64_t kIsShared = std::int64_t{1} << 33;

[[nodiscard]] inline std::vector<char> pack_shared_item(const SharedItemAddress& address) {
  const std::array<std::uint64_t, 4> numbers = {
      static_cast<std::uint64_t>(kIsShared), address.segment, address.position, address.num_bytes};
  std::vector<char> data(sizeof(numbers));
  std::memcpy(data.data(), numbers.data(), sizeof(numbers));
  data.insert(data.end(), address.file.begin(), address.file.end());
  return data;
}

/// nullopt: the data is of another kind.
[[nodiscard]] inline std::optional<SharedItemAddress> unpack_shared_item(
    std::span<const char> data) {
  std::array<std::uint64_t, 4> numbers{};
  if (data.size() < sizeof(numbers)) return std::nullopt;
  std::memcpy(numbers.data(), data.data(), sizeof(numbers));
  if (numbers[0] != static_cast<std::uint64_t>(kIsShared)) return std::nullopt;
  data = data.subspan(sizeof(numbers));
  return SharedItemAddress{numbers[1], numbers[2], numbers[3], {data.begin(), data.end()}};
}

namespace internal {
[[nodiscard]] inline std::shared_ptr<const std::vector<char>> pack_array(
    std::int64_t num_dims, std::span<const std::int64_t> shape, std::span<const float> values,
    std::span<const std::uint8_t> levels) {
  auto data = std::make_shared<std::vector<char>>(sizeof(num_dims) + shape.size_bytes() +
                                                  values.size_bytes() + levels.size_bytes());
  char* out = data->data();
  const auto append = [&out](const void* from, std::size_t num_bytes) {
    if (num_bytes > 0) std::memcpy(out, from, num_bytes);
    out += num_bytes;
  };
  append(&num_dims, sizeof(num_dims));
  append(shape.data(), shape.size_bytes());
  append(values.data(), values.size_bytes());
  append(levels.data(), levels.size_bytes());
  return data;
}
}  // namespace internal

/// Pre: the product of `shape` is the number of values.
[[nodiscard]] inline std::shared_ptr<const std::vector<char>> pack_encoder_input(
    std::span<const std::int64_t> shape, std::span<const float> values) {
  return internal::pack_array(static_cast<std::int64_t>(shape.size()), shape, values, {});
}

/// level_values: [shape[0], kNumLevels]. Pre: the product of `shape` is the number of levels.
[[nodiscard]] inline std::shared_ptr<const std::vector<char>> pack_encoder_levels(
    std::span<const std::int64_t> shape, std::span<const float> level_values,
    std::span<const std::uint8_t> levels) {
  return internal::pack_array(kHasLevels + static_cast<std::int64_t>(shape.size()), shape,
                              level_values, levels);
}

/// nullopt: the data is of another kind.
[[nodiscard]] inline std::optional<EncoderInput> unpack_encoder_input(std::span<const char> data) {
  constexpr std::int64_t kMaxDims = 8;
  std::int64_t num_dims = 0;
  if (data.size() < sizeof(num_dims)) return std::nullopt;
  std::memcpy(&num_dims, data.data(), sizeof(num_dims));
  data = data.subspan(sizeof(num_dims));
  const bool has_levels = num_dims >= kHasLevels;
  if (has_levels) num_dims -= kHasLevels;
  if (num_dims < 0 || num_dims > kMaxDims) return std::nullopt;
  EncoderInput input;
  input.shape.resize(static_cast<std::size_t>(num_dims));
  const std::size_t shape_bytes = input.shape.size() * sizeof(std::int64_t);
  if (data.size() < shape_bytes) return std::nullopt;
  if (shape_bytes > 0) std::memcpy(input.shape.data(), data.data(), shape_bytes);
  data = data.subspan(shape_bytes);
  const std::size_t value_bytes = has_levels ? sizeof(std::uint8_t) : sizeof(float);
  const auto num_left = static_cast<std::int64_t>(data.size() / value_bytes);
  std::int64_t count = 1;
  for (const std::int64_t size : input.shape) {
    if (size < 0 || (size > 0 && count > num_left / size)) return std::nullopt;
    count *= size;
  }
  const auto num_values = static_cast<std::size_t>(count);
  // What follows on 64-bit numbers is aligned as the vector's memory is.
  const auto* const floats = reinterpret_cast<const float*>(data.data());
  if (!has_levels) {
    if (num_values * sizeof(float) != data.size()) return std::nullopt;
    input.values = {floats, num_values};
    return input;
  }
  if (input.shape.empty() || num_values == 0) return std::nullopt;
  const auto num_rows = static_cast<std::size_t>(input.shape.front());
  const std::size_t table_bytes = num_rows * kNumLevels * sizeof(float);
  if (table_bytes + num_values != data.size()) return std::nullopt;
  const auto* level = reinterpret_cast<const std::uint8_t*>(data.data() + table_bytes);
  input.widened.reserve(num_values);
  for (std::size_t row = 0; row < num_rows; ++row)
    for (std::size_t i = 0; i < num_values / num_rows; ++i)
      input.widened.push_back(floats[row * kNumLevels + *level++]);
  input.values = input.widened;
  return input;
}

}  // namespace troupe
