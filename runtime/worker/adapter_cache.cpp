#include "runtime/worker/adapter_cache.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"

namespace troupe {

Result<LoraRequest> AdapterCache::load(const LoadAdapter& what) {
  ASSIGN_OR_RETURN(
      std::shared_ptr<const Adapter> adapter,
      Adapter::load({.name = what.name, .path = what.path}, targets_, limits_, device_));
  LoraRequest loaded = adapter->request();
  const auto other = known_.find(loaded.int_id);
  if (other != known_.end() && other->second.name != loaded.name)
    return Error{ErrorCode::kInvalidArgument, "the id of adapter " + loaded.name + " is that of " +
                                                  other->second.name +
                                                  " as well: give it another name"};
  ++clock_;
  put(std::move(adapter));
  known_[loaded.int_id] = loaded;
  by_name_[loaded.name] = loaded;
  has_nameless_ = true;
  log_info("adapter loaded", kv("adapter", loaded.name), kv("path", loaded.path),
           kv("id", loaded.int_id), kv("loaded", entries_.size()));
  return loaded;
}

void AdapterCache::unload(const std::string& name) {
  if (by_name_.erase(name) == 0) return;
  has_nameless_ = true;
  log_info("adapter unloaded", kv("adapter", name));
}

void AdapterCache::remember(const LoraRequest& request) {
  known_[request.int_id] = request;
  const auto named = by_name_.find(request.name);
  has_nameless_ |= named == by_name_.end() || named->second.int_id != request.int_id;
}

std::vector<LoraRequest> AdapterCache::list() const {
  std::vector<LoraRequest> all;
  for (const auto& [name, request] : by_name_) all.push_back(request);
  return all;
}

Result<const Adapter*> AdapterCache::find_or_load(std::int32_t id) {
  const auto found = entries_.find(id);
  if (found != entries_.end()) {
    found->second.last_use = clock_;
    return found->second.adapter.get();
  }
  const auto known = known_.find(id);
  CHECK(known != known_.end(), id);
  const LoraRequest& request = known->second;
  ASSIGN_OR_RETURN(std::shared_ptr<const Adapter> adapter,
                   Adapter::load(request, targets_, limits_, device_));
  if (adapter->request().int_id != id)
    return Error{ErrorCode::kUnavailable,
                 "adapter " + request.name + " in " + request.path +
                     " is not the one that was loaded: its files have changed",
                 "model"};
  const Adapter* const loaded = adapter.get();
  put(std::move(adapter));
  log_info("adapter loaded again", kv("adapter", request.name), kv("path", request.path),
           kv("id", id), kv("loaded", entries_.size()));
  return loaded;
}

Result<std::vector<const Adapter*>> AdapterCache::use(std::span<const std::int32_t> ids,
                                                      std::size_t& failed) {
  ++clock_;
  std::vector<const Adapter*> adapters;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == 0) {
      adapters.push_back(nullptr);
      continue;
    }
    failed = i;
    ASSIGN_OR_RETURN(const Adapter* const adapter, find_or_load(ids[i]));
    adapters.push_back(adapter);
  }
  return adapters;
}

void AdapterCache::put(std::shared_ptr<const Adapter> adapter) {
  const std::int32_t id = adapter->request().int_id;
  entries_[id] = {std::move(adapter), clock_};
  evict(clock_);
}

void AdapterCache::evict(std::uint64_t now) {
  while (std::ssize(entries_) > options_.max_loaded) {
    const auto oldest = std::ranges::min_element(
        entries_, {}, [](const auto& entry) { return entry.second.last_use; });
    if (oldest->second.last_use >= now) return;
    // What the device still computes with it is done when a step has ended.
    log_debug("adapter evicted", kv("id", oldest->first));
    entries_.erase(oldest);
  }
}

void AdapterCache::release_unused(std::span<const std::int32_t> ids_in_use) {
  bool any_left = false;
  for (auto next = known_.begin(); next != known_.end();) {
    const auto current = next++;
    const auto named = by_name_.find(current->second.name);
    if (named != by_name_.end() && named->second.int_id == current->first) continue;
    if (std::ranges::find(ids_in_use, current->first) != ids_in_use.end()) {
      any_left = true;
      continue;
    }
    entries_.erase(current->first);
    known_.erase(current);
  }
  has_nameless_ = any_left;
}

}  // namespace troupe
