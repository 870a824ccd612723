#pragma once
// What each group of a data-parallel engine does: the option group-roles.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/config/options.hpp"

namespace troupe {

/// Every group can do everything; the role says what the RequestRouter sends to it as long as
/// others can do the rest.
enum class GroupRole : std::uint8_t {
  kBoth,     ///< whole requests
  kPrefill,  ///< long prompts, whose KV the groups of the other roles load
  kDecode,   ///< what follows these prompts, and whole requests with short ones
};

struct GroupRoleName {
  GroupRole role{};
  std::string_view name;
};
inline constexpr GroupRoleName kGroupRoleNames[] = {
    {GroupRole::kBoth, "both"}, {GroupRole::kPrefill, "prefill"}, {GroupRole::kDecode, "decode"}};

/// The role of each group. Errors: kInvalidArgument, an unknown name, not one for each group, or
/// no group that decodes.
[[nodiscard]] Result<std::vector<GroupRole>> group_roles(const EngineOptions& engine);

/// The option kv-transfer-config; where groups have roles and it is not set, a connector that
/// transfers KV between the groups.
[[nodiscard]] std::string kv_transfer_config(const EngineOptions& engine);

}  // namespace troupe
