// Checkpoints of quantisation tools: what is packed of them, number by number, and whole models
// against the same weights in f32.
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>

#include "runtime/base/file.hpp"
#include "runtime/models/load_model.hpp"
#include "runtime/models/weight_loader.hpp"
#include "runtime/worker/model_runner.hpp"
#include "tests/support/gguf_writer.hpp"
#include "tests/support/quantized_writer.hpp"
#include "tests/support/replay_models_driver.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = TROUPE_GOLDEN_DIR "/models/models/llama";

/// A folder for the files of one test.
class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(fs::temp_directory_path() / ("quantized-test-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string text(const QuantizedOptions& options) {
  return "format " + std::to_string(static_cast<int>(options.format)) + ", " +
         std::to_string(options.bits) + " bits, groups of " + std::to_string(options.group_size) +
         (options.symmetric ? "" : ", asymmetric") + (options.act_order ? ", act-order" : "") +
         ", scales in " + options.scale_type;
}

/// Those whose integers are kept.
std::vector<QuantizedOptions> kept_formats() {
  using enum QuantizedFormat;
  return {{kGptq, 4, 32, true},     {kGptq, 4, 128, false},  {kGptq, 8, 32, false},
          {kGptq, 4, 0, true},      {kGptqV2, 4, 64, false}, {kGptqV2, 8, 0, false},
          {kAwq, 4, 32, false},     {kAwq, 4, 128, false},   {kPacked, 4, 32, true},
          {kPacked, 4, 128, false}, {kPacked, 8, 0, false},  {kPacked, 4, 0, true},
          {kInt8, 8, 0, true},      {kInt8, 8, 0, false},    {kInt8, 8, 64, true}};
}
/// Further ones of single matrices.
std::vector<QuantizedOptions> other_kept_formats() {
  using enum QuantizedFormat;
  return {
      {kGptq, 4, 16, false},
      {kAwq, 4, 256, false},
      {kPacked, 4, 96, false},
      {kInt8, 8, 16, false},
      {.format = kGptq, .has_group_index = false},
      {.format = kGptq, .has_zero_points = false},
      {.format = kPacked, .has_group_index = false},
      {.format = kGptq, .symmetric = false, .scale_type = "BF16"},
      {.format = kPacked, .bits = 8, .group_size = 128, .scale_type = "BF16"},
      {.format = kAwq, .symmetric = false, .scale_type = "F32"},
  };
}
/// The requantised ones.
std::vector<QuantizedOptions> requantised_formats() {
  using enum QuantizedFormat;
  return {{kFloat8, 8, 0, true}, {kFp8Block, 8, 0, true}, {kGptq, 4, 32, false, true}};
}

std::vector<float> random_weights(std::int64_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.004f, 0.02f);
  std::vector<float> weights(static_cast<std::size_t>(count));
  for (float& weight : weights) weight = normal(random);
  return weights;
}

QuantizationConfig parsed(const QuantizedOptions& options) {
  const std::string llama = read_file(kModel / "config.json").value();
  const std::string with = "{\"quantization_config\":" + quantization_config(options) + "," +
                           llama.substr(llama.find('{') + 1);
  return parse_model_config(with).value().quantization;
}

