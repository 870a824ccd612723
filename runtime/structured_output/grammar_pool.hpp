#pragma once
// The threads of the grammars of the Scheduler's requests.

#include <memory>

#include "runtime/scheduler/grammar.hpp"
#include "runtime/structured_output/grammar_cache.hpp"

namespace troupe {

/// Compiles on some threads, and fills masks on another one. Jobs that have not started when it
/// ends are dropped.
class GrammarPool final : public GrammarCompiler {
 public:
  /// Only if `proposes` its grammars propose tokens.
  explicit GrammarPool(std::shared_ptr<GrammarCache> cache, bool proposes,
                       std::size_t num_compilers = 1);
  ~GrammarPool() override;
  GrammarPool(const GrammarPool&) = delete;
  GrammarPool& operator=(const GrammarPool&) = delete;

  /// A grammar that is in the cache is there at once.
  void compile(const SamplingParams& params, Done done) override;
  void fill(GrammarStep step, Filled filled) override;

 private:
  class JobThreads;
  std::shared_ptr<GrammarCache> cache_;
  std::shared_ptr<const Tokenizer> tokenizer_;  ///< of what is proposed; null: nothing is
  std::unique_ptr<JobThreads> compilers_;
  std::unique_ptr<JobThreads> filler_;
};

}  // namespace troupe
