// The engine on a device with memory of its own: the CUDA kernels, compiled for the CPU. What is
// not copied is not seen: device memory is NaN until it is written, and with the address sanitizer
// the host may not touch it.

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "tests/kernels/thread_orders.hpp"
#include "tests/support/gguf_writer.hpp"
#include "tests/support/quantized_writer.hpp"
#include "tests/support/replay.hpp"
#include "tests/support/replay_models_driver.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/test_device.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using testing::InThreadOrder;
using testing::ThreadOrder;

const fs::path kGolden = fs::path(TROUPE_GOLDEN_DIR) / "models";
const std::string kDevice = testing::test_device();

using testing::NeedsTestDevice;
BOOST_TEST_GLOBAL_FIXTURE(NeedsTestDevice);

std::string model_folder(const std::string& name) { return (kGolden / "models" / name).string(); }

BOOST_AUTO_TEST_CASE(reference_models_are_replayed_without_a_difference) {
  std::vector<std::string> models = {"qwen3", "gemma3_text"};
  if (!testing::kSanitized)
    models.insert(models.end(),
                  {"llama", "qwen2", "mistral", "mixtral", "qwen3_moe", "phi3", "olmo2", "granite",
                   "smollm3", "glm4", "gemma2", "qwen2_moe", "mamba2", "bamba", "falcon_h1",
                   "gpt_oss_mxfp4", "llama4_text", "deepseek_v3"});
  const ReplayReport report = replay_on_device(kGolden, kDevice, models);
  BOOST_TEST(report.num_cases == 10 * models.size());
  BOOST_TEST(report.num_mismatches == 0u);
}

/// Short requests, greedy and random, two of them with a common prefix of more than a block.
std::vector<DriverJob> few_jobs() {
  std::vector<DriverJob> jobs;
  for (const std::size_t length : {1u, 19u, 20u}) {
    DriverJob job{.prompt = {}, .params = {}, .num_outputs = 3};
    for (std::size_t i = 0; i < length; ++i)
      job.prompt.push_back(static_cast<TokenId>((7 * i + 5) % 600));
    job.params.temperature = length % 2 == 0 ? 0.0f : 0.8f;
    job.params.philox_key = length;
    job.params.logprobs = 3;
    if (length == 19) job.params.prompt_logprobs = 2;
    jobs.push_back(job);
  }
  return jobs;
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_batch_chunks_prefix_hits_preemption_or_threads) {
  const std::vector<DriverJob> jobs = few_jobs();
  std::vector<DriverJob> plain =
      jobs;  // hits in the prefix cache leave no prompt log-probabilities
  for (DriverJob& job : plain) job.params.prompt_logprobs.reset();
  struct Widths {
    std::string model;
    std::string dtype;
    std::string kv_cache_dtype;
    std::string quantization = "auto";
  };
  std::vector<Widths> all = {{"qwen3", "bfloat16", "auto"}};
  if (!testing::kSanitized) all.push_back({"gemma3_text", "float16", "float32"});
  if (!testing::kSanitized) all.push_back({"mixtral", "bfloat16", "int8", "int8"});
  for (const auto& [model, dtype, kv_cache_dtype, quantization] : all) {
    BOOST_TEST_CONTEXT(model << ", " << dtype << ", KV cache in " << kv_cache_dtype
                             << ", quantization " << quantization) {
      DriverModelOptions options{.folder = model_folder(model),
                                 .dtype = dtype,
                                 .quantization = quantization,
                                 .kv_cache_dtype = kv_cache_dtype,
                                 .device = kDevice,
                                 .num_blocks = 64};
      DrivenRunner runner = load_driven_runner(options);
      BOOST_TEST(runner.runner->describe().device == kDevice);
      const auto alone = drive(runner, jobs, {.max_running = 1});
      for (const DriverResult& result : alone) {
        BOOST_TEST(result.errors.empty());
        BOOST_TEST(result.tokens.size() == 3u);
      }
      BOOST_TEST((drive(runner, jobs, {}) == alone), "batched together");
      BOOST_TEST((drive(runner, jobs, {.token_budget = 7}) == alone), "in chunks");
      BOOST_TEST((drive(runner, jobs, {.token_budget = 24, .preempt_every = 3}) == alone),
                 "preempted");
      BOOST_TEST((drive(runner, jobs, {.token_budget = 16, .oracle = &alone}) == alone),
                 "with drafts");
      const auto plain_alone = drive(runner, plain, {.max_running = 1});
      BOOST_TEST((drive(runner, plain, {.token_budget = 24, .share_prefix = true}) == plain_alone),
                 "on shared blocks");
      {
        const InThreadOrder reversed(ThreadOrder::kReversed);
        BOOST_TEST((drive(runner, jobs, {}) == alone), "threads in reversed order");
      }
      options.block_size = 32;
      options.speculative = {
          .num_draft_tokens = 2, .draft_model = options.folder, .draft_quantization = quantization};
      DrivenRunner other = load_driven_runner(options);
      BOOST_TEST((drive(other, plain, {}) == plain_alone), "a draft model, other blocks");
      BOOST_TEST(other.num_accepted > 0);
      BOOST_TEST(other.num_accepted == other.num_drafted);
    }
  }
}

