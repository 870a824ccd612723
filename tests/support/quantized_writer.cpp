#include "tests/support/quantized_writer.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/half_floats.hpp"
#include "runtime/models/quantize.hpp"
#include "runtime/models/safetensors.hpp"
#include "tests/support/gguf_writer.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kFp8BlockSize = 32;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// To the nearest number that the type has.
float round_to(const std::string& type, float value) {
  if (type == "F32") return value;
  if (type == "F16") return round_to_f16(value);
  const float split = value * 0x1.0001p16f;  // Veltkamp: leaves the upper 8 bits of 24
  return split - (split - value);
}

float f8_number(int byte) {
  const int exponent = byte >> 3 & 15;
  const double size = exponent == 0 ? (byte & 7) * std::pow(2.0, -9)
                                    : (8 + (byte & 7)) * std::pow(2.0, exponent - 10);
  return static_cast<float>((byte & 128) != 0 ? -size : size);
}

int nearest_f8(float value) {
  const float size = std::fabs(value);
  int best = 0;
  for (int low = 0, high = 126; low <= high;) {  // numbers rise with their bytes
    const int middle = (low + high) / 2;
    if (std::fabs(f8_number(middle) - size) < std::fabs(f8_number(best) - size)) best = middle;
    if (f8_number(middle) < size)
      low = middle + 1;
    else
      high = middle - 1;
  }
  return value < 0 ? best + 128 : best;
}

bool is_fp8(QuantizedFormat format) { return format >= QuantizedFormat::kFloat8; }
bool has_blocks(QuantizedFormat format) {
  return format == QuantizedFormat::kFp8Block || format == QuantizedFormat::kFloat8Block;
}
bool has_one_scale(QuantizedFormat format) {
  return format == QuantizedFormat::kFp8Tensor || format == QuantizedFormat::kFloat8Tensor;
}

/// Words of 32 bits from fields, fields[i] in place i % n of word i / n.
std::vector<std::uint32_t> words_of(const std::vector<int>& fields, int bits) {
  const auto per_word = static_cast<std::size_t>(32 / bits);
  std::vector<std::uint32_t> words((fields.size() + per_word - 1) / per_word);
  for (std::size_t i = 0; i < fields.size(); ++i)
    words[i / per_word] |= static_cast<std::uint32_t>(fields[i])
                           << (i % per_word * static_cast<std::size_t>(bits));
  return words;
}

/// AutoAWQ: place i of a word holds column order[i] of eight.
std::vector<int> in_awq_order(const std::vector<int>& fields) {
  constexpr std::array<std::size_t, 8> kOrder = {0, 2, 4, 6, 1, 3, 5, 7};
  std::vector<int> ordered;
  for (std::size_t i = 0; i < fields.size(); i += 8)
    for (const std::size_t place : kOrder) ordered.push_back(fields.at(i + place));
  return ordered;
}

void append(std::vector<std::uint32_t>& to, const std::vector<std::uint32_t>& words) {
  to.insert(to.end(), words.begin(), words.end());
}

json read_json(const fs::path& path) { return json::parse(read_file(path).value()); }

}  // namespace

void SafetensorsWriter::add(const std::string& name, const std::string& dtype,
                            std::vector<std::int64_t> shape, std::string bytes) {
  tensors_[name] = {dtype, std::move(shape), std::move(bytes)};
}

