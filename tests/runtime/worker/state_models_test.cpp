// Models whose layers keep states: the same bits in any batch, in any chunks, behind drafts that do
// not come true, and on any number of ranks.

#include <boost/test/unit_test.hpp>
#include <string>

#include "runtime/cache/kv_cache_config.hpp"
#include "tests/support/replay_models_driver.hpp"
#include "tests/support/sanitized.hpp"

namespace troupe {
namespace {

std::string state_model(const std::string& name) {
  return TROUPE_GOLDEN_DIR "/models/models/" + name;
}

/// Greedy and random, with and without scores of the prompt.
std::vector<DriverJob> state_jobs() {
  std::vector<DriverJob> jobs;
  for (const std::size_t length : {1u, 2u, 19u, 33u, 70u}) {
    DriverJob job{.prompt = {}, .params = {}, .num_outputs = 8};
    for (std::size_t i = 0; i < length; ++i)
      job.prompt.push_back(static_cast<TokenId>((7 * i + 5 * length) % 500));
    job.params.temperature = length % 2 == 0 ? 0.0f : 0.8f;
    job.params.philox_key = length;
    job.params.logprobs = 3;
    if (length == 19) job.params.prompt_logprobs = 2;
    jobs.push_back(job);
  }
  return jobs;
}

BOOST_AUTO_TEST_CASE(states_do_not_depend_on_batch_chunks_preemption_or_drafts) {
  const std::vector<DriverJob> jobs = state_jobs();
  for (const std::string& isa : available_isas())
    for (const std::string name : {"mamba2", "bamba", "falcon_h1"})
      for (const std::string dtype : {"float32", "bfloat16"}) {
        if (testing::kSanitized && (dtype == "float32" || name == "mamba2")) continue;
        BOOST_TEST_CONTEXT(isa << ", " << name << ", " << dtype) {
          DriverModelOptions options{.folder = state_model(name), .dtype = dtype, .isa = isa};
          DrivenRunner runner = load_driven_runner(options);
          const auto alone = drive(runner, jobs, {.max_running = 1});
          BOOST_TEST(alone.front().tokens.size() == 8u);
          BOOST_TEST((drive(runner, jobs, {}) == alone), "batched together");
          BOOST_TEST((drive(runner, jobs, {.token_budget = 7}) == alone), "in chunks");
          BOOST_TEST((drive(runner, jobs,
                            {.token_budget = 50, .preempt_every = 3, .oracle = &alone}) == alone),
                     "with drafts, in chunks, preempted");
          options.threads = 1;
          options.block_size = 32;
          DrivenRunner other = load_driven_runner(options);
          BOOST_TEST((drive(other, jobs, {}) == alone), "one thread, other blocks");
        }
      }
}

BOOST_AUTO_TEST_CASE(a_state_and_a_block_of_attention_get_pages_of_one_size) {
  const TokenShape token{.num_kv_heads = 2, .head_dim = 16, .dtype = DType::kF32};  // 256 bytes
  std::vector<KVCacheSpec> layers = {
      {.kind = MambaSpec{.state_bytes = 10000}, .block_size = 16},
      {.kind = FullAttentionSpec{token}, .block_size = 16},
  };
  plan_states(layers, {.prefix_caching = true, .num_draft_tokens = 3, .max_model_len = 2048});
  BOOST_TEST(layers[1].block_size == 48);
  BOOST_TEST(layers[1].page_bytes() == 12288);
  BOOST_TEST(layers[0].block_size == 48);
  BOOST_TEST(layers[0].page_bytes() == 12288);
  const auto& states = std::get<MambaSpec>(layers[0].kind);
  BOOST_TEST((states.mode == MambaMode::kAlign));
  BOOST_TEST(states.num_speculative_blocks == 3);

  // Alone, with one state for all tokens.
  std::vector<KVCacheSpec> alone(2, {.kind = MambaSpec{.state_bytes = 10000}, .block_size = 16});
  plan_states(alone, {.max_model_len = 2048});
  BOOST_TEST(alone[1].block_size == 2048);
  BOOST_TEST(alone[1].page_bytes() == 10000);
}

}  // namespace
}  // namespace troupe
