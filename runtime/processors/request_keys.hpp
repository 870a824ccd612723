#pragma once
// Random keys for sampling requests without a seed.

#include <atomic>
#include <cstdint>

#include "runtime/base/philox.hpp"

namespace troupe {

/// Identifies a sequence of keys. Unique per generator.
struct KeyStream {
  std::uint64_t seed = 0;
  std::uint64_t number = 0;
};

/// Owns the number of keys drawn from a stream. A key is a function of seed, stream and count: an
/// engine with a fixed seed draws the same keys after each start, and never one of them twice.
/// Thread-safe.
class RequestKeys {
 public:
  explicit RequestKeys(const KeyStream& stream)
      : key_(philox_bits(stream.seed, stream.number, kStreamDraw)) {}

  /// Never 0, which means no key.
  [[nodiscard]] std::uint64_t draw() {
    std::uint64_t key = 0;
    while (key == 0) key = philox_bits(key_, num_drawn_.fetch_add(1), 0);
    return key;
  }

 private:
  static constexpr std::uint32_t kStreamDraw = 0xFFFFFFFF;  // an index not used for any token
  const std::uint64_t key_;
  std::atomic<std::uint64_t> num_drawn_{0};
};

}  // namespace troupe
