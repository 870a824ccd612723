#pragma once
// Between the traces' JSON and our structs.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "messages/request.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/base/json.hpp"
#include "runtime/cache/kv_cache_manager.hpp"
#include "runtime/cache/kv_events.hpp"
#include "runtime/scheduler/request_state.hpp"
#include "runtime/scheduler/scheduler_config.hpp"

namespace troupe {

/// The traces' request ids are strings; ours are numbers in the same order.
class TraceIds {
 public:
  explicit TraceIds(const std::vector<nlohmann::json>& trace);
  [[nodiscard]] RequestId number(const std::string& name) const;
  [[nodiscard]] const std::string& name(RequestId id) const { return names_.at(value(id)); }
  [[nodiscard]] nlohmann::json sorted_names(std::span<const RequestId> ids) const;

 private:
  std::vector<std::string> names_;
  std::map<std::string, RequestId> numbers_;
};

[[nodiscard]] EngineCoreRequest request_from_json(const nlohmann::json& request, RequestId id);
[[nodiscard]] KVCacheRequest cache_request_of(const EngineCoreRequest& request);
[[nodiscard]] std::vector<KVCacheGroup> groups_from_json(const nlohmann::json& groups);
[[nodiscard]] KVCacheSettings cache_settings_from_json(const nlohmann::json& cfg,
                                                       const nlohmann::json& derived);
[[nodiscard]] SchedulerConfig scheduler_config_from_json(const nlohmann::json& cfg,
                                                         const nlohmann::json& derived);
[[nodiscard]] std::string hash_text(const BlockHash& hash, std::size_t hex_chars);
[[nodiscard]] std::string status_name(RequestStatus status);
[[nodiscard]] RequestStatus status_from_name(const std::string& name);
/// `event_hashes`: "int64" or "bytes".
[[nodiscard]] nlohmann::json event_json(const KVCacheEvent& event, const std::string& event_hashes);
/// FNV-1a over the ids, as the traces digest the free queue.
[[nodiscard]] std::string queue_digest(std::span<const BlockId> queue);

/// The part of the state that every family with blocks has: free, fq, fql, cached. Adds to `state`
/// what `expected` asks for.
void add_pool_state(const BlockPool& pool, const nlohmann::json& expected, nlohmann::json& state);

}  // namespace troupe
