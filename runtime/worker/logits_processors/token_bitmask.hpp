#pragma once
// What a grammar allows, as a row of bits.

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe {

/// 32-bit words that a row for so many tokens has.
[[nodiscard]] constexpr std::size_t words_per_bitmask_row(std::size_t vocab_size) noexcept {
  return (vocab_size + 31) / 32;
}

/// Tokens whose bit is not set become -inf: bit t % 32 of row[t / 32] is that of token t.
/// logits: [vocab_size]. Pre: row.size() == words_per_bitmask_row(vocab_size).
void apply_token_bitmask(std::span<const std::int32_t> row, std::span<float> logits) noexcept;

}  // namespace troupe
