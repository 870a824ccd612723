#include "runtime/kv_transfer/blend_pieces.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/base/hash.hpp"

namespace troupe {

std::vector<TokenSpan> pieces_between(std::span<const TokenId> tokens,
                                      std::span<const TokenId> separator) {
  CHECK(!separator.empty());
  std::vector<TokenSpan> pieces;
  auto begin = tokens.begin();
  while (true) {
    const auto end = std::search(begin, tokens.end(), separator.begin(), separator.end());
    if (begin != end)
      pieces.push_back({static_cast<std::int32_t>(begin - tokens.begin()),
                        static_cast<std::int32_t>(end - tokens.begin())});
    if (end == tokens.end()) return pieces;
    begin = end + static_cast<std::ptrdiff_t>(separator.size());
  }
}

std::vector<TokenSpan> pieces_by_content(std::span<const TokenId> tokens) {
  // A polynomial of the last tokens, of which one leaves as the next one comes (Rabin and Karp).
  constexpr std::uint64_t kBase = 0x9e3779b97f4a7c15U;
  constexpr int kMeanBits = 5;  // every 32nd token ends a piece
  std::uint64_t leaving = 1;    // kBase to the power of the window
  for (std::int32_t i = 0; i < kFingerprintWindow; ++i) leaving *= kBase;
  std::vector<TokenSpan> pieces;
  std::uint64_t fingerprint = 0;
  std::int32_t begin = 0;
  for (std::int32_t i = 0; i < std::ssize(tokens); ++i) {
    const auto index = static_cast<std::size_t>(i);
    // Token 0 counts as well.
    fingerprint = fingerprint * kBase + static_cast<std::uint64_t>(tokens[index]) + 1;
    if (i >= kFingerprintWindow)
      fingerprint -= leaving * (static_cast<std::uint64_t>(tokens[index - kFingerprintWindow]) + 1);
    const std::int32_t size = i + 1 - begin;
    // The high bits depend on all tokens of the window.
    const bool ends = ((fingerprint ^ (fingerprint >> 29)) * kBase) >> (64 - kMeanBits) == 0;
    if ((ends && size >= kMinPiece) || size == kMaxPiece) {
      pieces.push_back({begin, i + 1});
      begin = i + 1;
    }
  }
  if (begin < std::ssize(tokens))
    pieces.push_back({begin, static_cast<std::int32_t>(tokens.size())});
  return pieces;
}

BlockHash piece_key(std::span<const TokenId> tokens, const std::string& owner) {
  std::vector<std::uint8_t> bytes(owner.begin(), owner.end());
  const auto raw = std::as_bytes(tokens);
  // The length keeps owner and tokens apart.
  const std::uint64_t size = owner.size();
  for (std::size_t i = 0; i < sizeof size; ++i)
    bytes.push_back(static_cast<std::uint8_t>(size >> (8 * i)));
  for (const std::byte byte : raw) bytes.push_back(static_cast<std::uint8_t>(byte));
  return {sha256(bytes)};
}

}  // namespace troupe
