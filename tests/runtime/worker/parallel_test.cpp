// Several ranks of one model, each on a thread of its own, as their Workers run them.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device_table.hpp"
#include "runtime/worker/model_runner.hpp"
#include "runtime/worker/worker_group.hpp"
#include "tests/support/quantized_writer.hpp"
#include "tests/support/replay_models_driver.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/test_device.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr RequestId kRequest{1};

class Ranks {
 public:
  explicit Ranks(std::int32_t tensor_parallel_size, std::int32_t pipeline_parallel_size = 1,
                 const std::string& quantization = "auto",
                 const std::string& model = TROUPE_GOLDEN_DIR "/models/models/llama",
                 const SpeculativeDecoding& speculative = {}, const std::string& device = "cpu",
                 const AdapterOptions& adapters = {}, bool expert_parallel = false) {
    static int number = 0;
    ParallelConfig parallel{.tensor_parallel_size = tensor_parallel_size,
                            .pipeline_parallel_size = pipeline_parallel_size,
                            .expert_parallel = expert_parallel,
                            .rendezvous = "shm:troupe-ranks-" + std::to_string(getpid()) + "-" +
                                          std::to_string(++number),
                            .timeout_s = 120};
    parallel.ranks_on_host = parallel.world_size();
    for (; parallel.rank < parallel.world_size(); ++parallel.rank) {
      parallel.rank_on_host = parallel.rank;
      auto runner = ModelRunner::load({.model = model,
                                       .dtype = "float32",
                                       .quantization = quantization,
                                       .device = device,
                                       .threads = 1,
                                       .max_num_batched_tokens = 128,
                                       .parallel = parallel,
                                       .speculative = speculative,
                                       .adapters = adapters},
                                      {});
      BOOST_REQUIRE_MESSAGE(runner.ok(), (runner.ok() ? "" : runner.error().message));
      runners_.push_back(std::move(runner).value());
    }
    for (std::size_t rank = 0; rank < size(); ++rank) BOOST_REQUIRE(initialize(rank).ok());
    meet(0);
  }

  [[nodiscard]] std::size_t size() const { return runners_.size(); }
  [[nodiscard]] std::size_t num_groups() const { return num_groups_; }
  [[nodiscard]] ModelRunner& runner(std::size_t rank) { return *runners_[rank]; }

  /// More bytes than a page takes are refused.
  Result<void> initialize(std::size_t rank, std::int64_t extra_page_bytes = 0) {
    std::vector<ModelLoaded> loaded;
    for (const auto& runner : runners_) loaded.push_back(runner->describe());
    KVCacheConfig config = plan_cache(join_loaded(loaded).value().layer_specs(), 96);
    num_groups_ = config.groups.size();
    for (std::int64_t& bytes : config.page_bytes) bytes += extra_page_bytes;
    return runners_[rank]->initialize_kv_cache(config);
  }

  void meet(std::uint32_t generation) {
    if (size() == 1) return;
    std::vector<std::string> errors(size());
    on_all([&](std::size_t rank) {
      const auto met = runners_[rank]->join_group({generation});
      if (!met.ok()) errors[rank] = met.error().message;
    });
    for (const std::string& error : errors) BOOST_TEST(error == "");
  }
  /// steps[rank], or the same one for all; the answers by rank. A grammar makes it two phases.
  std::vector<Result<ModelRunnerOutput>> execute(
      const std::vector<SchedulerOutput>& steps,
      const std::optional<GrammarOutput>& grammar = std::nullopt) {
    std::vector<Result<ModelRunnerOutput>> results(size(), ModelRunnerOutput{});
    on_all([&](std::size_t rank) {
      try {
        ModelRunner& runner = *runners_[rank];
        const SchedulerOutput& step = steps[std::min(rank, steps.size() - 1)];
        results[rank] =
            grammar ? execute_in_two_phases(runner, step, *grammar) : runner.execute(step);
      } catch (const std::exception& exception) {  // as the Worker does
        results[rank] = Error{ErrorCode::kInternal, exception.what()};
      }
      if (!results[rank].ok()) runners_[rank]->fail_group(results[rank].error());
    });
    return results;
  }
  /// The token of a step that every rank takes.
  TokenId sample(const SchedulerOutput& step) {
    TokenId token = -1;
    for (const auto& result : execute({step})) {
      BOOST_REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.error().message));
      if (!result->sampled_token_ids.empty()) {
        BOOST_TEST(token == -1);  // one rank samples
        token = result->sampled_token_ids.front();
      }
    }
    return token;
  }

 private:
  static Result<ModelRunnerOutput> execute_in_two_phases(ModelRunner& runner,
                                                         const SchedulerOutput& step,
                                                         const GrammarOutput& grammar) {
    RETURN_IF_ERROR(runner.execute_model(step));
    BOOST_CHECK(runner.open_step() == step.step);
    Result<ModelRunnerOutput> result = runner.sample_tokens(grammar);
    BOOST_CHECK(!runner.open_step());
    return result;
  }
  void on_all(const std::function<void(std::size_t)>& work) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < size(); ++rank) threads.emplace_back(work, rank);
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<ModelRunner>> runners_;
  std::size_t num_groups_ = 0;
};

constexpr std::int32_t kNumDrafts = 3;  // of ranks that draft

