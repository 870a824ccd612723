#include "runtime/worker/model_runner.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "tests/support/replay.hpp"
#include "tests/support/replay_models_driver.hpp"
#include "tests/support/sanitized.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(TROUPE_GOLDEN_DIR) / "models";

std::string model_folder(const std::string& name) { return (kGolden / "models" / name).string(); }

/// Requests of many lengths, half of them with a common prefix, greedy and random, with
/// log-probabilities of outputs and, for some, of the prompt.
std::vector<DriverJob> mixed_jobs() {
  std::mt19937 random(7);
  std::vector<TokenId> common(70);
  for (TokenId& token : common) token = static_cast<TokenId>(random() % 600);
  std::vector<DriverJob> jobs;
  for (const std::size_t length : {1u, 5u, 17u, 33u, 40u, 90u, 97u, 120u}) {
    DriverJob job{.prompt = {}, .params = {}, .num_outputs = 12};
    for (std::size_t i = 0; i < length; ++i)
      job.prompt.push_back(
          length % 2 == 0 && i < common.size() ? common[i] : static_cast<TokenId>(random() % 600));
    job.params.temperature = length % 3 == 0 ? 0.0f : 0.8f;
    job.params.top_p = 0.9f;
    job.params.philox_key = length;
    job.params.repetition_penalty = 1.1f;
    job.params.logprobs = 3;
    if (length % 2 == 1) job.params.prompt_logprobs = 2;
    jobs.push_back(job);
  }
  return jobs;
}

BOOST_AUTO_TEST_CASE(every_reference_model_is_replayed_without_a_difference) {
  // The next test reaches the kernels of each instruction set, whose own tests have their shapes.
  const std::vector<std::string> best = {available_isas().back()};
  const ReplayReport report = replay_models(kGolden, testing::kSanitized ? best : available_isas());
  BOOST_TEST(report.num_cases >= (testing::kSanitized ? 200u : 400u));
  BOOST_TEST(report.num_mismatches == 0u);
  for (const std::string& difference : report.differences) BOOST_TEST_MESSAGE(difference);
}

/// One request after the other, each to its end.
std::vector<DriverResult> drive_alone(DrivenRunner& runner, const std::vector<DriverJob>& jobs) {
  std::vector<DriverResult> results = drive(runner, jobs, {.max_running = 1});
  BOOST_TEST_REQUIRE(results.size() == jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    BOOST_TEST(results[i].errors.empty());
    BOOST_TEST(results[i].tokens.size() == static_cast<std::size_t>(jobs[i].num_outputs));
  }
  return results;
}