BOOST_AUTO_TEST_CASE(the_numbers_of_a_checkpoint_are_packed_as_they_are) {
  const TemporaryFolder temporary;
  const auto device = Device::create({.name = "cpu", .num_threads = 2}).value();
  const OpTable& ops = device->ops();
  constexpr std::int64_t kRows = 40;
  constexpr std::int64_t kCols = 256;
  const std::vector<float> weights = random_weights(kRows * kCols);
  std::vector<QuantizedOptions> formats = kept_formats();
  std::ranges::copy(other_kept_formats(), std::back_inserter(formats));
  for (const QuantizedOptions& options : formats) {
    const QuantizedNumbers numbers(weights, kRows, kCols, options);
    SafetensorsWriter writer;
    numbers.write(writer, "m");
    std::ofstream(temporary.path() / "model.safetensors", std::ios::binary) << writer.bytes();
    const Checkpoint checkpoint = Checkpoint::open(temporary.path()).value();
    struct Case {
      Slice rows;
      Slice cols;
      std::int32_t k_shards;
    };
    for (const auto& [rows, cols, k_shards] : {Case{{0, kRows}, {0, kCols}, 1},
                                               {{0, kRows}, {0, kCols}, 4},
                                               {{13, 21}, {0, kCols}, 1},
                                               {{0, kRows}, {128, 128}, 2},
                                               {{0, kRows}, {192, 64}, 1}}) {
      WeightLoader loader(checkpoint, *device, {}, parsed(options), {}, {});
      const PackedMatrix packed = loader.matrix({{"m", kRows, rows}}, kCols, cols, k_shards);
      const auto finished = loader.finish();
      BOOST_REQUIRE_MESSAGE(finished.ok(), text(options) << ": " << finished.error().message);
      const WeightSpec& spec = packed.spec;
      BOOST_TEST((spec.quantized == QuantizedType::kInt4) ==
                     (options.bits == 4 && options.group_size % 32 == 0),
                 text(options));
      BOOST_TEST(spec.has_minimums == !options.symmetric, text(options));
      BOOST_REQUIRE(spec.group_size <= 128);
      BOOST_REQUIRE(spec.group_size >= 16);

      const int half = 1 << (options.bits - 1);
      std::vector<std::int8_t> values;
      std::vector<float> scales;
      std::vector<float> minimums;
      const std::int64_t depth = cols.count / k_shards;
      for (std::int64_t row = rows.begin; row < rows.end(); ++row) {
        for (std::int64_t col = cols.begin; col < cols.end(); ++col)
          values.push_back(static_cast<std::int8_t>(
              numbers.numbers[static_cast<std::size_t>(row * kCols + col)] - half));
        for (std::int64_t shard = cols.begin; shard < cols.end(); shard += depth)
          for (std::int64_t col = shard; col < shard + depth; col += spec.group_size) {
            const std::size_t group = numbers.group(row, col);
            scales.push_back(numbers.scales[group]);
            minimums.push_back(numbers.scales[group] *
                               static_cast<float>(half - numbers.zero_points[group]));
          }
      }
      std::vector<std::byte> expected(packed.bytes().size());
      ops.pack_quantized_rows(spec, {values.data(), scales.data(), minimums.data(), rows.count}, 0,
                              expected.data());
      BOOST_TEST(std::memcmp(expected.data(), packed.bytes().data(), expected.size()) == 0,
                 text(options) << ", rows " << rows.begin << ", columns " << cols.begin
                               << ", shards " << k_shards);
    }
  }
}

/// The matrices m0, m1, ... of these formats (none: wide) under each other, as one; or, not
/// `stored`, of the weights that they mean, quantised at load if all formats are. factor: of all
/// weights.
PackedMatrix mixed_matrix(Device& device, const fs::path& folder,
                          const std::vector<std::optional<QuantizedOptions>>& formats, bool stored,
                          float factor = 1) {
  constexpr std::int64_t kRows = 24;
  constexpr std::int64_t kCols = 256;
  std::vector<float> weights = random_weights(kRows * kCols);
  for (float& weight : weights) weight *= factor;
  SafetensorsWriter writer;
  std::vector<WeightLoader::Part> parts;
  QuantizationConfig config;
  for (const auto& options : formats) {
    const std::string name = "m" + std::to_string(parts.size());
    parts.push_back({name, kRows, {0, kRows}});
    std::vector<float> widened = weights;
    if (options) {
      const QuantizedNumbers numbers(weights, kRows, kCols, *options);
      for (std::int64_t i = 0; i < kRows * kCols; ++i)
        widened[static_cast<std::size_t>(i)] = numbers.weight(i / kCols, i % kCols);
      if (stored) {
        numbers.write(writer, name);
        config = parsed(*options);
        continue;
      }
    }
    writer.add_floats(name + ".weight", {kRows, kCols}, widened);
  }
  std::ofstream(folder / "model.safetensors", std::ios::binary) << writer.bytes();
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  const bool has_wide = !std::ranges::all_of(formats, [](const auto& f) { return f.has_value(); });
  WeightLoader loader(
      checkpoint, device,
      {.quantized = stored || has_wide ? QuantizedType::kNone : QuantizedType::kInt8}, config, {},
      {});
  PackedMatrix packed = loader.matrix(parts, kCols, {0, kCols}, 1);
  const auto finished = loader.finish();
  BOOST_REQUIRE_MESSAGE(finished.ok(), finished.error().message);
  return packed;
}