SchedulerOutput first_step(std::vector<TokenId> tokens, std::size_t num_groups = 1) {
  const auto num_tokens = static_cast<std::int32_t>(tokens.size());
  NewRequestData request{.id = kRequest, .token_ids = std::move(tokens)};
  request.num_prompt_tokens = 3;
  request.params.temperature = 0;
  for (BlockId block = 1; request.block_ids.size() < num_groups; block += 2)
    request.block_ids.push_back({block, block + 1});
  SchedulerOutput step;
  step.new_requests.push_back(std::move(request));
  step.scheduled_ids = {kRequest};
  step.num_scheduled_tokens = {num_tokens};
  step.total_num_scheduled_tokens = num_tokens;
  step.num_drafts_to_make = kNumDrafts;
  return step;
}

SchedulerOutput next_step(std::int32_t num_computed, RequestId id = kRequest) {
  SchedulerOutput step;
  step.cached_requests.ids = {id};
  step.cached_requests.num_computed_tokens = {num_computed};
  step.cached_requests.num_output_tokens = {num_computed - 2};
  step.scheduled_ids = {id};
  step.num_scheduled_tokens = {1};
  step.total_num_scheduled_tokens = 1;
  step.num_drafts_to_make = kNumDrafts;
  return step;
}

const std::vector<TokenId> kPrompt = {11, 222, 333};

/// One row for each list: only these tokens.
GrammarOutput allow(std::int32_t vocab_size, const std::vector<std::vector<TokenId>>& rows) {
  const auto width = static_cast<std::size_t>(vocab_size + 31) / 32;
  GrammarOutput grammar{.ids = {kRequest},
                        .num_rows = {static_cast<std::int32_t>(rows.size())},
                        .words_per_row = static_cast<std::int32_t>(width)};
  for (const std::vector<TokenId>& tokens : rows) {
    std::vector<std::uint32_t> row(width);
    for (const TokenId token : tokens)
      row[static_cast<std::size_t>(token) / 32] |= std::uint32_t{1} << (token % 32);
    for (const std::uint32_t word : row) grammar.bitmask.push_back(static_cast<std::int32_t>(word));
  }
  return grammar;
}

/// The tokens of the rank that samples.
std::vector<TokenId> sampled_by(const std::vector<Result<ModelRunnerOutput>>& results) {
  std::vector<TokenId> tokens;
  for (const Result<ModelRunnerOutput>& result : results) {
    BOOST_REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.error().message));
    BOOST_TEST(result->request_errors.empty());
    if (!result->sampled_token_ids.empty()) tokens = result->sampled_token_ids;
  }
  return tokens;
}