void SafetensorsWriter::add_floats(const std::string& name, std::vector<std::int64_t> shape,
                                   std::span<const float> values) {
  add(name, "F32", std::move(shape),
      {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

std::string SafetensorsWriter::bytes() const {
  // Wide elements first, so that all lie aligned.
  json header = json::object();
  std::string data;
  for (const std::string digits : {"64", "32", "16", "8", ""}) {
    for (const auto& [name, tensor] : tensors_) {
      if (header.contains(name) || tensor.dtype.find(digits) == std::string::npos) continue;
      header[name] = {{"dtype", tensor.dtype},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
}

QuantizedNumbers::QuantizedNumbers(std::span<const float> weights, std::int64_t rows,
                                   std::int64_t cols, const QuantizedOptions& chosen)
    : options(chosen), num_rows(rows), num_cols(cols) {
  const bool is_f8 = is_fp8(options.format);
  std::int64_t size = options.group_size == 0 ? cols : options.group_size;
  if (is_f8) size = has_blocks(options.format) ? kFp8BlockSize : cols;
  num_groups = (cols + size - 1) / size;
  for (std::int64_t col = 0; col < cols; ++col)
    group_of_col.push_back(options.act_order ? col % num_groups : col / size);
  numbers.resize(weights.size());
  const std::int64_t block_rows = has_blocks(options.format)      ? kFp8BlockSize
                                  : has_one_scale(options.format) ? rows
                                                                  : 1;
  const int highest = (1 << options.bits) - 1;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t g = 0; g < num_groups; ++g) {
      float least = 0;
      float most = 0;
      for (std::int64_t r = row / block_rows * block_rows;
           r < std::min(rows, (row / block_rows + 1) * block_rows); ++r)
        for (std::int64_t col = 0; col < cols; ++col) {
          if (group_of_col[static_cast<std::size_t>(col)] != g) continue;
          least = std::min(least, weights[static_cast<std::size_t>(r * cols + col)]);
          most = std::max(most, weights[static_cast<std::size_t>(r * cols + col)]);
        }
      const float largest = std::max(-least, most);
      const float range = options.symmetric ? 2 * largest : most - least;
      float scale = range / static_cast<float>(highest);
      if (is_f8) scale = largest / 448;
      scale = round_to(options.scale_type, scale);
      int zero = is_f8 ? 0 : (highest + 1) / 2;
      if (!options.symmetric && scale > 0)
        zero = std::clamp(static_cast<int>(std::lround(-least / scale)), 1, highest);
      scales.push_back(scale);
      zero_points.push_back(zero);
    }
    for (std::int64_t col = 0; col < cols; ++col) {
      const auto at = static_cast<std::size_t>(row * cols + col);
      const float scale = scales[group(row, col)];
      const float number = scale > 0 ? weights[at] / scale : 0;
      numbers[at] =
          is_f8 ? nearest_f8(number)
                : std::clamp(static_cast<int>(std::lround(number)) + zero_points[group(row, col)],
                             0, highest);
    }
  }
}

std::size_t QuantizedNumbers::group(std::int64_t row, std::int64_t col) const {
  return static_cast<std::size_t>(row * num_groups + group_of_col[static_cast<std::size_t>(col)]);
}

float QuantizedNumbers::weight(std::int64_t row, std::int64_t col) const {
  const int number = numbers[static_cast<std::size_t>(row * num_cols + col)];
  const float scale = scales[group(row, col)];
  if (is_fp8(options.format)) return scale * f8_number(number);
  return scale * static_cast<float>(number - zero_points[group(row, col)]);
}

void QuantizedNumbers::write(SafetensorsWriter& writer, const std::string& name) const {
  const int bits = options.bits;
  const std::int64_t per_word = 32 / bits;
  const auto number = [&](std::int64_t row, std::int64_t col) {
    return numbers[static_cast<std::size_t>(row * num_cols + col)];
  };
  const auto scale_bytes = [&](bool groups_first) {
    std::string bytes;
    for (std::int64_t i = 0; i < num_rows * num_groups; ++i) {
      const std::int64_t from = groups_first ? i % num_rows * num_groups + i / num_rows : i;
      const float scale = scales[static_cast<std::size_t>(from)];
      const auto bits = std::bit_cast<std::uint32_t>(scale);
      if (options.scale_type == "F32")
        bytes += bytes_of(std::vector{scale});
      else
        bytes += bytes_of(std::vector{options.scale_type == "F16"
                                          ? narrow_to_f16(scale)
                                          : static_cast<std::uint16_t>(bits >> 16)});
    }
    return bytes;
  };
  const std::string order =
      bytes_of(std::vector<std::int32_t>(group_of_col.begin(), group_of_col.end()));
  /// Of one group, all rows.
  const auto zeros_of = [&](std::int64_t g, int offset) {
    std::vector<int> zeros;
    for (std::int64_t row = 0; row < num_rows; ++row)
      zeros.push_back(zero_points[static_cast<std::size_t>(row * num_groups + g)] - offset);
    return zeros;
  };
  std::vector<std::uint32_t> words;
  std::vector<std::uint32_t> zero_words;
  switch (options.format) {
    case QuantizedFormat::kGptq:
    case QuantizedFormat::kGptqV2: {
      for (std::int64_t col = 0; col < num_cols; col += per_word) {
        for (std::int64_t row = 0; row < num_rows; ++row) {
          std::vector<int> fields;
          for (std::int64_t k = col; k < std::min(num_cols, col + per_word); ++k)
            fields.push_back(number(row, k));
          append(words, words_of(fields, bits));
        }
      }
      const int offset = options.format == QuantizedFormat::kGptq ? 1 : 0;
      for (std::int64_t g = 0; g < num_groups; ++g)
        append(zero_words, words_of(zeros_of(g, offset), bits));
      writer.add(name + ".qweight", "I32", {(num_cols + per_word - 1) / per_word, num_rows},
                 bytes_of(words));
      if (options.has_zero_points)
        writer.add(name + ".qzeros", "I32", {num_groups, (num_rows + per_word - 1) / per_word},
                   bytes_of(zero_words));
      writer.add(name + ".scales", options.scale_type, {num_groups, num_rows}, scale_bytes(true));
      if (options.has_group_index) writer.add(name + ".g_idx", "I32", {num_cols}, order);
      return;
    }
    case QuantizedFormat::kAwq: {
      for (std::int64_t col = 0; col < num_cols; ++col) {
        std::vector<int> fields;
        for (std::int64_t row = 0; row < num_rows; ++row) fields.push_back(number(row, col));
        append(words, words_of(in_awq_order(fields), bits));
      }
      for (std::int64_t g = 0; g < num_groups; ++g)
        append(zero_words, words_of(in_awq_order(zeros_of(g, 0)), bits));
      writer.add(name + ".qweight", "I32", {num_cols, num_rows / 8}, bytes_of(words));
      writer.add(name + ".qzeros", "I32", {num_groups, num_rows / 8}, bytes_of(zero_words));
      writer.add(name + ".scales", options.scale_type, {num_groups, num_rows}, scale_bytes(true));
      return;
    }
    case QuantizedFormat::kPacked: {
      for (std::int64_t row = 0; row < num_rows; ++row) {
        const auto begin = numbers.begin() + row * num_cols;
        append(words, words_of({begin, begin + num_cols}, bits));
      }
      const std::int64_t zero_rows = (num_rows + per_word - 1) / per_word;
      zero_words.resize(static_cast<std::size_t>(zero_rows * num_groups));
      for (std::int64_t g = 0; g < num_groups; ++g) {
        const std::vector<std::uint32_t> column = words_of(zeros_of(g, 0), bits);
        for (std::size_t i = 0; i < column.size(); ++i)
          zero_words[i * static_cast<std::size_t>(num_groups) + static_cast<std::size_t>(g)] =
              column[i];
      }
      writer.add(name + ".weight_packed", "I32", {num_rows, (num_cols + per_word - 1) / per_word},
                 bytes_of(words));
      writer.add(name + ".weight_scale", options.scale_type, {num_rows, num_groups},
                 scale_bytes(false));
      if (options.has_group_index) writer.add(name + ".weight_g_idx", "I32", {num_cols}, order);
      writer.add(name + ".weight_shape", "I64", {2},
                 bytes_of(std::vector<std::int64_t>{num_rows, num_cols}));
      if (!options.symmetric)
        writer.add(name + ".weight_zero_point", "I32", {zero_rows, num_groups},
                   bytes_of(zero_words));
      return;
    }
    case QuantizedFormat::kInt8: {
      std::vector<std::int8_t> values;
      for (const int value : numbers) values.push_back(static_cast<std::int8_t>(value - 128));
      std::vector<std::int8_t> zeros;
      for (const int zero : zero_points) zeros.push_back(static_cast<std::int8_t>(zero - 128));
      writer.add(name + ".weight", "I8", {num_rows, num_cols}, bytes_of(values));
      writer.add_floats(name + ".weight_scale", {num_rows, num_groups}, scales);
      if (!options.symmetric)
        writer.add(name + ".weight_zero_point", "I8", {num_rows, num_groups}, bytes_of(zeros));
      return;
    }
    case QuantizedFormat::kFloat8:
    case QuantizedFormat::kFp8Block:
    case QuantizedFormat::kFp8Tensor:
    case QuantizedFormat::kFloat8Tensor:
    case QuantizedFormat::kFloat8Block: {
      std::vector<std::uint8_t> values;
      for (const int value : numbers) values.push_back(static_cast<std::uint8_t>(value));
      writer.add(name + ".weight", "F8_E4M3", {num_rows, num_cols}, bytes_of(values));
      if (options.format == QuantizedFormat::kFloat8)
        return writer.add_floats(name + ".weight_scale", {num_rows, 1}, scales);
      if (options.format == QuantizedFormat::kFloat8Tensor)
        return writer.add_floats(name + ".weight_scale", {1}, std::span(scales).first(1));
      if (options.format == QuantizedFormat::kFp8Tensor) {
        writer.add_floats(name + ".weight_scale", {}, std::span(scales).first(1));
        return writer.add_floats(name + ".input_scale", {}, std::array{0.5f});
      }
      std::vector<float> blocks;
      for (std::int64_t row = 0; row < num_rows; row += kFp8BlockSize)
        for (std::int64_t g = 0; g < num_groups; ++g)
          blocks.push_back(scales[static_cast<std::size_t>(row * num_groups + g)]);
      const bool is_inverse = options.format == QuantizedFormat::kFp8Block;
      writer.add_floats(name + (is_inverse ? ".weight_scale_inv" : ".weight_scale"),
                        {(num_rows + kFp8BlockSize - 1) / kFp8BlockSize, num_groups}, blocks);
      return;
    }
  }
}

std::string quantization_config(const QuantizedOptions& options) {
  const std::int64_t group_size = options.group_size == 0 ? -1 : options.group_size;
  json weights = {{"num_bits", options.bits},
                  {"type", is_fp8(options.format) ? "float" : "int"},
                  {"symmetric", options.symmetric},
                  {"strategy", group_size == -1 ? "channel" : "group"},
                  {"group_size", group_size == -1 ? json() : json(group_size)}};
  if (has_one_scale(options.format)) weights["strategy"] = "tensor";
  if (has_blocks(options.format)) {
    weights["strategy"] = "block";
    weights["block_structure"] = {kFp8BlockSize, kFp8BlockSize};
  }
  const auto compressed = [&](const char* format) {
    return json{{"quant_method", "compressed-tensors"},
                {"format", format},
                {"ignore", {"lm_head"}},
                {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}}
        .dump();
  };
  switch (options.format) {
    case QuantizedFormat::kGptq:
    case QuantizedFormat::kGptqV2:
      return json{
          {"quant_method", "gptq"},
          {"bits", options.bits},
          {"group_size", group_size},
          {"sym", options.symmetric},
          {"desc_act", options.act_order},
          {"checkpoint_format", options.format == QuantizedFormat::kGptq ? "gptq" : "gptq_v2"}}
          .dump();
    case QuantizedFormat::kAwq:
      return json{{"quant_method", "awq"},    {"bits", options.bits},
                  {"group_size", group_size}, {"zero_point", true},
                  {"version", "gemm"},        {"modules_to_not_convert", nullptr}}
          .dump();
    case QuantizedFormat::kPacked:
      return compressed("pack-quantized");
    case QuantizedFormat::kInt8:
      return compressed("int-quantized");
    case QuantizedFormat::kFloat8:
    case QuantizedFormat::kFloat8Tensor:
    case QuantizedFormat::kFloat8Block:
      return compressed("float-quantized");
    case QuantizedFormat::kFp8Tensor:
      return json{{"quant_method", "fp8"}, {"activation_scheme", "static"}}.dump();
    case QuantizedFormat::kFp8Block:
      return json{{"quant_method", "fp8"}, {"weight_block_size", {kFp8BlockSize, kFp8BlockSize}}}
          .dump();
  }
  return {};
}

void write_quantized_model(const fs::path& model, const QuantizedOptions& options,
                           const fs::path& quantized, const fs::path& widened) {
  for (const fs::path& folder : {quantized, widened}) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    for (const auto& entry : fs::directory_iterator(model))
      if (entry.path().extension() == ".json" &&
          !entry.path().filename().string().ends_with(".index.json"))
        fs::copy(entry.path(), folder / entry.path().filename());
  }
  json config = read_json(model / "config.json");
  config["quantization_config"] = json::parse(quantization_config(options));
  std::ofstream(quantized / "config.json") << config;

  const Checkpoint checkpoint = Checkpoint::open(model).value();
  SafetensorsWriter to_quantized;
  SafetensorsWriter to_widened;
  const bool with_head = options.act_order || is_fp8(options.format);
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const std::vector<std::int64_t>& shape = tensor.view.shape;
    const std::int64_t num_rows = shape.size() == 2 ? shape[0] : 1;
    const std::int64_t num_cols = shape.back();
    std::vector<float> values(static_cast<std::size_t>(num_rows * num_cols));
    for (std::int64_t row = 0; row < num_rows; ++row)
      widen_row(tensor.view, row, 0, num_cols, values.data() + row * num_cols);
    const bool is_head = name.starts_with("lm_head.");
    if (name.find("_proj.weight") == std::string::npos && !(is_head && with_head)) {
      to_quantized.add_floats(name, shape, values);
      to_widened.add_floats(name, shape, values);
      continue;
    }
    const QuantizedNumbers numbers(values, num_rows, num_cols, options);
    numbers.write(to_quantized, name.substr(0, name.size() - std::string(".weight").size()));
    for (std::int64_t row = 0; row < num_rows; ++row)
      for (std::int64_t col = 0; col < num_cols; ++col)
        values[static_cast<std::size_t>(row * num_cols + col)] = numbers.weight(row, col);
    to_widened.add_floats(name, shape, values);
  }
  std::ofstream(quantized / "model.safetensors", std::ios::binary) << to_quantized.bytes();
  std::ofstream(widened / "model.safetensors", std::ios::binary) << to_widened.bytes();
}

}  // namespace troupe
