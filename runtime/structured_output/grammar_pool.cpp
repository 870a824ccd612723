#include "runtime/structured_output/grammar_pool.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/guard.hpp"

namespace troupe {
namespace {

/// The tokens that end a request: the text of its grammar ends with one of them.
std::vector<TokenId> end_tokens(const SamplingParams& params) {
  std::vector<TokenId> tokens = params.stop_token_ids;
  if (params.eos_token_id) tokens.push_back(*params.eos_token_id);
  return tokens;
}

}  // namespace

/// Shared with the threads: the pool may end on one of them, with the last of its users.
struct GrammarPool::Work {
  struct Job {
    SamplingParams params;
    Done done;
  };

  explicit Work(std::shared_ptr<GrammarCache> grammars) : cache(std::move(grammars)) {}

  const std::shared_ptr<GrammarCache> cache;
  std::mutex mutex;  ///< guards all below
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool ended = false;
  std::vector<std::thread> threads;

  void run(Job job) const {
    std::optional<Result<std::unique_ptr<Grammar>>> result;
    const auto thrown = guard([&] {
      auto compiled = cache->get(*job.params.structured_outputs);
      if (compiled.ok()) {
        result.emplace(std::make_unique<GrammarMatcher>(*compiled, end_tokens(job.params)));
      } else {
        result.emplace(std::move(compiled).error());
      }
    });
    job.done(thrown ? Result<std::unique_ptr<Grammar>>(*thrown) : std::move(*result));
  }

  void run_all() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return ended || !jobs.empty(); });
      if (ended) return;
      Job job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      run(std::move(job));
      lock.lock();
    }
  }
};

GrammarPool::GrammarPool(std::shared_ptr<GrammarCache> cache, std::size_t num_threads)
    : work_(std::make_shared<Work>(std::move(cache))) {
  for (std::size_t i = 0; i < std::max<std::size_t>(num_threads, 1); ++i)
    work_->threads.emplace_back([work = work_] { work->run_all(); });
}

GrammarPool::~GrammarPool() {
  std::deque<Work::Job> dropped;
  {
    const std::lock_guard lock(work_->mutex);
    work_->ended = true;
    dropped.swap(work_->jobs);
  }
  work_->changed.notify_all();
  for (std::thread& thread : work_->threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

void GrammarPool::compile(const SamplingParams& params, Done done) {
  if (auto known = work_->cache->find(*params.structured_outputs))
    return done(std::make_unique<GrammarMatcher>(std::move(known), end_tokens(params)));
  {
    const std::lock_guard lock(work_->mutex);
    work_->jobs.push_back({params, std::move(done)});
  }
  work_->changed.notify_one();
}

}  // namespace troupe
