#pragma once
// Where the keys come from that the draws of requests without a seed depend on.

#include <atomic>
#include <cstdint>

#include "runtime/base/philox.hpp"

namespace troupe {

/// Names a row of keys. No two who draw keys have the same one.
struct KeyStream {
  std::uint64_t seed = 0;
  std::uint64_t number = 0;
};

/// Owns how many keys of a stream have been drawn. A key is a function of seed, stream and count:
/// an engine with a fixed seed draws the same ones each time it is started, and none of them twice
/// while it lives. Thread-safe.
class RequestKeys {
 public:
  explicit RequestKeys(const KeyStream& stream)
      : key_(philox_bits(stream.seed, stream.number, kStreamDraw)) {}

  /// Never 0, which stands for no key.
  [[nodiscard]] std::uint64_t draw() {
    std::uint64_t key = 0;
    while (key == 0) key = philox_bits(key_, num_drawn_.fetch_add(1), 0);
    return key;
  }

 private:
  static constexpr std::uint32_t kStreamDraw = 0xFFFFFFFF;  // no token is drawn with this index
  const std::uint64_t key_;
  std::atomic<std::uint64_t> num_drawn_{0};
};

}  // namespace troupe
