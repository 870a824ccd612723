#pragma once
// The pieces of a prompt that may be cached on their own.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "messages/ids.hpp"
#include "messages/kv_events.hpp"
#include "messages/request.hpp"

namespace troupe {

/// What lies between the separators, none of which is empty.
[[nodiscard]] std::vector<TokenSpan> pieces_between(std::span<const TokenId> tokens,
                                                    std::span<const TokenId> separator);

/// Pieces that end where the last kWindow tokens have a certain fingerprint (content-defined
/// chunks): so a text has the same ones wherever it stands, but for what is near its ends. A piece
/// has kMinPiece to kMaxPiece tokens, the last one any number.
inline constexpr std::int32_t kFingerprintWindow = 16;
inline constexpr std::int32_t kMinPiece = 16;
inline constexpr std::int32_t kMaxPiece = 256;
[[nodiscard]] std::vector<TokenSpan> pieces_by_content(std::span<const TokenId> tokens);

/// A hash of the tokens and their owner: other tenants and adapters do not find the piece.
[[nodiscard]] BlockHash piece_key(std::span<const TokenId> tokens, const std::string& owner);

}  // namespace troupe
