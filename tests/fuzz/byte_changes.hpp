#pragma once
// Changes of bytes that a fuzzer makes before what else it gives.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe {

struct ByteChanges {
  std::span<const std::uint8_t> changes;  ///< three bytes for each: where, little-endian; what
  std::span<const std::uint8_t> rest;
};

/// Of an input that begins with a count of changes. Pre: it is not empty.
inline ByteChanges take_changes(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> all(data + 1, size - 1);
  const std::size_t num_bytes = std::min<std::size_t>(data[0], all.size() / 3) * 3;
  return {all.first(num_bytes), all.subspan(num_bytes)};
}

}  // namespace troupe
