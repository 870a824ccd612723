#pragma once
// Replaying what LMCache has hashed, named and sent: our code must give the same bytes.

#include <filesystem>

#include "tests/support/replay.hpp"

namespace troupe {

/// A file in the form of golden_lmcache.json. A case is a chunk, a key, or a step of a protocol.
[[nodiscard]] ReplayReport replay_lmcache(const std::filesystem::path& file);

}  // namespace troupe
