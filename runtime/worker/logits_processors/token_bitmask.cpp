#include "runtime/worker/logits_processors/token_bitmask.hpp"

#include <algorithm>
#include <limits>

namespace troupe {

void apply_token_bitmask(std::span<const std::int32_t> row, std::span<float> logits) noexcept {
  constexpr std::size_t kBits = 32;
  constexpr std::uint32_t kAll = ~std::uint32_t{0};
  for (std::size_t word = 0; word < row.size(); ++word) {
    const auto bits = static_cast<std::uint32_t>(row[word]);
    if (bits == kAll) continue;
    const std::size_t begin = word * kBits;
    const std::size_t end = std::min(begin + kBits, logits.size());
    for (std::size_t token = begin; token < end; ++token)
      if ((bits >> (token - begin) & 1) == 0)
        logits[token] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace troupe