BOOST_AUTO_TEST_CASE(what_a_grammar_allows_is_kept_bit_for_bit_by_all_ranks_and_behind_drafts) {
  struct Sizes {
    std::int32_t tensor_parallel;
    std::int32_t pipeline_parallel;
  };
  for (const auto& [tensor_parallel, pipeline_parallel] : {Sizes{1, 1}, {2, 1}, {1, 2}}) {
    BOOST_TEST_CONTEXT("TP " << tensor_parallel << ", PP " << pipeline_parallel) {
      Ranks ranks(tensor_parallel, pipeline_parallel);
      const std::int32_t vocab_size = ranks.runner(0).describe().vocab_size;
      const auto sample = [&](const SchedulerOutput& step,
                              const std::vector<std::vector<TokenId>>& rows) {
        return sampled_by(ranks.execute({step}, allow(vocab_size, rows)));
      };
      using Tokens = std::vector<TokenId>;
      const auto per_element = boost::test_tools::per_element();
      // A bit of each place in a word, and the last of all.
      const TokenId last = vocab_size - 1;
      BOOST_TEST(sample(first_step(kPrompt), {{last}}) == Tokens{last}, per_element);
      std::int32_t num_computed = 3;
      for (const TokenId token : {0, 31, 32, 63, 64, 95})
        BOOST_TEST(sample(next_step(num_computed++), {{token}}) == Tokens{token}, per_element);

      // Of three places, the first mask allows the first draft, the second one not the second.
      SchedulerOutput drafted = next_step(num_computed);
      drafted.num_scheduled_tokens = {3};
      drafted.total_num_scheduled_tokens = 3;
      drafted.num_draft_tokens = {2};
      drafted.draft_token_ids = {40, 50};
      BOOST_TEST(sample(drafted, {{40}, {51}, {60}}) == (Tokens{40, 51}), per_element);
      num_computed += 2;
      drafted.cached_requests.num_computed_tokens = {num_computed};
      BOOST_TEST(sample(drafted, {{40}, {50}, {60}}) == (Tokens{40, 50, 60}), per_element);

      // The best of several is that of a request which may have no others, and which has no mask.
      const Tokens several = {5, 77, 200, 201, 300};
      SchedulerOutput two = first_step(kPrompt);
      two.preempted_ids = {kRequest};
      two.new_requests.push_back(two.new_requests[0]);
      two.new_requests[1].id = RequestId{2};
      two.new_requests[1].block_ids = {{3, 4}};
      two.new_requests[1].params.allowed_token_ids = several;
      two.scheduled_ids.push_back(RequestId{2});
      two.num_scheduled_tokens = {3, 3};
      two.total_num_scheduled_tokens = 6;
      const Tokens both = sample(two, {several});
      BOOST_TEST_REQUIRE(both.size() == 2u);
      BOOST_TEST(both[0] == both[1]);
      BOOST_TEST(std::ranges::count(several, both[0]) == 1);

      // Without one the model has its way again.
      const Tokens free = sampled_by(ranks.execute({next_step(3)}));
      BOOST_TEST(free.size() == 1u);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_step_that_is_not_sampled_fails_with_the_next_one_and_none_after_it) {
  Ranks ranks(1);
  ModelRunner& runner = ranks.runner(0);
  const TokenId expected = Ranks(1).sample(first_step(kPrompt));
  SchedulerOutput first = first_step(kPrompt);
  first.step = 1;
  BOOST_TEST(runner.execute_model(first).ok());
  SchedulerOutput second = next_step(3);
  second.step = 2;
  const auto failed = runner.execute(second);
  BOOST_REQUIRE(!failed.ok());
  BOOST_TEST(failed.error().message == "step 2 came before step 1 was sampled");
  // As the Scheduler continues: the request is preempted, and resumed.
  SchedulerOutput again = first_step(kPrompt);
  again.step = 3;
  again.preempted_ids = {kRequest};
  BOOST_TEST(ranks.sample(again) == expected);
}

/// The same prompt with two adapters.
SchedulerOutput step_with_each(const std::vector<LoraRequest>& loaded, std::size_t num_groups = 1) {
  BOOST_TEST_REQUIRE(loaded.size() == 2u);
  SchedulerOutput step = first_step(kPrompt, num_groups);
  step.new_requests.push_back(step.new_requests[0]);
  step.new_requests[1].id = RequestId{2};
  for (std::vector<BlockId>& blocks : step.new_requests[1].block_ids)
    for (BlockId& block : blocks) block += static_cast<BlockId>(2 * num_groups);
  for (std::size_t i = 0; i < 2; ++i) {
    step.new_requests[i].lora = loaded[i];
    step.new_requests[i].params.logprobs = 3;
  }
  step.scheduled_ids.push_back(RequestId{2});
  step.num_scheduled_tokens = {3, 3};
  step.total_num_scheduled_tokens = 6;
  return step;
}

BOOST_AUTO_TEST_CASE(an_adapter_that_one_rank_cannot_read_again_fails_its_request_alone) {
  const fs::path golden = TROUPE_GOLDEN_DIR "/adapters";
  const fs::path folder =
      fs::temp_directory_path() / ("troupe-lost-adapter-" + std::to_string(getpid()));
  const AdapterOptions adapters{.enabled = true,
                                .max_in_step = 2,
                                .max_loaded = 2,
                                .modules = {{.name = "gone", .path = folder.string()},
                                            {.name = "kept", .path = golden / "llama_all"}}};
  std::vector<TokenId> expected;
  for (const std::size_t losing_rank : {2u, 0u, 1u}) {  // 2: none
    fs::copy(golden / "llama_qv", folder);
    Ranks ranks(2, 1, "auto", TROUPE_GOLDEN_DIR "/models/models/llama", {}, "cpu", adapters);
    const SchedulerOutput step = step_with_each(ranks.runner(0).adapters()->list());
    // It takes the room of the one that was loaded first.
    if (losing_rank < 2)
      BOOST_REQUIRE(ranks.runner(losing_rank)
                        .adapters()
                        ->load({.name = "other", .path = golden / "llama_head"})
                        .ok());
    fs::remove_all(folder);
    const auto results = ranks.execute({step});
    for (std::size_t rank = 0; rank < 2; ++rank) {
      BOOST_REQUIRE_MESSAGE(results[rank].ok(),
                            (results[rank].ok() ? "" : results[rank].error().message));
      const auto& errors = results[rank]->request_errors;
      BOOST_TEST_REQUIRE(errors.size() == (losing_rank < 2 ? 1u : 0u));
      if (!errors.empty()) BOOST_CHECK(errors[0].first == kRequest);
      const auto& tokens = results[rank]->sampled_token_ids;
      if (tokens.empty()) continue;
      if (losing_rank == 2)
        expected = tokens;
      else
        BOOST_TEST(tokens == std::vector<TokenId>{expected.at(1)},
                   boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_CASE(adapters_give_the_same_bits_on_any_number_of_ranks) {
  AdapterOptions adapters{.enabled = true, .max_in_step = 2, .max_loaded = 2};
  for (const std::string name : {"llama_all", "llama_head"})
    adapters.modules.push_back({.name = name, .path = TROUPE_GOLDEN_DIR "/adapters/" + name});
  for (const std::string quantization : {"auto", "int8"}) {
    for (const std::string& device : {std::string("cpu"), testing::test_device()}) {
      if (device != "cpu" && (quantization != "auto" || cuda_emulated_device() == nullptr))
        continue;
      std::vector<TokenId> tokens;
      LogprobRows logprobs;
      for (const auto& [tensor, pipeline] :
           {std::pair(1, 1), std::pair(2, 1), std::pair(4, 1), std::pair(1, 2), std::pair(2, 2)}) {
        if (device != "cpu" && tensor * pipeline > 2) continue;
        BOOST_TEST_CONTEXT(tensor << " by " << pipeline << ", " << quantization << ", " << device) {
          Ranks ranks(tensor, pipeline, quantization, TROUPE_GOLDEN_DIR "/models/models/llama", {},
                      device, adapters);
          const SchedulerOutput step = step_with_each(ranks.runner(0).adapters()->list());
          for (const auto& result : ranks.execute({step})) {
            BOOST_REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.error().message));
            if (result->sampled_token_ids.empty()) continue;
            if (tokens.empty()) {
              tokens = result->sampled_token_ids;
              logprobs = result->logprobs;
            }
            BOOST_TEST(result->sampled_token_ids == tokens, boost::test_tools::per_element());
            BOOST_CHECK(result->logprobs == logprobs);
          }
        }
      }
      BOOST_TEST(tokens.size() == 2u);
    }
  }
}

BOOST_AUTO_TEST_CASE(adapters_of_experts_latents_and_states_give_the_same_bits_on_any_ranks) {
  for (const auto& [base, name] : {std::pair("qwen3_moe", "qwen3_moe_experts"),
                                   {"qwen2_moe", "qwen2_moe_shared"},
                                   {"gpt_oss", "gpt_oss_experts"},
                                   {"llama4_text", "llama4_experts"},
                                   {"deepseek_v3", "deepseek_v3_all"},
                                   {"bamba", "bamba_in"}}) {
    if (testing::kSanitized && std::string_view(base) != "qwen3_moe") continue;
    AdapterOptions adapters{.enabled = true, .max_in_step = 2, .max_loaded = 2};
    for (const char* const loaded_as : {"first", "second"})
      adapters.modules.push_back(
          {.name = loaded_as, .path = TROUPE_GOLDEN_DIR "/adapters/" + std::string(name)});
    std::vector<TokenId> tokens;
    LogprobRows logprobs;
    for (const auto& [tensor, pipeline, expert_parallel] : {std::tuple(1, 1, false),
                                                            {2, 1, false},
                                                            {4, 1, false},
                                                            {2, 1, true},
                                                            {4, 1, true},
                                                            {1, 2, false}}) {
      if (expert_parallel && std::string_view(base) == "bamba") continue;
      BOOST_TEST_CONTEXT(name << " on " << tensor << " by " << pipeline
                              << (expert_parallel ? ", whole experts" : "")) {
        Ranks ranks(tensor, pipeline, "auto",
                    TROUPE_GOLDEN_DIR "/models/models/" + std::string(base), {}, "cpu", adapters,
                    expert_parallel);
        const SchedulerOutput step =
            step_with_each(ranks.runner(0).adapters()->list(), ranks.num_groups());
        for (const auto& result : ranks.execute({step})) {
          BOOST_REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.error().message));
          if (result->sampled_token_ids.empty()) continue;
          if (tokens.empty()) {
            tokens = result->sampled_token_ids;
            logprobs = result->logprobs;
          }
          BOOST_TEST(result->sampled_token_ids == tokens, boost::test_tools::per_element());
          BOOST_CHECK(result->logprobs == logprobs);
        }
      }
    }
    BOOST_TEST(tokens.size() == 2u);
  }
}

std::vector<TokenId> tokens_of(Ranks ranks) {
  std::vector<TokenId> tokens = {ranks.sample(first_step(kPrompt, ranks.num_groups()))};
  for (std::int32_t computed = 3; computed < 8; ++computed)
    tokens.push_back(ranks.sample(next_step(computed)));
  return tokens;
}

BOOST_AUTO_TEST_CASE(ranks_that_failed_meet_anew_and_go_on_with_the_same_tokens) {
  const std::vector<TokenId> expected = tokens_of(Ranks(1));
  for (const auto& [tensor, pipeline] : {std::pair(2, 1), std::pair(1, 2), std::pair(2, 2)}) {
    BOOST_TEST_CONTEXT(tensor << " by " << pipeline) {
      Ranks ranks(tensor, pipeline);
      BOOST_TEST(ranks.sample(first_step(kPrompt)) == expected[0]);
      BOOST_TEST(ranks.sample(next_step(3)) == expected[1]);

      // The last rank gets a step of an unknown request.
      std::vector<SchedulerOutput> steps(ranks.size(), next_step(4));
      steps.back() = next_step(4, RequestId{99});
      for (const auto& result : ranks.execute(steps)) {
        // A first stage may have finished before it detects the failure.
        if (result.ok()) BOOST_TEST(result->sampled_token_ids.empty());
      }
      // So does every step until they have met again.
      const auto results = ranks.execute({next_step(4)});
      BOOST_TEST(!results.back().ok());

      ranks.meet(1);
      SchedulerOutput again =
          first_step({kPrompt[0], kPrompt[1], kPrompt[2], expected[0], expected[1]});
      again.preempted_ids = {kRequest};
      BOOST_TEST(ranks.sample(again) == expected[2]);
      BOOST_TEST(ranks.sample(next_step(5)) == expected[3]);
      BOOST_TEST(ranks.sample(next_step(6)) == expected[4]);
    }
  }
}

/// A request that takes part in three steps with so many tokens, drafts included.
struct Part {
  std::size_t prompt_length = 0;
  std::array<std::int32_t, 3> num_tokens{};
  bool scores_prompt = false;
  std::vector<TokenId> drafts = {};  ///< of the second step
};

void append_row(const LogprobRows& from, std::size_t row, std::size_t& entry, LogprobRows& to) {
  to.row_sizes.push_back(from.row_sizes[row]);
  for (std::int32_t n = 0; n < from.row_sizes[row]; ++n, ++entry) {
    to.token_ids.push_back(from.token_ids[entry]);
    to.logprobs.push_back(from.logprobs[entry]);
    to.ranks.push_back(from.ranks[entry]);
  }
}

/// What a request has got in the three steps.
struct Got {
  std::vector<TokenId> tokens;
  LogprobRows logprobs;
  LogprobRows prompt_logprobs;
  bool operator==(const Got&) const = default;
};

/// The three steps with some of the parts.
std::vector<Got> run_parts(Ranks& ranks, const std::vector<Part>& parts,
                           const std::vector<std::size_t>& chosen) {
  constexpr std::int32_t kBlocks = 6;
  std::vector<Got> got(parts.size());
  std::vector<std::int32_t> num_computed(parts.size());
  for (std::size_t turn = 0; turn < 3; ++turn) {
    SchedulerOutput step;
    for (const std::size_t i : chosen) {
      const Part& part = parts[i];
      const std::int32_t num_tokens = part.num_tokens[turn];
      if (num_tokens == 0) continue;
      const RequestId id{i + 1};
      if (num_computed[i] == 0) {
        NewRequestData& data = step.new_requests.emplace_back();
        data.id = id;
        for (std::size_t t = 0; t < part.prompt_length; ++t)
          data.token_ids.push_back(static_cast<TokenId>((97 * i + 31 * t + 5) % 500));
        data.num_prompt_tokens = static_cast<std::int32_t>(part.prompt_length);
        data.params.temperature = 0;
        data.params.logprobs = 3;
        if (part.scores_prompt) data.params.prompt_logprobs = 2;
        for (std::size_t group = 0; group < ranks.num_groups(); ++group) {
          const auto first = 1 + kBlocks * static_cast<BlockId>(i * ranks.num_groups() + group);
          std::vector<BlockId>& blocks = data.block_ids.emplace_back(kBlocks);
          std::iota(blocks.begin(), blocks.end(), first);
        }
      } else {
        step.cached_requests.ids.push_back(id);
        step.cached_requests.num_computed_tokens.push_back(num_computed[i]);
        step.cached_requests.num_output_tokens.push_back(
            static_cast<std::int32_t>(got[i].tokens.size()));
      }
      const std::vector<TokenId> drafts = turn == 1 ? part.drafts : std::vector<TokenId>();
      step.scheduled_ids.push_back(id);
      step.num_scheduled_tokens.push_back(num_tokens);
      step.total_num_scheduled_tokens += num_tokens;
      step.num_draft_tokens.push_back(static_cast<std::int32_t>(drafts.size()));
      step.draft_token_ids.insert(step.draft_token_ids.end(), drafts.begin(), drafts.end());
      num_computed[i] += num_tokens;
    }
    for (const Result<ModelRunnerOutput>& result : ranks.execute({step})) {
      BOOST_REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.error().message));
      if (result->ids.empty()) continue;  // another rank's
      BOOST_TEST(result->request_errors.empty());
      BOOST_REQUIRE((result->ids == step.scheduled_ids));
      auto token = result->sampled_token_ids.begin();
      std::size_t row = 0;
      std::size_t entry = 0;
      for (std::size_t n = 0; n < result->ids.size(); ++n) {
        const std::size_t i = static_cast<std::size_t>(value(result->ids[n])) - 1;
        for (std::int32_t sampled = 0; sampled < result->num_sampled[n]; ++sampled) {
          got[i].tokens.push_back(*token++);
          append_row(result->logprobs, row++, entry, got[i].logprobs);
        }
        if (step.num_draft_tokens[n] > 0)
          num_computed[i] -= step.num_draft_tokens[n] + 1 - result->num_sampled[n];
      }
      for (const PromptLogprobs& scores : result->prompt_logprobs)
        got[static_cast<std::size_t>(value(scores.id)) - 1].prompt_logprobs = scores.rows;
    }
  }
  SchedulerOutput last;
  for (const std::size_t i : chosen) last.finished_ids.push_back(RequestId{i + 1});
  for (const auto& result : ranks.execute({last})) BOOST_TEST(result.ok());
  return got;
}