BOOST_AUTO_TEST_CASE(parts_of_one_matrix_that_share_no_groups_are_quantised_anew_or_widened) {
  using enum QuantizedFormat;
  const TemporaryFolder temporary;
  const auto device = Device::create({.name = "cpu", .num_threads = 2}).value();
  using Formats = std::vector<std::optional<QuantizedOptions>>;
  const QuantizedOptions act_order{kGptq, 4, 32, true, true};
  const QuantizedOptions fp8{kFloat8, 8, 0};
  for (const Formats& formats :
       {Formats{act_order, QuantizedOptions{kGptq, 4, 32}, QuantizedOptions{kGptq, 4, 32}},
        {QuantizedOptions{kGptq, 4, 128, false}, act_order},
        {QuantizedOptions{kPacked, 4, 128, false}, fp8},
        {fp8, QuantizedOptions{kPacked, 4, 32}, QuantizedOptions{kInt8, 8, 0, false}},
        {std::nullopt, QuantizedOptions{kPacked, 4, 32, false}},
        {QuantizedOptions{kPacked, 4, 32}, std::nullopt, fp8},
        {QuantizedOptions{kPacked, 4, 32, false, true}},
        {QuantizedOptions{kFp8Tensor, 8, 0}, QuantizedOptions{kFp8Tensor, 8, 0}},
        {QuantizedOptions{kFloat8Tensor, 8, 0}},
        {QuantizedOptions{kFloat8Block, 8, 0}}}) {
    std::string what;
    for (const auto& options : formats) what += (options ? text(*options) : "wide") + "; ";
    const PackedMatrix found = mixed_matrix(*device, temporary.path(), formats, true);
    const PackedMatrix expected = mixed_matrix(*device, temporary.path(), formats, false);
    BOOST_TEST((found.spec.quantized == expected.spec.quantized), what);
    BOOST_TEST(std::ranges::equal(found.bytes(), expected.bytes()), what);
  }
}

BOOST_AUTO_TEST_CASE(groups_whose_scales_f16_would_cut_are_quantised_anew) {
  using enum QuantizedFormat;
  const TemporaryFolder temporary;
  const auto device = Device::create({.name = "cpu", .num_threads = 1}).value();
  for (const std::string type : {"F16", "BF16", "F32"}) {
    for (const QuantizedFormat format : {kGptq, kAwq, kPacked}) {
      const QuantizedOptions options{.format = format, .symmetric = false, .scale_type = type};
      constexpr float kFactor = 1e-4f;  // 4-bit scales of about 1e-6
      const auto load = [&](bool stored) {
        return mixed_matrix(*device, temporary.path(), {options}, stored, kFactor);
      };
      const PackedMatrix found = load(true);
      if (type == "F16") {
        BOOST_TEST((found.spec.quantized == QuantizedType::kInt4), text(options));
      } else {
        BOOST_TEST(std::ranges::equal(found.bytes(), load(false).bytes()), text(options));
      }
    }
  }
  // The scales fit, the minimums do not.
  const QuantizedOptions large{
      .format = kPacked, .bits = 8, .symmetric = false, .scale_type = "F32"};
  constexpr float kFactor = 3e6f;
  const PackedMatrix found = mixed_matrix(*device, temporary.path(), {large}, true, kFactor);
  BOOST_TEST(!found.spec.has_minimums);
  BOOST_TEST(std::ranges::equal(
      found.bytes(), mixed_matrix(*device, temporary.path(), {large}, false, kFactor).bytes()));
}

