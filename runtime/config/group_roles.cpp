#include "runtime/config/group_roles.hpp"

#include <algorithm>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

constexpr const char* kOption = "group-roles";

Result<GroupRole> parse_group_role(const std::string& text) {
  std::string names;
  for (const GroupRoleName& known : kGroupRoleNames) {
    if (known.name == text) return known.role;
    names.append(names.empty() ? "" : ", ").append(known.name);
  }
  return invalid_argument("group-roles: '" + text + "' is not one of " + names, kOption);
}

}  // namespace

Result<std::vector<GroupRole>> group_roles(const EngineOptions& engine) {
  const auto num_groups = static_cast<std::size_t>(engine.data_parallel_size);
  if (engine.group_roles.empty()) return std::vector<GroupRole>(num_groups, GroupRole::kBoth);
  if (engine.group_roles.size() != num_groups)
    return invalid_argument("group-roles has " + std::to_string(engine.group_roles.size()) +
                                " roles, data-parallel-size is " + std::to_string(num_groups),
                            kOption);
  std::vector<GroupRole> roles;
  for (const std::string& name : engine.group_roles) {
    ASSIGN_OR_RETURN(const GroupRole role, parse_group_role(name));
    roles.push_back(role);
  }
  if (std::ranges::count(roles, GroupRole::kPrefill) == std::ssize(roles))
    return invalid_argument("group-roles: no group has the role decode or both", kOption);
  return roles;
}

std::string kv_transfer_config(const EngineOptions& engine) {
  const bool splits = std::ranges::find(engine.group_roles, "prefill") != engine.group_roles.end();
  std::string config = engine.kv_transfer_config;
  if (splits && config.empty())
    config = R"({"kv_connector": "PeerConnector", "kv_role": "kv_both"})";
  if (engine.prefix_cache_snapshot.empty()) return config;
  const nlohmann::json snapshot = {{"kv_connector", "FileConnector"},
                                   {"kv_role", "kv_both"},
                                   {"kv_connector_extra_config",
                                    {{"shared_storage_path", engine.prefix_cache_snapshot},
                                     {"max_bytes", engine.prefix_cache_snapshot_bytes}}}};
  if (config.empty()) return snapshot.dump();
  // What is wrong with it is found where its connector is made.
  nlohmann::json given = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!given.is_object()) return config;
  return nlohmann::json{{"kv_connector", "MultiConnector"},
                        {"kv_role", "kv_both"},
                        {"kv_load_failure_policy",
                         given.value("kv_load_failure_policy", nlohmann::json("recompute"))},
                        {"kv_connector_extra_config", {{"connectors", {given, snapshot}}}}}
      .dump();
}

}  // namespace troupe
