#pragma once
// How a model folder says that it gives embeddings: the files of sentence-transformers.

#include <filesystem>
#include <string_view>

#include "messages/worker.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// What the model in `folder` is run for. `runner`: "generate"; "pooling", by LAST if nothing else
/// is said; "auto": pooling if the folder has a modules.json. `override_json`, if not empty, is an
/// object with pooling_type and normalize (or use_activation), which replace the folder's.
/// Errors: kCorrupt, kIo; kUnsupported for modules and ways of pooling that are not offered, by
/// their names; kInvalidArgument for the override.
Result<PoolerConfig> load_pooler_config(const std::filesystem::path& folder,
                                        std::string_view runner, std::string_view override_json);

}  // namespace troupe
