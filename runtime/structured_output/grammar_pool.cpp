#include "runtime/structured_output/grammar_pool.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/guard.hpp"
#include "runtime/structured_output/request_grammar.hpp"

namespace troupe {
namespace {

/// The tokens that end a request: the text of its grammar ends with one of them.
std::vector<TokenId> end_tokens(const SamplingParams& params) {
  std::vector<TokenId> tokens = params.stop_token_ids;
  if (params.eos_token_id) tokens.push_back(*params.eos_token_id);
  return tokens;
}

std::unique_ptr<Grammar> request_grammar(std::shared_ptr<CompiledGrammar> grammar,
                                         const SamplingParams& params,
                                         std::shared_ptr<const Tokenizer> tokenizer) {
  // These may exclude the very token that the tokenizer gives.
  if (!params.logit_bias.empty() || !params.bad_words.empty() || !params.allowed_token_ids.empty())
    tokenizer = nullptr;
  return std::make_unique<RequestGrammar>(GrammarMatcher(std::move(grammar), end_tokens(params)),
                                          std::move(tokenizer));
}

/// Every request of the step ends with the error.
GrammarMasks failed_masks(std::uint64_t step, std::vector<GrammarEnd> ended, const Error& error) {
  for (GrammarEnd& end : ended) end.error = error;
  return {.output = {.step = step}, .ended = std::move(ended)};
}

}  // namespace

/// Run jobs in their order.
class GrammarPool::JobThreads {
 public:
  using Job = std::function<void()>;

  explicit JobThreads(std::size_t num_threads) {
    for (std::size_t i = 0; i < num_threads; ++i)
      threads_.emplace_back([queue = queue_] { queue->run(); });
  }
  /// The pool may end on one of them, with the last of its users.
  ~JobThreads() {
    std::deque<Job> dropped;
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->ended = true;
      dropped.swap(queue_->jobs);
    }
    queue_->changed.notify_all();
    for (std::thread& thread : threads_) {
      if (thread.get_id() == std::this_thread::get_id()) {
        thread.detach();
      } else {
        thread.join();
      }
    }
  }
  JobThreads(const JobThreads&) = delete;
  JobThreads& operator=(const JobThreads&) = delete;

  void add(Job job) {
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->jobs.push_back(std::move(job));
    }
    queue_->changed.notify_one();
  }

 private:
  struct Queue {
    std::mutex mutex;  ///< guards all below
    std::condition_variable changed;
    std::deque<Job> jobs;
    bool ended = false;

    void run() {
      std::unique_lock lock(mutex);
      for (;;) {
        changed.wait(lock, [&] { return ended || !jobs.empty(); });
        if (ended) return;
        Job job = std::move(jobs.front());
        jobs.pop_front();
        lock.unlock();
        job();
        job = nullptr;
        lock.lock();
      }
    }
  };

  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::vector<std::thread> threads_;
};

GrammarPool::GrammarPool(std::shared_ptr<GrammarCache> cache, bool proposes,
                         std::size_t num_compilers)
    : cache_(std::move(cache)),
      tokenizer_(proposes ? cache_->tokenizer() : nullptr),
      compilers_(std::make_unique<JobThreads>(std::max<std::size_t>(num_compilers, 1))),
      filler_(std::make_unique<JobThreads>(1)) {}

GrammarPool::~GrammarPool() = default;

void GrammarPool::compile(const SamplingParams& params, Done done) {
  if (auto known = cache_->find(*params.structured_outputs))
    return done(request_grammar(std::move(known), params, tokenizer_));
  compilers_->add([cache = cache_, tokenizer = tokenizer_, params, done = std::move(done)] {
    std::optional<Result<std::unique_ptr<Grammar>>> result;
    const auto thrown = guard([&] {
      auto compiled = cache->get(*params.structured_outputs);
      if (compiled.ok()) {
        result.emplace(request_grammar(*std::move(compiled), params, tokenizer));
      } else {
        result.emplace(std::move(compiled).error());
      }
    });
    done(thrown ? Result<std::unique_ptr<Grammar>>(*thrown) : std::move(*result));
  });
}

void GrammarPool::fill(GrammarStep step, Filled filled) {
  // A std::function is copied, a step is not.
  const auto owned = std::make_shared<GrammarStep>(std::move(step));
  filler_->add([owned, filled = std::move(filled)] {
    std::vector<GrammarEnd> all;
    for (const GrammarStep::Request& request : owned->requests)
      all.push_back({.id = request.id, .sequence = request.sequence, .step = owned->step});
    GrammarMasks masks;
    const auto thrown = guard([&] { masks = fill_masks(std::move(*owned)); });
    if (thrown) masks = failed_masks(owned->step, std::move(all), *thrown);
    filled(std::move(masks));
  });
}

}  // namespace troupe