std::vector<DriverResult> results(const fs::path& model, const std::string& quantization = "auto") {
  return drive_greedily({.folder = model.string(), .quantization = quantization});
}

BOOST_AUTO_TEST_CASE(models_in_8_or_4_bits_are_near_the_same_weights_in_f32) {
  const TemporaryFolder temporary;
  const fs::path quantized = temporary.path() / "quantized";
  const fs::path widened = temporary.path() / "widened";
  for (const QuantizedOptions& options : kept_formats()) {
    write_quantized_model(kModel, options, quantized, widened);
    const auto found = results(quantized);
    const auto expected = results(widened);
    double worst = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::vector<float>& row = found[i].prompt_logprobs.logprobs;
      BOOST_REQUIRE(row.size() == expected[i].prompt_logprobs.logprobs.size());
      for (std::size_t k = 0; k < row.size(); ++k)
        worst = std::max(worst, static_cast<double>(
                                    std::fabs(row[k] - expected[i].prompt_logprobs.logprobs[k])));
    }
    BOOST_TEST_MESSAGE(text(options) << ": " << worst);
    BOOST_TEST(worst < 0.3, text(options) << ": " << worst);
    BOOST_TEST(worst > 0.0, text(options));
  }
}

BOOST_AUTO_TEST_CASE(fp8_and_act_order_are_what_quantising_the_same_weights_at_load_gives) {
  const TemporaryFolder temporary;
  const fs::path quantized = temporary.path() / "quantized";
  const fs::path widened = temporary.path() / "widened";
  for (const QuantizedOptions& options : requantised_formats()) {
    write_quantized_model(kModel, options, quantized, widened);
    BOOST_TEST((results(quantized) == results(widened, "int8")), text(options));
  }
}

std::string load_error(const fs::path& model, const std::string& quantization = "auto") {
  const auto device = Device::create({.name = "cpu", .num_threads = 1}).value();
  const auto loaded = load_model(model, *device, {.quantization = quantization}, {});
  return loaded.ok() ? "" : loaded.error().message;
}

BOOST_AUTO_TEST_CASE(the_option_must_not_contradict_the_checkpoint) {
  const TemporaryFolder temporary;
  const fs::path quantized = temporary.path() / "quantized";
  write_quantized_model(kModel, {.format = QuantizedFormat::kAwq}, quantized,
                        temporary.path() / "widened");
  BOOST_TEST(load_error(quantized, "awq") == "");
  BOOST_TEST(load_error(quantized, "awq_marlin") == "");
  BOOST_TEST(load_error(quantized, "gptq_marlin") ==
             "quantization is gptq_marlin, but the checkpoint is awq already");
  BOOST_TEST(load_error(quantized, "gguf") ==
             "quantization is gguf, but the checkpoint is awq already");
  BOOST_TEST(load_error(kModel, "gguf") ==
             "quantization is gguf, but the checkpoint is not quantised so");
  const fs::path gguf = temporary.path() / "model.gguf";
  std::ofstream(gguf, std::ios::binary) << gguf_of_model(kModel, GgmlType::kQ8_0);
  BOOST_TEST(load_error(gguf, "gguf") == "");
  BOOST_TEST(load_error(quantized, "int8") ==
             "quantization is int8, but the checkpoint is awq already");
  BOOST_TEST(load_error(quantized, "gptq") ==
             "quantization is gptq, but the checkpoint is awq already");
  BOOST_TEST(load_error(kModel, "awq") ==
             "quantization is awq, but the checkpoint is not quantised so");
}

