#pragma once
// MultiModalFeature::data: one item for an encoder, an array of float32. All little endian: the
// number of dimensions and each dimension (64 bits), then the values, row major.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace troupe {

/// An array in a feature's data, which it refers to.
struct EncoderInput {
  std::vector<std::int64_t> shape;
  std::span<const float> values;
};

/// Pre: the product of `shape` is the number of values.
[[nodiscard]] inline std::shared_ptr<const std::vector<char>> pack_encoder_input(
    std::span<const std::int64_t> shape, std::span<const float> values) {
  const auto num_dims = static_cast<std::int64_t>(shape.size());
  auto data = std::make_shared<std::vector<char>>(sizeof(num_dims) + shape.size_bytes() +
                                                  values.size_bytes());
  char* out = data->data();
  const auto append = [&out](const void* from, std::size_t num_bytes) {
    if (num_bytes > 0) std::memcpy(out, from, num_bytes);
    out += num_bytes;
  };
  append(&num_dims, sizeof(num_dims));
  append(shape.data(), shape.size_bytes());
  append(values.data(), values.size_bytes());
  return data;
}

/// Nothing: it is not such data.
[[nodiscard]] inline std::optional<EncoderInput> unpack_encoder_input(std::span<const char> data) {
  constexpr std::int64_t kMaxDims = 8;
  std::int64_t num_dims = 0;
  if (data.size() < sizeof(num_dims)) return std::nullopt;
  std::memcpy(&num_dims, data.data(), sizeof(num_dims));
  data = data.subspan(sizeof(num_dims));
  if (num_dims < 0 || num_dims > kMaxDims) return std::nullopt;
  EncoderInput input;
  input.shape.resize(static_cast<std::size_t>(num_dims));
  const std::size_t shape_bytes = input.shape.size() * sizeof(std::int64_t);
  if (data.size() < shape_bytes) return std::nullopt;
  std::memcpy(input.shape.data(), data.data(), shape_bytes);
  data = data.subspan(shape_bytes);
  const auto num_left = static_cast<std::int64_t>(data.size() / sizeof(float));
  std::int64_t count = 1;
  for (const std::int64_t size : input.shape) {
    if (size < 0 || (size > 0 && count > num_left / size)) return std::nullopt;
    count *= size;
  }
  if (static_cast<std::size_t>(count) * sizeof(float) != data.size()) return std::nullopt;
  // The values follow on 64-bit numbers, so they are aligned as the vector's memory is.
  input.values = {reinterpret_cast<const float*>(data.data()), static_cast<std::size_t>(count)};
  return input;
}

}  // namespace troupe
