#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

struct HubFile {
  std::string path;
  std::string etag;  ///< SHA-256 of its bytes, or SHA-1 of its Git object
  std::uint64_t num_bytes = 0;
};

/// The files of a branch, tag or commit.
struct HubSnapshot {
  std::string commit;
  std::vector<HubFile> files;
};

/// Reads the Hub's JSON of a revision, with `blobs=true`. `what` names the model in errors. Error:
/// kCorrupt, which names the field: also hashes that are none, and paths that leave the folder.
[[nodiscard]] Result<HubSnapshot> parse_hub_snapshot(std::string_view text,
                                                     const std::string& what);

/// Whether the text is a Git or SHA-256 hash in lower-case hexadecimal digits.
[[nodiscard]] bool is_object_hash(std::string_view text) noexcept;

}  // namespace troupe
