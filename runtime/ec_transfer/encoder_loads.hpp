#pragma once
// The metadata of a step by which connectors of stores tell their workers what to load.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// An output that a step loads, or that is fetched while steps go on.
struct EncoderLoad {
  std::string identifier;
  std::int32_t num_rows = 0;
  bool is_fetch = false;
  bool operator==(const EncoderLoad&) const = default;
};

/// "<num_rows> <0, or 1 of a fetch> <bytes of the identifier> <identifier>", one behind the other.
[[nodiscard]] std::string pack_encoder_loads(const std::vector<EncoderLoad>& loads);
/// nullopt: it is no such text.
[[nodiscard]] std::optional<std::vector<EncoderLoad>> unpack_encoder_loads(std::string_view text);

}  // namespace troupe