/// Fewer and shorter ones of them, with and without each of their properties.
std::vector<DriverJob> few_mixed_jobs() {
  std::vector<DriverJob> jobs = mixed_jobs();
  for (const std::ptrdiff_t dropped : {6, 4, 1}) jobs.erase(jobs.begin() + dropped);
  for (DriverJob& job : jobs) job.num_outputs = 6;
  return jobs;
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_batch_chunks_prefix_hits_or_preemption) {
  const std::vector<DriverJob> jobs = testing::kSanitized ? few_mixed_jobs() : mixed_jobs();
  for (const std::string& isa : available_isas()) {
    for (const std::string name : {"llama", "qwen2", "mistral", "gemma3_text", "qwen3_moe", "phi3",
                                   "olmo2", "granite", "smollm3", "glm4", "gemma2", "qwen2_moe",
                                   "gpt_oss_mxfp4", "llama4_text", "deepseek_v3"}) {
      struct Widths {
        std::string dtype;
        std::string quantization = "auto";
        std::string kv_cache_dtype = "auto";
      };
      for (const auto& [dtype, quantization, kv_cache_dtype] : {Widths{"float32"},
                                                                {"bfloat16"},
                                                                {"bfloat16", "int8"},
                                                                {"float32", "int4"},
                                                                {"bfloat16", "auto", "int8"},
                                                                {"float32", "auto", "fp8"}}) {
        // The scalar kernels are slow, above all under a sanitizer: one model has them all.
        const bool is_plain = quantization == "auto" && isa != "scalar";
        const bool has_experts_in_8_bits =
            name == "qwen3_moe" && quantization == "int8" && isa != "scalar";
        if (!is_plain && !has_experts_in_8_bits && name != "llama") continue;
        // One with a sliding window, one without, and one with latents.
        if (kv_cache_dtype != "auto" && name != "llama" && name != "gemma3_text" &&
            name != "deepseek_v3")
          continue;
        // The next test has every width with every instruction set.
        if (testing::kSanitized && isa == "scalar" && dtype != "bfloat16") continue;
        // The layers of the others are llama's, but for a bias, a window, a norm or a multiplier;
        // the reference models are all replayed.
        const bool has_own_layers = name == "llama" || name == "gemma3_text" ||
                                    name == "qwen3_moe" || name == "olmo2" || name == "gemma2" ||
                                    name == "qwen2_moe" || name == "gpt_oss_mxfp4" ||
                                    name == "llama4_text" || name == "deepseek_v3";
        if (!has_own_layers && (testing::kSanitized || isa != available_isas().back())) continue;
        // One model reaches the kernels of each instruction set, whose own tests have their shapes.
        if (testing::kSanitized && isa != available_isas().back() && name != "llama") continue;
        // What the steps do to batches and blocks depends on no kernel: the rest gets everything
        // that reaches kernels in one run.
        const bool is_thorough =
            name == "llama" && isa == available_isas().back() && !testing::kSanitized;
        BOOST_TEST_CONTEXT(isa << ", " << name << ", " << dtype << ", " << quantization
                               << ", KV cache in " << kv_cache_dtype) {
          const DriverModelOptions options{.folder = model_folder(name),
                                           .dtype = dtype,
                                           .quantization = quantization,
                                           .kv_cache_dtype = kv_cache_dtype,
                                           .isa = isa};
          DrivenRunner runner = load_driven_runner(options);
          const auto alone = drive_alone(runner, jobs);
          BOOST_TEST((drive(runner, jobs, {}) == alone), "batched together");
          if (is_thorough) {
            BOOST_TEST((drive(runner, jobs, {.token_budget = 16}) == alone), "in chunks");
            BOOST_TEST((drive(runner, jobs, {.token_budget = 50, .preempt_every = 3}) == alone),
                       "preempted");
          }
          BOOST_TEST((drive(runner, jobs,
                            {.token_budget = 50, .preempt_every = 3, .oracle = &alone}) == alone),
                     "with drafts, in chunks, preempted");
          // Hits in the prefix cache leave no prompt log-probabilities, so they are not requested.
          std::vector<DriverJob> plain = jobs;
          std::vector<DriverResult> expected = alone;
          for (std::size_t i = 0; i < plain.size(); ++i) {
            plain[i].params.prompt_logprobs.reset();
            expected[i].prompt_logprobs = {};
          }
          BOOST_TEST(
              (drive(runner, plain, {.token_budget = 100, .share_prefix = true}) == expected),
              "on shared blocks");
          DriverModelOptions other = options;
          other.threads = 1;
          other.block_size = 24;  // which the kernels read whole
          DrivenRunner other_runner = load_driven_runner(other);
          BOOST_TEST(
              (drive(other_runner, jobs, {.token_budget = is_thorough ? 8192 : 16}) == alone),
              "one thread, other blocks, and but for llama in small chunks");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(every_width_of_weights_and_cache_gives_the_same_bits_in_any_batch) {
  const std::vector<DriverJob> jobs = few_mixed_jobs();
  struct Weights {
    std::string dtype;
    std::string quantization = "auto";
  };
  const std::vector<Weights> all_weights = {
      {"float32"}, {"bfloat16"}, {"float16"}, {"bfloat16", "int8"}, {"bfloat16", "int4"}};
  const std::vector<std::string> caches = {"float32", "bfloat16", "float16", "int8", "fp8"};
  for (const std::string& isa : available_isas()) {
    for (std::size_t i = 0; i < all_weights.size(); ++i) {
      const Weights& weights = all_weights[i];
      // Each width with one of the caches: all pairs take long where everything is checked.
      const std::string& cache = caches[(i + 2) % caches.size()];
      BOOST_TEST_CONTEXT(isa << ", " << weights.dtype << ", " << weights.quantization
                             << ", KV cache in " << cache) {
        DriverModelOptions options{.folder = model_folder("llama"),
                                   .dtype = weights.dtype,
                                   .quantization = weights.quantization,
                                   .kv_cache_dtype = cache,
                                   .isa = isa};
        DrivenRunner runner = load_driven_runner(options);
        const auto alone = drive_alone(runner, jobs);
        BOOST_TEST((drive(runner, jobs, {}) == alone), "batched together");
        options.threads = 1;
        options.block_size = 128;  // 8 blocks of the kernels
        DrivenRunner other = load_driven_runner(options);
        BOOST_TEST((drive(other, jobs,
                          {.token_budget = 50, .preempt_every = 3, .oracle = &alone}) == alone),
                   "with drafts, in chunks, preempted, one thread, other blocks");
      }
    }
  }
}

/// The model with another base of its rotations: as large, and of another opinion.
std::string rotated_model(const std::string& name) {
  const fs::path folder = fs::temp_directory_path() / ("troupe-rotated-" + name);
  fs::create_directories(folder);
  for (const auto& entry : fs::directory_iterator(model_folder(name)))
    fs::copy_file(entry.path(), folder / entry.path().filename(),
                  fs::copy_options::overwrite_existing);
  std::ifstream from(fs::path(model_folder(name)) / "config.json");
  std::string config((std::istreambuf_iterator<char>(from)), {});
  const std::string key = "\"rope_theta\": ";
  const std::size_t value = config.find(key);
  BOOST_REQUIRE(value != std::string::npos);
  config.insert(value + key.size(), "3");
  std::ofstream(folder / "config.json") << config;
  return folder.string();
}

BOOST_AUTO_TEST_CASE(a_draft_model_changes_no_token_and_one_that_agrees_is_always_right) {
  // Hits in the prefix cache leave no prompt log-probabilities, so they are not requested.
  std::vector<DriverJob> jobs = mixed_jobs();
  for (DriverJob& job : jobs) job.params.prompt_logprobs.reset();
  for (const auto& [name, kv_cache_dtype] : {std::pair<std::string, std::string>("llama", "auto"),
                                             {"llama", "int8"},
                                             {"gemma3_text", "auto"}}) {
    BOOST_TEST_CONTEXT(name << ", KV cache in " << kv_cache_dtype) {
      DriverModelOptions options{
          .folder = model_folder(name), .dtype = "bfloat16", .kv_cache_dtype = kv_cache_dtype};
      DrivenRunner plain = load_driven_runner(options);
      const auto expected = drive(plain, jobs, {.max_running = 1});
      options.speculative = {.num_draft_tokens = 3, .draft_model = options.folder};
      DrivenRunner twin = load_driven_runner(options);
      BOOST_TEST((drive(twin, jobs, {}) == expected), "batched together");
      BOOST_TEST((drive(twin, jobs, {.token_budget = 16}) == expected), "in chunks");
      BOOST_TEST((drive(twin, jobs, {.token_budget = 50, .preempt_every = 3}) == expected),
                 "preempted");
      BOOST_TEST((drive(twin, jobs, {.token_budget = 100, .share_prefix = true}) == expected),
                 "on shared blocks");
      BOOST_TEST((drive(twin, jobs, {.token_budget = 50, .preempt_every = 3, .plan_ahead = true}) ==
                  expected),
                 "planned ahead, preempted");
      for (const std::int32_t draft_every : {3, 40})  // tokens wait, and some become too many
        BOOST_TEST((drive(twin, jobs,
                          {.token_budget = 50, .preempt_every = 9, .draft_every = draft_every}) ==
                    expected),
                   "drafts every " << draft_every << " steps");
      for (const std::int32_t preempt_every : {0, 3})
        BOOST_TEST((drive(twin, jobs,
                          {.token_budget = 50,
                           .preempt_every = preempt_every,
                           .share_prefix = true,
                           .stop_begin = 3,
                           .stop_end = 9}) == expected),
                   "stopped, on shared blocks, preempted every " << preempt_every << " steps");
      BOOST_TEST(twin.num_stopped_passes == 0);
      BOOST_TEST(twin.num_drafted > 100);
      BOOST_TEST(twin.num_accepted == twin.num_drafted);
      if (name != "llama") continue;
      options.speculative.draft_model = rotated_model(name);
      DrivenRunner other = load_driven_runner(options);
      BOOST_TEST((drive(other, jobs, {.token_budget = 50, .preempt_every = 3}) == expected),
                 "with another model's drafts");
      BOOST_TEST((drive(other, jobs,
                        {.token_budget = 50, .preempt_every = 3, .plan_ahead = true}) == expected),
                 "with another model's drafts, planned ahead");
      BOOST_TEST(other.num_drafted > 100);
      BOOST_TEST(other.num_accepted > 0);
      BOOST_TEST(other.num_accepted < other.num_drafted);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_draft_model_of_another_vocabulary_is_refused) {
  WorkerOptions options;
  options.model = model_folder("llama");
  options.max_num_batched_tokens = 64;
  options.speculative = {.num_draft_tokens = 2, .draft_model = model_folder("qwen3")};
  const auto refused = ModelRunner::load(options, {});
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST(refused.error().message.ends_with(
      "qwen3: its vocabulary has 704 tokens, the model's has 768"));
}

BOOST_AUTO_TEST_CASE(instruction_sets_agree_on_the_greedy_tokens_of_exact_arithmetic) {
  DriverJob job{.prompt = {1, 2, 3, 4, 5}, .params = {}, .num_outputs = 20};
  job.params.temperature = 0;
  std::vector<TokenId> expected;
  for (const std::string& isa : available_isas()) {
    DrivenRunner runner = load_driven_runner({.folder = model_folder("qwen3"), .isa = isa});
    BOOST_TEST(runner.runner->describe().cpu_isa == isa);
    const std::vector<TokenId> tokens = drive(runner, std::span(&job, 1), {}).front().tokens;
    if (expected.empty()) expected = tokens;
    BOOST_TEST(tokens == expected, isa);
  }
}

BOOST_AUTO_TEST_CASE(instruction_sets_choose_the_experts_of_the_reference) {
  for (const std::string name : {"mixtral", "qwen3_moe", "gpt_oss", "llama4_text", "deepseek_v3"}) {
    const nlohmann::json golden = nlohmann::json::parse(
        read_file((kGolden / "goldens" / name / "golden.json").string()).value());
    std::vector<DriverJob> jobs;
    std::vector<std::vector<TokenId>> expected;
    for (std::size_t i = 0; i < 5; ++i) {
      DriverJob& job = jobs.emplace_back();
      job.prompt = golden["prompts"][i].get<std::vector<TokenId>>();
      job.params.temperature = 0;
      job.num_outputs = 24;
      expected.push_back(golden["greedy"][i].get<std::vector<TokenId>>());
      expected.back().resize(24);
    }
    for (const std::string& isa : available_isas()) {
      if (testing::kSanitized && name != "qwen3_moe" && isa != available_isas().back()) continue;
      DrivenRunner runner = load_driven_runner({.folder = model_folder(name), .isa = isa});
      const std::vector<DriverResult> found = drive(runner, jobs, {});
      for (std::size_t i = 0; i < jobs.size(); ++i)
        BOOST_TEST((found[i].tokens == expected[i]), name << ", " << isa << ", prompt " << i);
    }
  }
}

SchedulerOutput one_request_step(std::vector<TokenId> tokens, BlockTable blocks) {
  SchedulerOutput step;
  const auto num_tokens = static_cast<std::int32_t>(tokens.size());
  NewRequestData request;
  request.id = RequestId{1};
  request.token_ids = std::move(tokens);
  request.num_prompt_tokens = num_tokens;
  request.params.temperature = 0;
  request.block_ids = std::move(blocks);
  step.new_requests.push_back(std::move(request));
  step.scheduled_ids = {RequestId{1}};
  step.num_scheduled_tokens = {num_tokens};
  step.total_num_scheduled_tokens = num_tokens;
  return step;
}

BOOST_AUTO_TEST_CASE(a_request_whose_parameters_forbid_every_token_fails_alone) {
  DrivenRunner runner = load_driven_runner({.folder = model_folder("qwen2")});
  std::vector<DriverJob> jobs = mixed_jobs();
  jobs.resize(3);
  const auto before = drive(runner, jobs, {});
  jobs[1].params.allowed_token_ids = {5};
  jobs[1].params.logit_bias = {{5, -INFINITY}};
  const auto after = drive(runner, jobs, {});
  BOOST_TEST(after[1].errors.size() == 1u);
  BOOST_TEST(after[1].tokens.empty());
  BOOST_TEST((after[0] == before[0]));
  BOOST_TEST((after[2] == before[2]));
}

BOOST_AUTO_TEST_CASE(steps_planned_before_a_request_failed_do_not_fail) {
  DrivenRunner runner = load_driven_runner({.folder = model_folder("qwen2")});
  const auto next_step = [&](std::vector<RequestId> ids, std::int32_t num_computed) {
    SchedulerOutput step;
    step.scheduled_ids = ids;
    step.num_scheduled_tokens.assign(ids.size(), 1);
    step.total_num_scheduled_tokens = static_cast<std::int32_t>(ids.size());
    step.cached_requests.ids = ids;
    step.cached_requests.num_computed_tokens.assign(ids.size(), num_computed);
    step.cached_requests.num_output_tokens.assign(ids.size(), num_computed - 2);
    return runner.runner->execute(step);
  };
  SchedulerOutput first = one_request_step({1, 2, 3}, {{1}});
  NewRequestData failing = first.new_requests.front();
  failing.id = RequestId{2};
  failing.block_ids = {{2}};
  failing.params.allowed_token_ids = {5};
  failing.params.logit_bias = {{5, -INFINITY}};
  first.new_requests.push_back(failing);
  first.scheduled_ids.push_back(RequestId{2});
  first.num_scheduled_tokens.push_back(3);
  first.total_num_scheduled_tokens += 3;

  std::vector<TokenId> tokens;
  const auto take = [&](const Result<ModelRunnerOutput>& done, std::size_t num_rows) {
    BOOST_REQUIRE(done.ok());
    BOOST_TEST(done->num_sampled.size() == num_rows);
    BOOST_TEST(done->num_sampled.front() == 1);
    BOOST_TEST(done->sampled_token_ids.size() == 1u);
    tokens.push_back(done->sampled_token_ids.front());
    return done->request_errors.size();
  };
  BOOST_TEST(take(runner.runner->execute(first), 2) == 1u);
  const std::vector<RequestId> both = {RequestId{1}, RequestId{2}};
  BOOST_TEST(take(next_step(both, 3), 2) == 0u);
  BOOST_TEST(take(next_step(both, 4), 2) == 0u);

  const std::vector<TokenId> together = std::exchange(tokens, {});
  take(runner.runner->execute(one_request_step({1, 2, 3}, {{1}})), 1);
  take(next_step({RequestId{1}}, 3), 1);
  take(next_step({RequestId{1}}, 4), 1);
  BOOST_TEST(tokens == together, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(copied_blocks_hold_the_same_tokens_and_zeroed_ones_do_not) {
  DrivenRunner runner = load_driven_runner({.folder = model_folder("llama")});
  std::vector<TokenId> tokens(32);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(7 * i + 3);
  const auto first = runner.runner->execute(one_request_step(tokens, {{1, 2}}));
  BOOST_REQUIRE(first.ok());
  // The last token again, on copies of the blocks.
  const auto run_again = [&](bool zero) {
    SchedulerOutput step = one_request_step(tokens, {{3, 4}});
    step.new_requests.front().num_computed_tokens = 31;
    step.num_scheduled_tokens = {1};
    step.total_num_scheduled_tokens = 1;
    step.new_requests.front().params.logprobs = 0;
    if (zero)
      step.blocks_to_zero = {3, 4};
    else
      step.block_copies = {{1, 3}, {2, 4}};
    return runner.runner->execute(step);
  };
  const auto copied = run_again(false);
  const auto zeroed = run_again(true);
  BOOST_REQUIRE(copied.ok() && zeroed.ok());
  BOOST_TEST(copied->sampled_token_ids == first->sampled_token_ids);
  BOOST_TEST(zeroed->logprobs.logprobs != copied->logprobs.logprobs);
}

BOOST_AUTO_TEST_CASE(a_scheduler_that_breaks_the_rules_fails_the_step) {
  DrivenRunner runner = load_driven_runner({.folder = model_folder("llama")});
  BOOST_CHECK_THROW((void)runner.runner->execute(one_request_step({1, 2}, {{}})), CheckFailure);
  BOOST_CHECK_THROW((void)runner.runner->execute(one_request_step({1, 100000}, {{1}})),
                    CheckFailure);
  SchedulerOutput unknown;
  unknown.scheduled_ids = {RequestId{99}};
  unknown.num_scheduled_tokens = {1};
  BOOST_CHECK_THROW((void)runner.runner->execute(unknown), CheckFailure);
  SchedulerOutput drafts;
  drafts.draft_token_ids = {1};
  BOOST_CHECK_THROW((void)runner.runner->execute(drafts), CheckFailure);
  // The runner continues after it.
  BOOST_TEST(runner.runner->execute(one_request_step({1, 2}, {{1}})).ok());
}

std::string load_error(const WorkerOptions& options) {
  const auto runner = ModelRunner::load(options, {});
  return runner.ok() ? "" : runner.error().message;
}

WorkerOptions options_for(const std::string& folder) {
  WorkerOptions options;
  options.model = folder;
  options.max_num_batched_tokens = 64;
  return options;
}

BOOST_AUTO_TEST_CASE(a_broken_model_folder_is_refused_with_tensor_and_shapes) {
  const fs::path folder =
      fs::temp_directory_path() / ("troupe_runner_" + std::to_string(std::random_device()()));
  fs::copy(model_folder("qwen2"), folder);
  const auto edit_config = [&](const std::string& from, const std::string& to) {
    std::ifstream original(fs::path(model_folder("qwen2")) / "config.json");
    std::string text{std::istreambuf_iterator<char>(original), {}};
    text.replace(text.find(from), from.size(), to);
    std::ofstream(folder / "config.json") << text;
  };
  edit_config("\"intermediate_size\": 192", "\"intermediate_size\": 200");
  const std::string shapes = load_error(options_for(folder.string()));
  BOOST_TEST(shapes.find("model.safetensors: tensor \"model.layers.0.mlp.gate_proj.weight\" has "
                         "shape [192, 96], expected [200, 96]") != std::string::npos,
             shapes);
  edit_config("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5");
  const std::string missing = load_error(options_for(folder.string()));
  BOOST_TEST(
      missing.find("\"model.layers.4.self_attn.q_proj.weight\" of shape [96, 96] is in none") !=
          std::string::npos,
      missing);
  fs::remove_all(folder);
  BOOST_TEST(load_error(options_for(folder.string())).find("config.json") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_model_made_for_very_many_tokens_is_loaded_for_those_that_are_asked_for) {
  const fs::path folder =
      fs::temp_directory_path() / ("troupe_runner_long_" + std::to_string(std::random_device()()));
  fs::copy(model_folder("llama"), folder);
  const fs::path config = folder / "config.json";
  std::string text = read_file(config).value();
  const std::string key = "\"max_position_embeddings\": ";
  text.insert(text.find(key) + key.size(), "10000");
  std::ofstream(config) << text;
  WorkerOptions options = options_for(folder.string());
  BOOST_TEST(load_error(options).find("max_model_len is 100001024, the tables") !=
             std::string::npos);
  options.max_model_len = 128;
  BOOST_TEST(load_error(options) == "");
  // A model that drafts for another one needs its positions only.
  options = options_for(model_folder("llama"));
  options.speculative = {.num_draft_tokens = 2, .draft_model = folder.string()};
  BOOST_TEST(load_error(options) == "");
  fs::remove_all(folder);
}

BOOST_AUTO_TEST_CASE(wrong_options_are_refused_by_name) {
  WorkerOptions options = options_for(model_folder("qwen2"));
  options.max_model_len = 1 << 20;
  BOOST_TEST(load_error(options).find("max_model_len is 1048576") != std::string::npos);
  options = options_for(model_folder("qwen2"));
  options.dtype = "int3";
  BOOST_TEST(load_error(options).find("dtype is int3") != std::string::npos);
  options = options_for(model_folder("qwen2"));
  options.quantization = "int3";
  BOOST_TEST(load_error(options).find("quantization is int3, not one of auto, int8, int4, gptq") !=
             std::string::npos);
  options = options_for(model_folder("qwen2"));
  options.cpu_isa = "mmx";
  BOOST_TEST(load_error(options).find("mmx") != std::string::npos);
}

}  // namespace
}  // namespace troupe
