// The cost of the actors: wall time per decode step around a worker that computes nothing, all
// messages included, from the Scheduler's question to the text at the frontend: the median of
// several rounds, with one step at a time and with steps that overlap, with the worker as a
// neighbour and behind shared-memory rings, as in another process, and with a RequestRouter between
// engine and client. The goal is 60 us with 1 and with 64 running requests, and at most 40 more
// through rings.
//
// Usage: bench_actors TOKENIZER_FOLDER [steps] [rounds]
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "actors/system_config.hpp"
#include "tests/support/engine_harness.hpp"

namespace {

using namespace troupe;
using Clock = std::chrono::steady_clock;

double microseconds_per_step(const std::shared_ptr<const Tokenizer>& tokenizer,
                             std::uint64_t num_requests, std::int32_t num_steps,
                             bool async_scheduling, bool through_rings, bool through_router) {
  SystemConfig config;
  caf::actor_system system{config};
  testing::EngineHarness engine(
      system, tokenizer,
      {.num_blocks = static_cast<std::int32_t>(num_requests) * (num_steps / 16 + 4) + 1,
       .max_model_len = num_steps + 64,
       .max_num_batched_tokens = 16384,
       .max_num_seqs = 1024,
       .async_scheduling = async_scheduling,
       .through_rings = through_rings,
       .through_router = through_router});
  const auto start = Clock::now();
  for (std::uint64_t id = 1; id <= num_requests; ++id) {
    std::vector<TokenId> prompt(16);
    std::iota(prompt.begin(), prompt.end(), static_cast<TokenId>(id));
    engine.add(RequestId{id}, std::move(prompt), num_steps);
  }
  engine.frontend_log->wait_for(num_requests);
  const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
  return elapsed.count() / static_cast<double>(engine.worker_log->num_steps);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_actors TOKENIZER_FOLDER [steps] [rounds]\n");
    return 2;
  }
  const std::int32_t num_steps = argc > 2 ? std::atoi(argv[2]) : 2000;
  const int num_rounds = argc > 3 ? std::max(1, std::atoi(argv[3])) : 5;
  auto tokenizer = troupe::Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "bench_actors: %s\n", tokenizer.error().message.c_str());
    return 1;
  }
  std::printf("%10s %10s %10s %10s %16s %16s %16s\n", "running", "overlap", "rings", "router",
              "us per step", "least", "most");
  for (const std::uint64_t num_requests : {1, 8, 64, 256}) {
    struct Variant {
      bool async;
      bool rings;
      bool router;
      std::vector<double> rounds;
    };
    std::array<Variant, 6> variants{{{false, false, false, {}},
                                     {false, false, true, {}},
                                     {false, true, false, {}},
                                     {true, false, false, {}},
                                     {true, false, true, {}},
                                     {true, true, false, {}}}};
    for (int round = 0; round < num_rounds; ++round) {
      for (Variant& variant : variants) {
        variant.rounds.push_back(microseconds_per_step(
            *tokenizer, num_requests, num_steps, variant.async, variant.rings, variant.router));
      }
    }
    for (auto& [async, rings, router, sorted] : variants) {
      std::sort(sorted.begin(), sorted.end());
      std::printf("%10lu %10s %10s %10s %16.1f %16.1f %16.1f\n",
                  static_cast<unsigned long>(num_requests), async ? "yes" : "no",
                  rings ? "yes" : "no", router ? "yes" : "no", sorted[sorted.size() / 2],
                  sorted.front(), sorted.back());
      std::fflush(stdout);
    }
  }
  return 0;
}
