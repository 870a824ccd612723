#pragma once
// The settings of Frontend and InputProcessors, from the options, the model and its files. Every
// node derives them from the same options.

#include <cstdint>
#include <memory>

#include "messages/cache.hpp"
#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/config/options.hpp"
#include "runtime/http/server.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/processors/input_processor.hpp"

namespace troupe {

class ItemCache;

/// The model's generation config, if enabled, overridden by the options.
[[nodiscard]] Result<SamplingDefaults> sampling_defaults(const GenerationConfig& generation,
                                                         const ModelOptions& options);
/// How answers are parsed: by the options, or by the model's chat template. Errors: unknown names,
/// and those of the template's file.
[[nodiscard]] Result<AnswerDefaults> answer_defaults(const Options& options);
/// Defaults and limits of request bodies.
[[nodiscard]] ServerDefaults request_defaults(const Options& options,
                                              const SamplingDefaults& sampling,
                                              const AnswerDefaults& answers,
                                              const ModelLoaded& model);
/// Errors: of the chat template's file or its content.
[[nodiscard]] Result<ServerConfig> server_config(const Options& options,
                                                 const SamplingDefaults& sampling,
                                                 const AnswerDefaults& answers,
                                                 const ModelLoaded& model,
                                                 const KVCacheConfig& cache);
/// Reads the chat template. Errors: of its file or its content.
[[nodiscard]] Result<std::shared_ptr<const InputProcessor>> make_input_processor(
    const Options& options, const ModelLoaded& model, const GenerationConfig& generation,
    std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<GrammarCache> grammars);

/// The engine's side of the processor cache; null: items of requests have their data. Errors: those
/// of the cache.
[[nodiscard]] Result<std::shared_ptr<ItemCache>> make_engine_item_cache(const Options& options,
                                                                        const ModelLoaded& model);

/// The first key for sampling requests without a seed.
[[nodiscard]] std::uint64_t first_seed(const ModelOptions& model);

}  // namespace troupe