BOOST_AUTO_TEST_CASE(a_draft_model_is_quantised_as_its_own_option_says) {
  const TemporaryFolder temporary;
  const fs::path quantized = temporary.path() / "quantized";
  write_quantized_model(kModel, {.format = QuantizedFormat::kAwq}, quantized,
                        temporary.path() / "widened");
  WorkerOptions options;
  options.model = kModel.string();
  options.quantization = "int8";
  options.max_num_batched_tokens = 64;
  options.speculative = {.num_draft_tokens = 2, .draft_model = quantized.string()};
  const auto error = [&] {
    const auto runner = ModelRunner::load(options, {});
    return runner.ok() ? "" : runner.error().message;
  };
  BOOST_TEST(error() == "");
  options.speculative.draft_quantization = "int4";
  BOOST_TEST(error().ends_with("quantization is int4, but the checkpoint is awq already"), error());
  options.speculative.draft_quantization = "awq";
  options.max_model_len = options.speculative.draft_max_model_len = 100;
  BOOST_TEST(error() == "");
  options.speculative.draft_max_model_len = 99;
  BOOST_TEST(error().ends_with("its max_model_len is 99, it must be at least the model's, 100"),
             error());
}

BOOST_AUTO_TEST_CASE(a_checkpoint_made_for_an_fp8_cache_has_one_unless_the_option_says_another) {
  const TemporaryFolder temporary;
  const fs::path quantized = temporary.path() / "quantized";
  write_quantized_model(kModel, {.format = QuantizedFormat::kFloat8, .bits = 8}, quantized,
                        temporary.path() / "widened");
  const std::string config = read_file(quantized / "config.json").value();
  const auto cache_types = [&](const std::string& scheme, const std::string& option) {
    std::string with = config;
    const std::string key = "\"quantization_config\":{";
    with.insert(with.find(key) + key.size(), "\"kv_cache_scheme\":" + scheme + ",");
    std::ofstream(quantized / "config.json") << with;
    WorkerOptions options;
    options.model = quantized.string();
    options.kv_cache_dtype = option;
    options.max_num_batched_tokens = 64;
    options.speculative = {.num_draft_tokens = 2, .draft_model = kModel.string()};
    const auto runner = ModelRunner::load(options, {}).value();
    std::set<DType> types;
    for (const LayerCacheSpec& layer : runner->describe().kv_cache_specs)
      types.insert(layer.spec.token()->dtype);
    return types;
  };
  const std::string scheme = R"({"num_bits":8,"type":"float","strategy":"tensor"})";
  BOOST_TEST((cache_types(scheme, "auto") == std::set{DType::kF8E4M3}));
  BOOST_TEST((cache_types(scheme, "bfloat16") == std::set{DType::kBF16}));
  BOOST_TEST((cache_types("null", "auto") != std::set{DType::kF8E4M3}));
  BOOST_TEST((cache_types(R"({"num_bits":8,"type":"int"})", "auto") != std::set{DType::kF8E4M3}));
}

/// The error of a matrix "m", [40, 256] in groups of 64, with one tensor replaced or, without
/// dtype, left out.
std::string matrix_error(QuantizedFormat format, const std::string& tensor,
                         const std::string& dtype, const std::vector<std::int64_t>& shape,
                         std::size_t num_bytes, char fill = 0) {
  const TemporaryFolder temporary;
  const auto device = Device::create({.name = "cpu", .num_threads = 1}).value();
  const QuantizedOptions options{.format = format, .group_size = 64, .symmetric = false};
  const QuantizedNumbers numbers(random_weights(40 * 256), 40, 256, options);
  SafetensorsWriter writer;
  numbers.write(writer, dtype.empty() ? "other" : "m");
  if (dtype.empty())
    writer.add("m" + tensor, "I32", shape, std::string(num_bytes, fill));
  else
    writer.add("m" + tensor, dtype, shape, std::string(num_bytes, fill));
  std::ofstream(temporary.path() / "model.safetensors", std::ios::binary) << writer.bytes();
  const Checkpoint checkpoint = Checkpoint::open(temporary.path()).value();
  WeightLoader loader(checkpoint, *device, {}, parsed(options), {}, {});
  loader.matrix({{"m", 40, {0, 40}}}, 256, {0, 256}, 1);
  const auto finished = loader.finish();
  return finished.ok() ? "" : finished.error().message;
}