/// A folder for the files of one test.
class DeviceTestFolder {
 public:
  DeviceTestFolder()
      : path_(fs::temp_directory_path() / ("device-test-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~DeviceTestFolder() { fs::remove_all(path_); }
  DeviceTestFolder(const DeviceTestFolder&) = delete;
  DeviceTestFolder& operator=(const DeviceTestFolder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Log-probabilities of a short prompt's tokens.
std::vector<float> prompt_logprobs(DriverModelOptions options, const std::string& device) {
  options.device = device;
  options.num_blocks = 16;
  DrivenRunner runner = load_driven_runner(options);
  DriverJob job{.prompt = {5, 2, 77, 300, 41, 9, 250}, .params = {}, .num_outputs = 1};
  job.params.temperature = 0;
  job.params.prompt_logprobs = 1;
  const auto results = drive(runner, std::span(&job, 1), {});
  BOOST_TEST(results.front().errors.empty());
  return results.front().prompt_logprobs.logprobs;
}

/// The largest difference between the device and the CPU.
double difference_between_devices(DriverModelOptions options) {
  const std::vector<float> found = prompt_logprobs(options, kDevice);
  options.isa = "scalar";  // others round the operands of attention
  const std::vector<float> expected = prompt_logprobs(options, "cpu");
  BOOST_REQUIRE(found.size() == expected.size());
  BOOST_REQUIRE(!found.empty());
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    worst = std::max(worst, static_cast<double>(std::fabs(found[i] - expected[i])));
  return worst;
}

BOOST_AUTO_TEST_CASE(quantised_weights_experts_and_caches_of_8_bits_are_those_of_the_cpu) {
  const auto check = [](const DriverModelOptions& options) {
    const double difference = difference_between_devices(options);
    BOOST_TEST(difference < 2e-5, options.folder << " " << options.quantization << " cache "
                                                 << options.kv_cache_dtype << ": " << difference);
  };
  for (const std::string quantization : {"int8", "int4"})
    for (const std::string model : {"llama", "mixtral"})
      check({.folder = model_folder(model), .quantization = quantization});
  for (const std::string dtype : {"int8", "fp8"})
    check({.folder = model_folder("qwen3"), .kv_cache_dtype = dtype});

  const DeviceTestFolder temporary;
  const fs::path quantized = temporary.path() / "quantized";
  using enum QuantizedFormat;
  for (const QuantizedOptions& format :
       {QuantizedOptions{kGptq, 4, 128, false}, QuantizedOptions{kGptq, 4, 32, false, true},
        QuantizedOptions{kAwq, 4, 32, false}, QuantizedOptions{kPacked, 8, 0, false},
        QuantizedOptions{kFp8Block, 8, 0, true}}) {
    write_quantized_model(model_folder("llama"), format, quantized, temporary.path() / "widened");
    check({.folder = quantized.string()});
  }
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0}) {
    const fs::path file = temporary.path() / "model.gguf";
    std::ofstream(file, std::ios::binary) << gguf_of_model(model_folder("llama"), type);
    check({.folder = file.string()});
  }
}

/// What is said of these options with that device.
std::string refusal(WorkerOptions options, const std::string& device = kDevice) {
  options.device = device;
  options.max_num_batched_tokens = 64;
  const auto runner = ModelRunner::load(options, {});
  return runner.ok() ? "" : runner.error().message;
}

BOOST_AUTO_TEST_CASE(what_the_device_cannot_do_is_refused_by_name) {
  const std::string model = model_folder("llama");
  BOOST_TEST(refusal({.model = model}) == "");
  BOOST_TEST(refusal({.model = model}, "tpu") ==
             "device is 'tpu', not one of auto, cpu, cuda, cuda-emulated");
  if (!testing::why_no_gpu().empty())
    BOOST_TEST(refusal({.model = model}, "cuda").starts_with("device cuda cannot be used: "));
}

BOOST_AUTO_TEST_CASE(auto_is_the_gpu_and_without_one_the_cpu) {
  const auto device = Device::create({.name = "auto"});
  BOOST_REQUIRE(device.ok());
  const bool is_gpu = testing::why_no_gpu().empty();
  BOOST_TEST((*device)->name() == (is_gpu ? "cuda" : "cpu"));
  BOOST_TEST((*device)->isa_name() == (is_gpu ? "" : to_string(detect_isa())));
}

BOOST_AUTO_TEST_CASE(a_cache_larger_than_the_device_is_refused_and_a_smaller_one_works_then) {
  auto runner = ModelRunner::load(
      {.model = model_folder("qwen3"), .device = kDevice, .max_num_batched_tokens = 64}, {});
  BOOST_REQUIRE(runner.ok());
  const ModelLoaded loaded = (*runner)->describe();
  BOOST_TEST(loaded.device == kDevice);
  BOOST_TEST(loaded.cpu_isa == "");
  BOOST_TEST(loaded.available_bytes > 0);
  if (!testing::tests_gpu()) BOOST_TEST(loaded.available_bytes < std::int64_t{1} << 30);
  const auto refused = (*runner)->initialize_kv_cache(plan_cache(loaded.layer_specs(), 1 << 24));
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST(
      refused.error().message.find("for the KV cache: " + kDevice + " has ") != std::string::npos,
      refused.error().message);
  BOOST_TEST((*runner)->initialize_kv_cache(plan_cache(loaded.layer_specs(), 16)).ok());
}

}  // namespace
}  // namespace troupe
