#pragma once
// Logits whose vocabulary is divided among the ranks of the last stage.

#include <cstdint>
#include <functional>

#include "runtime/models/layers.hpp"

namespace troupe {

/// out: [num_rows, vocab_size], of the first rank of the group; on the others it is not used.
/// compute(part): fills in this rank's columns. False: not the first, or a peer has failed.
bool gather_logits(Device& device, Scratch scratch, Communicator* peers, Matrix out,
                   const std::function<void(Matrix part)>& compute);

/// What that takes of `scratch`, where a rank has num_own_columns.
[[nodiscard]] std::int64_t gather_logits_bytes(std::int64_t max_rows, std::int64_t num_own_columns,
                                               std::int32_t num_ranks) noexcept;

}  // namespace troupe
