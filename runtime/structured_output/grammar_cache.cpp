#include "runtime/structured_output/grammar_cache.hpp"

#include <iterator>
#include <string_view>
#include <utility>

#include "runtime/structured_output/structured_grammar.hpp"

namespace troupe {
namespace {

/// Equal for what has the same grammar.
std::string key_of(const StructuredOutputsParams& what) {
  std::string key;
  const auto add = [&](std::string_view text) {
    key += std::to_string(text.size());
    key += ':';
    key += text;
  };
  key += std::to_string(static_cast<int>(what.kind));
  key += what.disable_any_whitespace ? 'c' : ' ';
  key += what.disable_additional_properties ? 'n' : ' ';
  key += what.any_order ? 'o' : ' ';
  key += what.whitespace_pattern ? 'w' : ' ';
  if (what.whitespace_pattern) add(*what.whitespace_pattern);
  for (const std::string& text : what.texts) add(text);
  return key;
}

}  // namespace

GrammarCache::GrammarCache(std::shared_ptr<const Tokenizer> tokenizer, std::size_t vocab_size,
                           GrammarCacheOptions options)
    : tokenizer_(std::move(tokenizer)), vocab_size_(vocab_size), options_(options) {}

Result<std::shared_ptr<CompiledGrammar>> GrammarCache::get(const StructuredOutputsParams& what) {
  const std::string key = key_of(what);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (auto known = take_known(key)) {
      drop_oldest();  // grammars grow while they are used
      return known;
    }
    if (compiling_.insert(key).second) break;
    compiled_.wait(lock);
  }
  lock.unlock();
  const auto finish = [&] {
    compiling_.erase(key);
    compiled_.notify_all();
  };
  try {
    auto grammar = compile(what);
    lock.lock();
    if (grammar.ok()) {
      entries_.push_front({key, *grammar});
      by_key_.emplace(key, entries_.begin());
      drop_oldest();
    }
    finish();
    return grammar;
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    finish();
    throw;
  }
}

std::shared_ptr<CompiledGrammar> GrammarCache::find(const StructuredOutputsParams& what) {
  const std::string key = key_of(what);
  const std::lock_guard lock(mutex_);
  return take_known(key);
}

std::size_t GrammarCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::shared_ptr<CompiledGrammar> GrammarCache::take_known(const std::string& key) {
  const auto known = by_key_.find(key);
  if (known == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, known->second);
  auto& grammar = entries_.front().grammar = CompiledGrammar::latest(entries_.front().grammar);
  return grammar;
}

Result<std::shared_ptr<CompiledGrammar>> GrammarCache::compile(
    const StructuredOutputsParams& what) {
  std::call_once(vocabulary_made_, [&] {
    vocabulary_ = GrammarVocabulary::from_tokenizer(*tokenizer_, vocab_size_);
  });
  ASSIGN_OR_RETURN(GrammarBuilder builder,
                   structured_grammar(what, options_.limits, vocabulary_->special_tokens()));
  auto grammar = CompiledGrammar::compile(std::move(builder), vocabulary_);
  if (grammar.ok()) return grammar;
  Error error = std::move(grammar).error();
  error.param = what.field;
  return error;
}

/// The one used last stays.
void GrammarCache::drop_oldest() {
  std::size_t num_bytes = 0;
  std::size_t num_kept = 0;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    num_bytes += 2 * entry->key.size() + entry->grammar->num_bytes();
    ++num_kept;
    if (num_kept == 1 || (num_bytes <= options_.max_bytes && num_kept <= options_.max_grammars)) {
      ++entry;
      continue;
    }
    by_key_.erase(entry->key);
    entry = entries_.erase(entry);
  }
}

}  // namespace troupe