BOOST_AUTO_TEST_CASE(requests_of_all_kinds_in_one_step_get_what_each_gets_alone) {
  for (const std::string name :
       {"llama",       "gemma3_text", "mistral",    "mixtral", "phi3",      "olmo2",
        "granite",     "smollm3",     "glm4",       "gemma2",  "qwen2_moe", "gpt_oss_mxfp4",
        "llama4_text", "deepseek_v3", "mamba2",     "bamba",   "falcon_h1", "granite_hybrid",
        "olmo3",       "glm4_moe",    "deepseek_v2"}) {
    const std::string model = TROUPE_GOLDEN_DIR "/models/models/" + name;
    Ranks one(1, 1, "auto", model);
    // Of the 6 heads of Falcon-H1's state space, four ranks have 3 each.
    const bool has_states =
        name == "mamba2" || name == "bamba" || name == "falcon_h1" || name == "granite_hybrid";
    // In the second step: a prompt's middle chunk, a decode, a whole prompt, a chunk of a scored
    // one, a decode with drafts, a whole prompt that is scored, another middle chunk. More is asked
    // for than logits are computed at once.
    std::vector<Part> parts = {{40, {12, 18, 10}},     {5, {5, 1, 1}}, {7, {0, 7, 1}},
                               {90, {6, 75, 9}, true}, {6, {6, 1, 1}}, {9, {0, 9, 1}, true},
                               {17, {3, 8, 6}}};
    // Its output without drafts gives two that are accepted, and one that is not.
    const std::vector<TokenId> said =
        run_parts(one, {parts[4], {}, {}, {}, parts[4]}, {4})[4].tokens;
    BOOST_REQUIRE(said.size() == 3U);
    parts[4] = {6, {6, 4, 1}, false, {said[1], said[2], -1}};
    std::vector<Got> alone;
    for (std::size_t i = 0; i < parts.size(); ++i) alone.push_back(run_parts(one, parts, {i})[i]);
    const std::array<std::size_t, 7> num_tokens = {1, 3, 2, 1, 5, 2, 1};
    const std::array<std::size_t, 7> num_scored = {0, 0, 0, 89, 0, 8, 0};
    for (std::size_t i = 0; i < parts.size(); ++i) {
      BOOST_TEST(alone[i].tokens.size() == num_tokens[i], name << ", request " << i);
      BOOST_TEST(alone[i].prompt_logprobs.row_sizes.size() == num_scored[i],
                 name << ", request " << i);
    }
    for (const auto& [tensor, pipeline] :
         {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2), std::pair(2, 2), std::pair(4, 1)}) {
      if (tensor == 4 && !has_states) continue;  // others: tests of four ranks are above and below
      Ranks ranks(tensor, pipeline, "auto", model);
      const std::vector<Got> together = run_parts(ranks, parts, {0, 1, 2, 3, 4, 5, 6});
      // Of a step with nothing but middle chunks, no hidden state is asked for.
      const std::vector<Got> chunks = run_parts(ranks, parts, {6, 0});
      for (std::size_t i = 0; i < parts.size(); ++i) {
        BOOST_TEST((together[i] == alone[i]),
                   name << " on " << tensor << " by " << pipeline << ", request " << i);
        if (i == 0 || i == 6)
          BOOST_TEST((chunks[i] == alone[i]),
                     name << " on " << tensor << " by " << pipeline << ", chunks of " << i);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_rank_whose_cache_cannot_be_made_has_left_the_others) {
  {
    // The other ranks detect it, instead of waiting until the deadline.
    Ranks ranks(2);
    (void)ranks.sample(first_step(kPrompt));
    BOOST_TEST(!ranks.initialize(0, 64).ok());
    const auto result = ranks.runner(1).execute(next_step(3));
    BOOST_REQUIRE(!result.ok());
    BOOST_TEST(result.error().message.find("serve another engine") != std::string::npos,
               result.error().message);
  }
  // Samples of earlier steps are not awaited any more: the ranks reconnect, and restart.
  Ranks ranks(2);
  const TokenId token = ranks.sample(first_step(kPrompt));
  for (const std::size_t rank : {0, 1}) BOOST_TEST(!ranks.initialize(rank, 64).ok());
  ranks.meet(1);
  for (const std::size_t rank : {0, 1}) BOOST_TEST(ranks.initialize(rank).ok());
  ranks.meet(2);
  BOOST_TEST(ranks.sample(first_step(kPrompt)) == token);
}

BOOST_AUTO_TEST_CASE(ranks_that_share_quantised_layers_give_the_tokens_of_one) {
  for (const std::string quantization : {"int8", "int4"}) {
    const std::vector<TokenId> expected = tokens_of(Ranks(1, 1, quantization));
    BOOST_TEST((tokens_of(Ranks(2, 1, quantization)) == expected), quantization);
    BOOST_TEST((tokens_of(Ranks(2, 2, quantization)) == expected), quantization);
  }
}

BOOST_AUTO_TEST_CASE(ranks_that_share_experts_give_the_tokens_of_one) {
  for (const std::string name : {"mixtral", "qwen3_moe", "qwen2_moe", "gpt_oss", "gpt_oss_mxfp4",
                                 "llama4_text", "deepseek_v3"}) {
    const std::string model = TROUPE_GOLDEN_DIR "/models/models/" + name;
    for (const std::string quantization : {"auto", "int8", "int4"}) {
      if (name == "gpt_oss_mxfp4" && quantization != "auto") continue;
      const std::vector<TokenId> expected = tokens_of(Ranks(1, 1, quantization, model));
      for (const std::int32_t size : {2, 4})
        for (const bool expert_parallel : {false, true})
          BOOST_TEST((tokens_of(Ranks(size, 1, quantization, model, {}, "cpu", {},
                                      expert_parallel)) == expected),
                     name << " in " << quantization << " on " << size
                          << (expert_parallel ? ", whole experts" : ""));
    }
  }
}

BOOST_AUTO_TEST_CASE(ranks_that_share_a_quantised_checkpoint_give_the_tokens_of_one) {
  using enum QuantizedFormat;
  const fs::path folder =
      fs::temp_directory_path() / ("quantized-ranks-" + std::to_string(getpid()));
  // In phi3 ranks have rows of one matrix for q, k and v.
  for (const auto& [name, options] :
       {std::pair<std::string, QuantizedOptions>{"llama", {kGptq, 4, 128, false}},
        {"llama", {kGptq, 4, 32, true, true}},
        {"llama", {kAwq, 4, 64, false}},
        {"llama", {kPacked, 4, 0, true}},
        {"llama", {kInt8, 8, 0, true}},
        {"llama", {kFp8Block, 8, 0, true}},
        {"phi3", {kPacked, 4, 0, true}},
        {"phi3", {kInt8, 8, 0, true}}}) {
    write_quantized_model(TROUPE_GOLDEN_DIR "/models/models/" + name, options, folder / "quantized",
                          folder / "widened");
    const std::string model = folder / "quantized";
    const std::vector<TokenId> expected = tokens_of(Ranks(1, 1, "auto", model));
    BOOST_TEST((tokens_of(Ranks(2, 1, "auto", model)) == expected));
    BOOST_TEST((tokens_of(Ranks(4, 1, "auto", model)) == expected));
  }
  fs::remove_all(folder);
}

BOOST_AUTO_TEST_CASE(ranks_on_devices_give_the_tokens_of_one) {
  const std::string model = TROUPE_GOLDEN_DIR "/models/models/llama";
  const std::string device = testing::test_device();
  const std::vector<TokenId> expected = tokens_of(Ranks(1));
  for (const auto& [tensor, pipeline] : {std::pair(1, 1), {2, 1}, {4, 1}, {1, 2}, {2, 2}})
    BOOST_TEST((tokens_of(Ranks(tensor, pipeline, "auto", model, {}, device)) == expected),
               tensor << " by " << pipeline);
}

BOOST_AUTO_TEST_CASE(ranks_that_share_a_draft_model_draft_what_one_does) {
  const std::string model = TROUPE_GOLDEN_DIR "/models/models/llama";
  const std::vector<TokenId> expected = tokens_of(Ranks(1));
  const std::string cpu = "cpu";
  const std::string gpu = testing::test_device();
  for (const auto& [size, device] : {std::pair(1, cpu), {2, cpu}, {4, cpu}, {1, gpu}, {2, gpu}}) {
    BOOST_TEST_CONTEXT(size << " ranks on " << device) {
      Ranks ranks(size, 1, "auto", model, {.num_draft_tokens = kNumDrafts, .draft_model = model},
                  device);
      auto results = ranks.execute({first_step(kPrompt)});
      for (const auto& result : results) BOOST_REQUIRE(result.ok());
      // The model drafts for itself, and so guesses right.
      std::vector<TokenId> drafts(expected.begin() + 1, expected.begin() + 4);
      BOOST_TEST((results[0]->sampled_token_ids == std::vector{expected[0]}));
      BOOST_TEST((results[0]->draft_token_ids == std::vector{std::pair(kRequest, drafts)}));
      drafts.back() ^= 1;
      SchedulerOutput step = next_step(3);
      step.num_scheduled_tokens = {4};
      step.total_num_scheduled_tokens = 4;
      step.num_draft_tokens = {3};
      step.draft_token_ids = drafts;
      results = ranks.execute({step});
      for (const auto& result : results) BOOST_REQUIRE(result.ok());
      BOOST_TEST((results[0]->sampled_token_ids ==
                  std::vector(expected.begin() + 1, expected.begin() + 4)));
      BOOST_REQUIRE(results[0]->draft_token_ids.size() == 1U);
      drafts = results[0]->draft_token_ids[0].second;
      BOOST_TEST((std::vector(drafts.begin(), drafts.begin() + 2) ==
                  std::vector(expected.begin() + 4, expected.end())));
      for (std::size_t rank = 1; rank < ranks.size(); ++rank)
        BOOST_TEST(results[rank]->draft_token_ids.empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(the_last_stage_drafts_what_one_rank_does) {
  const std::string model = TROUPE_GOLDEN_DIR "/models/models/llama";
  const std::string head = TROUPE_GOLDEN_DIR "/draft_heads/llama_eagle";
  struct Drafter {
    DraftHeadKind kind;
    std::string folder;
  };
  for (const Drafter& drafter :
       {Drafter{DraftHeadKind::kNone, model},
        {DraftHeadKind::kEagle, head},
        {DraftHeadKind::kEagle3, TROUPE_GOLDEN_DIR "/draft_heads/llama_eagle3"}}) {
    std::vector<TokenId> alone, alone_later;
    for (const auto& [tensor, pipeline] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) {
      BOOST_TEST_CONTEXT(drafter.folder << ", " << tensor << " by " << pipeline) {
        Ranks ranks(tensor, pipeline, "auto", model,
                    {.num_draft_tokens = kNumDrafts,
                     .draft_model = drafter.folder,
                     .draft_head = drafter.kind});
        const auto results = ranks.execute({first_step(kPrompt)});
        std::vector<TokenId> drafts;
        for (const auto& result : results) {
          BOOST_REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.error().message));
          for (const auto& [id, guesses] : result->draft_token_ids) drafts = guesses;
        }
        BOOST_TEST(drafts.size() == 3U);
        if (alone.empty()) alone = drafts;
        BOOST_TEST(drafts == alone, boost::test_tools::per_element());

        // Stopped for one step: a model computes its token later, a head cannot.
        SchedulerOutput stopped = next_step(3);
        stopped.num_drafts_to_make = stopped.max_draft_rows = 0;
        for (const auto& result : ranks.execute({stopped})) {
          BOOST_REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.error().message));
          BOOST_TEST(result->drafting.num_passes == 0);
        }
        drafts.clear();
        for (const auto& result : ranks.execute({next_step(4)})) {
          BOOST_REQUIRE_MESSAGE(result.ok(), (result.ok() ? "" : result.error().message));
          for (const auto& [id, guesses] : result->draft_token_ids) drafts = guesses;
        }
        BOOST_TEST(drafts.size() == (drafter.kind == DraftHeadKind::kNone ? 3U : 0U));
        if (alone_later.empty()) alone_later = drafts;
        BOOST_TEST(drafts == alone_later, boost::test_tools::per_element());
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_draft_model_that_cannot_be_divided_is_refused) {
  const auto refused =
      ModelRunner::load({.model = TROUPE_GOLDEN_DIR "/models/models/llama",
                         .dtype = "float32",
                         .threads = 1,
                         .max_num_batched_tokens = 64,
                         .parallel = {.tensor_parallel_size = 4},
                         .speculative = {.num_draft_tokens = 3,
                                         .draft_model = TROUPE_GOLDEN_DIR "/models/models/qwen2"}},
                        {});
  BOOST_REQUIRE(!refused.ok());
  const std::string& message = refused.error().message;
  BOOST_TEST(message.find("qwen2: tensor-parallel-size 4: ") != std::string::npos, message);
}

BOOST_AUTO_TEST_CASE(a_rank_without_its_peers_says_so) {
  const std::string rendezvous = "shm:troupe-alone-" + std::to_string(getpid());
  auto alone = ModelRunner::load({.model = TROUPE_GOLDEN_DIR "/models/models/llama",
                                  .dtype = "float32",
                                  .threads = 1,
                                  .max_num_batched_tokens = 64,
                                  .parallel = {.tensor_parallel_size = 2,
                                               .rank = 1,
                                               .rendezvous = rendezvous,
                                               .timeout_s = 0.1}},
                                 {});
  BOOST_REQUIRE(alone.ok());
  const auto met = (*alone)->join_group({0});
  BOOST_REQUIRE(!met.ok());
  BOOST_TEST(met.error().message.starts_with("rank 0 did not open " + rendezvous),
             met.error().message);
}

// ---- extensions around a step -------------------------------------------------------------------

using Calls = std::vector<std::string>;

/// Writes down how it is called, under its name.
class Recorder final : public StepExtension {
 public:
  Recorder(std::string name, Calls& calls, bool has_layer_hooks = true)
      : name_(std::move(name)), calls_(calls), has_layer_hooks_(has_layer_hooks) {}
  Result<void> before_forward(const SchedulerOutput& step) override {
    note("before");
    if (step.step == fails_at) return Error{ErrorCode::kUnavailable, "made to fail"};
    return {};
  }
  void before_layer(std::int32_t layer) override { note("layer " + std::to_string(layer)); }
  void after_layer(std::int32_t layer) override { note("end of layer " + std::to_string(layer)); }
  Result<void> after_forward() override {
    note("after");
    return {};
  }
  void report(ModelRunnerOutput& output) override {
    note("report");
    output.kv_connector.finished_sending.push_back(RequestId{output.step});
  }
  [[nodiscard]] bool has_layer_hooks() const noexcept override { return has_layer_hooks_; }

  std::uint64_t fails_at = ~std::uint64_t{0};

 private:
  void note(const std::string& what) { calls_.push_back(name_ + " " + what); }

  std::string name_;
  Calls& calls_;
  bool has_layer_hooks_;
};

/// Of a recorder a and one b without hooks, for the layers [begin, end).
Calls calls_of_a_step(std::size_t begin, std::size_t end) {
  Calls calls = {"a before", "b before"};
  for (std::size_t layer = begin; layer < end; ++layer) {
    calls.push_back("a layer " + std::to_string(layer));
    calls.push_back("a end of layer " + std::to_string(layer));
  }
  for (const char* call : {"a after", "b after", "a report", "b report"}) calls.emplace_back(call);
  return calls;
}

BOOST_AUTO_TEST_CASE(extensions_are_called_in_order_around_each_layer_of_every_family) {
  for (const std::string family :
       {"gemma3_text", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"}) {
    const std::string folder = TROUPE_GOLDEN_DIR "/models/models/" + family;
    std::vector<TokenId> tokens;
    std::vector<std::size_t> nums_layers;
    for (const std::int32_t stages : {1, 2}) {
      BOOST_TEST_CONTEXT(family << ", PP " << stages) {
        Ranks ranks(1, stages, "auto", folder);
        SchedulerOutput step = first_step({11, 22, 33});
        step.new_requests[0].block_ids.assign(ranks.num_groups(), {1, 2});
        tokens.push_back(ranks.sample(step));  // without extensions
        std::vector<Calls> calls(ranks.size());
        for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
          ranks.runner(rank).add_extension(std::make_unique<Recorder>("a", calls[rank]));
          ranks.runner(rank).add_extension(std::make_unique<Recorder>("b", calls[rank], false));
        }
        step.preempted_ids = {kRequest};
        tokens.push_back(ranks.sample(step));
        std::size_t end = 0;  // of the layers of the ranks so far
        for (const Calls& of_rank : calls) {
          const std::size_t begin = end;
          end += static_cast<std::size_t>(std::ranges::count_if(
              of_rank, [](const std::string& call) { return call.starts_with("a layer "); }));
          BOOST_TEST(end > begin);
          BOOST_TEST(of_rank == calls_of_a_step(begin, end), boost::test_tools::per_element());
        }
        nums_layers.push_back(end);
      }
    }
    BOOST_TEST(std::ranges::count(tokens, tokens.front()) == 4);
    BOOST_TEST(nums_layers[0] == nums_layers[1]);
  }
}

BOOST_AUTO_TEST_CASE(a_step_without_tokens_is_told_to_the_extensions_and_they_report) {
  Ranks ranks(1);
  Calls calls;
  ranks.runner(0).add_extension(std::make_unique<Recorder>("a", calls));
  const auto result = ranks.runner(0).execute({.step = 7});
  BOOST_REQUIRE(result.ok());
  BOOST_TEST(calls == (Calls{"a before", "a report"}), boost::test_tools::per_element());
  BOOST_TEST((result->kv_connector.finished_sending == std::vector{RequestId{7}}));
}

BOOST_AUTO_TEST_CASE(an_extension_that_fails_fails_the_step_and_not_the_one_behind_it) {
  Ranks ranks(1);
  const TokenId expected = ranks.sample(first_step({11, 22, 33}));
  Calls calls;
  auto owned = std::make_unique<Recorder>("a", calls);
  Recorder& extension = *owned;
  ranks.runner(0).add_extension(std::move(owned));
  SchedulerOutput step = first_step({11, 22, 33});
  step.preempted_ids = {kRequest};
  step.step = extension.fails_at = 2;
  const auto failed = ranks.runner(0).execute(step);
  BOOST_REQUIRE(!failed.ok());
  BOOST_TEST(failed.error().message == "made to fail");
  BOOST_TEST(calls == Calls{"a before"}, boost::test_tools::per_element());
  step.step = 3;
  BOOST_TEST(ranks.sample(step) == expected);
}

}  // namespace
}  // namespace troupe
