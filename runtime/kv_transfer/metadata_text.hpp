#pragma once
// A connector's metadata of a step as text, from its Scheduler's side to its workers' side.

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