BOOST_AUTO_TEST_CASE(tensors_that_do_not_fit_together_are_refused_by_name) {
  using enum QuantizedFormat;
  const std::string file = "model.safetensors: tensor ";
  BOOST_TEST(matrix_error(kGptq, ".qweight", "I32", {31, 40}, 31 * 40 * 4) ==
             file +
                 "\"m.qweight\" has shape [31, 40], expected 32 or 64 in dimension 0: 256 "
                 "numbers of 4 or 8 bits in words");
  BOOST_TEST(matrix_error(kGptq, ".qweight", "I32", {32, 41}, 32 * 41 * 4) ==
             file + "\"m.qweight\" has shape [32, 41], expected [32, 40]");
  BOOST_TEST(matrix_error(kGptq, ".qweight", "F32", {32, 40}, 32 * 40 * 4) ==
             file + "\"m.qweight\" has type F32, supported are I32");
  BOOST_TEST(matrix_error(kGptq, ".scales", "F16", {3, 40}, 3 * 40 * 2) ==
             file + "\"m.scales\" has 3 groups for 256 columns");
  BOOST_TEST(matrix_error(kGptq, ".scales", "F16", {}, 2) ==
             file + "\"m.scales\" has shape [], expected [1, 40]");
  BOOST_TEST(matrix_error(kGptq, ".qzeros", "I32", {4, 6}, 4 * 6 * 4) ==
             file + "\"m.qzeros\" has shape [4, 6], expected [4, 5]");
  BOOST_TEST(matrix_error(kGptq, ".g_idx", "I32", {256}, 256 * 4, 1) ==
             file + "\"m.g_idx\" names group 16843009 of 4");
  BOOST_TEST(matrix_error(kGptq, ".qweight", "", {32, 40}, 32 * 40 * 4) ==
             "tensor \"m.scales\" of shape [1, 40] is in none of the 1 weight files");
  BOOST_TEST(matrix_error(kAwq, ".qweight", "I32", {256, 6}, 256 * 6 * 4) ==
             file + "\"m.qweight\" has shape [256, 6], expected [256, 5]");
  BOOST_TEST(matrix_error(kPacked, ".weight_shape", "I64", {2}, 16) ==
             file + "\"m.weight_shape\" is [0, 0], expected [40, 256]");
  BOOST_TEST(matrix_error(kPacked, ".weight_scale", "F16", {40, 3}, 240) ==
             file +
                 "\"m.weight_scale\" has shape [40, 3], expected [1] or [40, groups of 256 "
                 "columns]");
  BOOST_TEST(matrix_error(kPacked, ".weight_scale", "U16", {40, 4}, 320) ==
             file + "\"m.weight_scale\" has type U16, supported are F32, BF16, F16");
  BOOST_TEST(matrix_error(kPacked, ".weight_scale", "BF16", {40, 4}, 320, 0x47) ==
             file + "\"m.weight_scale\" has the scale 50944.000000, the limit is 16384");
  BOOST_TEST(matrix_error(kGptq, ".scales", "F16", {4, 40}, 320, 0x7f) ==
             file + "\"m.scales\" has the scale nan, the limit is 16384");
}

}  // namespace
}  // namespace troupe
