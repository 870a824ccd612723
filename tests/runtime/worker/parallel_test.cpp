// Several ranks of one model, each on a thread of its own, as their Workers run them.
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/worker/model_runner.hpp"
#include "tests/support/quantized_writer.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr RequestId kRequest{1};

class Ranks {
 public:
  explicit Ranks(std::int32_t tensor_parallel_size, std::int32_t pipeline_parallel_size = 1,
                 const std::string& quantization = "auto",
                 const std::string& model = TROUPE_GOLDEN_DIR "/models/models/llama",
                 const SpeculativeDecoding& speculative = {}) {
    static int number = 0;
    ParallelConfig parallel{.tensor_parallel_size = tensor_parallel_size,
                            .pipeline_parallel_size = pipeline_parallel_size,
                            .rendezvous = "shm:troupe-ranks-" + std::to_string(getpid()) + "-" +
                                          std::to_string(++number),
                            .timeout_s = 20};
    for (; parallel.rank < parallel.world_size(); ++parallel.rank) {
      auto runner = ModelRunner::load({.model = model,
                                       .dtype = "float32",
                                       .quantization = quantization,
                                       .threads = 1,
                                       .max_num_batched_tokens = 64,
                                       .parallel = parallel,
                                       .speculative = speculative},
                                      {});
      BOOST_REQUIRE_MESSAGE(runner.ok(), (runner.ok() ? "" : runner.error().message));
      runners_.push_back(std::move(runner).value());
      const ModelLoaded loaded = runners_.back()->describe();
      const KVCacheSpec& spec = loaded.kv_cache_specs.front();
      KVCacheGroup group{.spec = spec, .layers = {}};
      for (std::size_t layer = 0; layer < loaded.kv_cache_specs.size(); ++layer)
        group.layers.push_back(static_cast<std::int32_t>(layer));
      KVCacheConfig config{.num_blocks = 8,
                           .page_bytes = std::vector<std::int64_t>(
                               group.layers.size(), 2 * std::int64_t{spec.num_kv_heads} *
                                                        spec.block_size * spec.head_dim * 4),
                           .groups = {group}};
      BOOST_REQUIRE(runners_.back()->initialize_kv_cache(config).ok());
    }
    meet(0);
  }

  [[nodiscard]] std::size_t size() const { return runners_.size(); }

  void meet(std::uint32_t generation) {
    if (size() == 1) return;
    std::vector<std::string> errors(size());
    on_all([&](std::size_t rank) {
      const auto met = runners_[rank]->join_group({generation});
      if (!met.ok()) errors[rank] = met.error().message;
    });
    for (const std::string& error : errors) BOOST_TEST(error == "");
  }
  /// steps[rank], or the same one for all; the answers by rank.
  std::vector<Result<ModelRunnerOutput>> execute(const std::vector<SchedulerOutput>& steps) {
    std::vector<Result<ModelRunnerOutput>> results(size(), ModelRunnerOutput{});
    on_all([&](std::size_t rank) {
      try {
        results[rank] = runners_[rank]->execute(steps[std::min(rank, steps.size() - 1)]);
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
  void on_all(const std::function<void(std::size_t)>& work) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < size(); ++rank) threads.emplace_back(work, rank);
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<ModelRunner>> runners_;
};

SchedulerOutput first_step(std::vector<TokenId> tokens) {
  const auto num_tokens = static_cast<std::int32_t>(tokens.size());
  NewRequestData request{.id = kRequest, .token_ids = std::move(tokens)};
  request.num_prompt_tokens = 3;
  request.params.temperature = 0;
  request.block_ids = {{1, 2}};
  SchedulerOutput step;
  step.new_requests.push_back(std::move(request));
  step.scheduled_ids = {kRequest};
  step.num_scheduled_tokens = {num_tokens};
  step.total_num_scheduled_tokens = num_tokens;
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
  return step;
}

const std::vector<TokenId> kPrompt = {11, 222, 333};

std::vector<TokenId> tokens_of(Ranks ranks) {
  std::vector<TokenId> tokens = {ranks.sample(first_step(kPrompt))};
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

      // The last rank is told of a request that it does not know.
      std::vector<SchedulerOutput> steps(ranks.size(), next_step(4));
      steps.back() = next_step(4, RequestId{99});
      for (const auto& result : ranks.execute(steps)) {
        // A first stage may be done before it hears of it.
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

BOOST_AUTO_TEST_CASE(ranks_that_share_quantised_layers_give_the_tokens_of_one) {
  for (const std::string quantization : {"int8", "int4"}) {
    const std::vector<TokenId> expected = tokens_of(Ranks(1, 1, quantization));
    BOOST_TEST((tokens_of(Ranks(2, 1, quantization)) == expected), quantization);
    BOOST_TEST((tokens_of(Ranks(2, 2, quantization)) == expected), quantization);
  }
}

BOOST_AUTO_TEST_CASE(ranks_that_share_a_quantised_checkpoint_give_the_tokens_of_one) {
  using enum QuantizedFormat;
  const fs::path folder =
      fs::temp_directory_path() / ("quantized-ranks-" + std::to_string(getpid()));
  for (const QuantizedOptions& options : {QuantizedOptions{kGptq, 4, 128, false},
                                          {kGptq, 4, 32, true, true},
                                          {kAwq, 4, 64, false},
                                          {kPacked, 4, 0, true},
                                          {kInt8, 8, 0, true},
                                          {kFp8Block, 8, 0, true}}) {
    write_quantized_model(TROUPE_GOLDEN_DIR "/models/models/llama", options, folder / "quantized",
                          folder / "widened");
    const std::string model = folder / "quantized";
    const std::vector<TokenId> expected = tokens_of(Ranks(1, 1, "auto", model));
    BOOST_TEST((tokens_of(Ranks(2, 1, "auto", model)) == expected));
    BOOST_TEST((tokens_of(Ranks(4, 1, "auto", model)) == expected));
  }
  fs::remove_all(folder);
}

BOOST_AUTO_TEST_CASE(ranks_that_share_a_draft_model_draft_what_one_does) {
  const std::string model = TROUPE_GOLDEN_DIR "/models/models/llama";
  const std::vector<TokenId> expected = tokens_of(Ranks(1));
  for (const std::int32_t size : {1, 2, 4}) {
    BOOST_TEST_CONTEXT(size << " ranks") {
      Ranks ranks(size, 1, "auto", model, {.num_draft_tokens = 3, .draft_model = model});
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
  auto alone = ModelRunner::load({.model = TROUPE_GOLDEN_DIR "/models/models/llama",
                                  .dtype = "float32",
                                  .threads = 1,
                                  .max_num_batched_tokens = 64,
                                  .parallel = {.tensor_parallel_size = 2,
                                               .rank = 1,
                                               .rendezvous = "shm:troupe-alone",
                                               .timeout_s = 0.1}},
                                 {});
  BOOST_REQUIRE(alone.ok());
  const auto met = (*alone)->join_group({0});
  BOOST_REQUIRE(!met.ok());
  BOOST_TEST(met.error().message.starts_with("rank 0 did not open shm:troupe-alone"),
             met.error().message);
}

}  // namespace
}  // namespace troupe
