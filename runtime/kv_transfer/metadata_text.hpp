#pragma once
// A connector's metadata of a step as text: what its Scheduler's side tells its workers' side.

#include <string>
#include <vector>

#include "messages/wire.hpp"

namespace troupe {

/// Read by wire::decode.
template <class Metadata>
[[nodiscard]] std::string metadata_text(const Metadata& metadata) {
  std::vector<char> bytes;
  wire::encode(metadata, bytes);
  return {bytes.begin(), bytes.end()};
}

}  // namespace troupe
