#pragma once
// The metadata of the BlendConnector for the workers' side in each step.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/ids.hpp"
#include "messages/kv_events.hpp"
#include "messages/reflect.hpp"

namespace troupe {

/// Tokens of a piece that are among those of the step's batch.
struct PiecePart {
  BlockHash key;
  std::int32_t offset = 0;  ///< of the first one in the piece
  std::int32_t token = 0;   ///< the same in the batch
  std::int32_t count = 0;
  bool operator==(const PiecePart&) const = default;
};
TROUPE_MESSAGE(PiecePart, key, offset, token, count)

/// A request whose cached pieces take the place of tokens.
struct RequestBlend {
  std::vector<PiecePart> parts;
  std::vector<double> ratios;      ///< BlendRule's, or empty
  std::vector<double> thresholds;  ///< the same
  bool operator==(const RequestBlend&) const = default;
};
TROUPE_MESSAGE(RequestBlend, parts, ratios, thresholds)

/// To be done in order, behind the look-up of what the step's requests are blended with.
struct PieceOp {
  enum class Kind : std::uint8_t {
    kSave,
    kRemove,
    kWriteFile,  ///< it is whole by the end of the step
    kReadFile,   ///< to be reported as received, or failed
    kRemoveFile,
  };
  Kind kind = Kind::kSave;
  PiecePart part;               ///< of all others than kSave the key alone
  std::int32_t num_tokens = 0;  ///< of the whole piece
  RequestId load{};             ///< of kReadFile: what it is reported as
  bool operator==(const PieceOp&) const = default;
};
TROUPE_MESSAGE(PieceOp, kind, part, num_tokens, load)

struct BlendOps {
  bool clears = false;  ///< before all else: what was kept is forgotten
  bool clears_files = false;
  std::vector<RequestBlend> blends;
  std::vector<PieceOp> ops;
  [[nodiscard]] bool empty() const noexcept {
    return !clears && !clears_files && blends.empty() && ops.empty();
  }
  bool operator==(const BlendOps&) const = default;
};
TROUPE_MESSAGE(BlendOps, clears, clears_files, blends, ops)

[[nodiscard]] std::string pack_blend_ops(const BlendOps& ops);
[[nodiscard]] std::optional<BlendOps> unpack_blend_ops(std::string_view text);

}  // namespace troupe
