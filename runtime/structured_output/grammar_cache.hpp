#pragma once
// The compiled grammars of a model: those used last are kept, and requests share them.

#include <condition_variable>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "messages/sampling_params.hpp"
#include "runtime/base/result.hpp"
#include "runtime/structured_output/compiled_grammar.hpp"

namespace troupe {

class Tokenizer;

struct GrammarCacheOptions {
  /// Of the grammars that are kept, with their sources. Those that requests use live on.
  std::size_t max_bytes = std::size_t{256} << 20;
  std::size_t max_grammars = 1024;
  GrammarLimits limits;
};

/// Owns the vocabulary, which is made for the first grammar. Thread-safe.
class GrammarCache {
 public:
  /// vocab_size: of the model's logits.
  GrammarCache(std::shared_ptr<const Tokenizer> tokenizer, std::size_t vocab_size,
               GrammarCacheOptions options = {});

  /// Compiles it on this thread unless it is kept; while another thread compiles the same one,
  /// waits for that. Errors: those of structured_grammar() and CompiledGrammar::compile(), with
  /// what.field as their field.
  Result<std::shared_ptr<CompiledGrammar>> get(const StructuredOutputsParams& what);
  /// Null: it is not kept.
  std::shared_ptr<CompiledGrammar> find(const StructuredOutputsParams& what);

  [[nodiscard]] const std::shared_ptr<const Tokenizer>& tokenizer() const noexcept {
    return tokenizer_;
  }
  [[nodiscard]] std::size_t size() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<CompiledGrammar> grammar;
  };
  using Entries = std::list<Entry>;

  std::shared_ptr<CompiledGrammar> take_known(const std::string& key);
  Result<std::shared_ptr<CompiledGrammar>> compile(const StructuredOutputsParams& what);
  void drop_oldest();

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::size_t vocab_size_;
  const GrammarCacheOptions options_;
  std::once_flag vocabulary_made_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  mutable std::mutex mutex_;  ///< guards all below
  std::condition_variable compiled_;
  Entries entries_;  ///< used last, first
  std::unordered_map<std::string, Entries::iterator> by_key_;
  std::unordered_set<std::string> compiling_;
};

}  // namespace troupe
