#pragma once
// Threads that compile the grammars of the Scheduler's requests.

#include <memory>

#include "runtime/scheduler/grammar.hpp"
#include "runtime/structured_output/grammar_cache.hpp"

namespace troupe {

/// Where its end destroys it, what has not begun is dropped.
class GrammarPool final : public GrammarCompiler {
 public:
  explicit GrammarPool(std::shared_ptr<GrammarCache> cache, std::size_t num_threads = 1);
  ~GrammarPool() override;
  GrammarPool(const GrammarPool&) = delete;
  GrammarPool& operator=(const GrammarPool&) = delete;

  /// A grammar that is in the cache is there at once.
  void compile(const SamplingParams& params, Done done) override;

 private:
  struct Work;
  std::shared_ptr<Work> work_;
};

}  // namespace troupe
