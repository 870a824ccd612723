#pragma once
// The actors around an engine under test: a client that keeps what it receives, an InputProcessor
// that has nothing to tokenize, a KVCacheManager that counts what it is asked.

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/spawn.hpp"

namespace troupe::testing {

/// What the client has received, by request.
struct FrontendLog {
  std::unordered_map<RequestId, std::vector<TokenId>> token_ids;
  std::unordered_map<RequestId, std::string> text;
  std::unordered_map<RequestId, int> num_finished;
  std::unordered_map<RequestId, FinishReason> finish_reasons;
  std::unordered_map<RequestId, Error> errors;
  std::unordered_map<RequestId, std::int32_t> num_cached_tokens;  ///< of the prompt
  SchedulerStats stats;                                           ///< the latest
  std::size_t num_messages = 0;
  std::atomic<std::size_t> num_ended{
      0};  ///< requests; notified, so that another thread can wait for them

  void wait_for(std::size_t count) const {
    for (std::size_t ended = num_ended; ended < count; ended = num_ended) num_ended.wait(ended);
  }
};

/// Questions that reached the KVCacheManager.
struct CacheLog {
  std::size_t num_questions = 0;
  std::size_t num_updates = 0;
};

/// `output_processor` is null if its requests pass a RequestRouter.
[[nodiscard]] RequestClientActor spawn_fake_client(caf::actor_system& system,
                                                   std::shared_ptr<FrontendLog> log,
                                                   const OutputProcessorActor& output_processor);

/// Hands prompts of tokens on as they are.
[[nodiscard]] InputProcessorActor spawn_fake_input(caf::actor_system& system,
                                                   const OutputProcessorActor& output_processor,
                                                   const SchedulerActor& scheduler);

/// Counts what it is asked and hands it on to `next`.
[[nodiscard]] KVCacheManagerActor spawn_counting_cache(caf::actor_system& system,
                                                       const KVCacheManagerActor& next,
                                                       std::shared_ptr<CacheLog> log);

}  // namespace troupe::testing
