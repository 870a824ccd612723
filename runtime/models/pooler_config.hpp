#pragma once
// How a model folder says that it gives embeddings: the files of sentence-transformers.

#include <filesystem>
#include <string_view>

#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {

/// What the model in `folder` is run for. `runner`: "generate"; "pooling", by LAST, of an encoder
/// CLS, if nothing else is said; "auto": pooling of an encoder, or if the folder has a
/// modules.json. `override_json`, if not empty, is an object with pooling_type and normalize (or
/// use_activation), which replace the folder's. Errors: kCorrupt, kIo; kUnsupported for modules and
/// ways of pooling that are not offered, by their names; kInvalidArgument for the override.
Result<PoolerConfig> load_pooler_config(const std::filesystem::path& folder,
                                        std::string_view runner, std::string_view override_json,
                                        bool is_encoder);
/// Of a model that was made to classify texts: its classes. Errors: kInvalidArgument.
Result<PoolerConfig> classifier_config(const ModelConfig& config, std::string_view runner,
                                       std::string_view override_json, bool is_encoder);
/// How many tokens a text may have, as sentence_bert_config.json says; 0: that says nothing.
/// Errors: kCorrupt, kIo.
Result<std::int64_t> load_max_text_tokens(const std::filesystem::path& folder);

}  // namespace troupe
