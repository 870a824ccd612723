#pragma once
// Of which model, and how computed, blocks of a KV cache are.

#include <string>

#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/block_blob.hpp"

namespace troupe {

/// Differs where the same tokens may give other bits: the files of the weights (their sizes, and
/// samples of what they hold, so that a copy elsewhere is the same), types, device and instruction
/// set. The digests of a model and its options; `loaded` is of any rank. Errors: kIo naming the
/// file.
[[nodiscard]] Result<std::string> model_identity(const WorkerOptions& options,
                                                 const ModelLoaded& loaded);

/// How the bytes of a block lie on each of the ranks, as text.
[[nodiscard]] std::string cache_layout(const KVCacheConfig& cache, const ParallelConfig& parallel);

/// Of a rank's blocks.
[[nodiscard]] BlockOrigin block_origin(const std::string& model_identity,
                                       const KVCacheConfig& cache, const ParallelConfig& parallel);
/// "<digest of model and layout>_r<rank>": where the rank's files lie.
[[nodiscard]] std::string origin_folder(const std::string& model_identity,
                                        const KVCacheConfig& cache, const ParallelConfig& parallel);

}  // namespace troupe
