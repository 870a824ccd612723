#include "runtime/processors/adapter_registry.hpp"

#include <algorithm>

#include "runtime/base/result.hpp"

namespace troupe {

Error unknown_adapter(const std::string& name) {
  return {ErrorCode::kNotFound, "The lora adapter '" + name.substr(0, 256) + "' cannot be found.",
          "model"};
}

std::optional<Error> AdapterRegistry::check_load(const LoadAdapter& what) const {
  if (what.name.empty() || what.path.empty())
    return invalid_argument("Both 'lora_name' and 'lora_path' must be provided.", "lora_name");
  if (!what.load_inplace && adapters_.contains(what.name))
    return invalid_argument("The lora adapter '" + what.name.substr(0, 256) +
                                "' has already been loaded. If you want to load the adapter in "
                                "place, set 'load_inplace' to True.",
                            "lora_name");
  return std::nullopt;
}

LoraRequest AdapterRegistry::add(LoraRequest loaded) {
  const auto [first, is_new] = first_ids_.try_emplace({loaded.name, loaded.path}, loaded.int_id);
  loaded.revision = first->second == loaded.int_id ? 0 : loaded.int_id;
  removed_.erase(loaded.name);
  is_known_ = true;
  return adapters_[loaded.name] = std::move(loaded);
}

bool AdapterRegistry::remove(const std::string& name) {
  if (adapters_.erase(name) == 0) return false;
  removed_.insert(name);
  return true;
}

const LoraRequest* AdapterRegistry::find(const std::string& name) const {
  const auto found = adapters_.find(name);
  return found == adapters_.end() ? nullptr : &found->second;
}

AdapterList AdapterRegistry::list() const {
  AdapterList all;
  for (const auto& [name, adapter] : adapters_) all.adapters.push_back(adapter);
  return all;
}

std::optional<AdapterList> AdapterRegistry::known() const {
  if (!is_known_) return std::nullopt;
  return list();
}

void AdapterRegistry::restore(const std::vector<LoraRequest>& adapters) {
  if (is_known_) return;
  is_known_ = true;
  for (const LoraRequest& adapter : adapters) {
    // Whether another one was there before is not known any more: 0 is no adapter's id.
    first_ids_[{adapter.name, adapter.path}] = adapter.revision == 0 ? adapter.int_id : 0;
    adapters_[adapter.name] = adapter;
  }
}

AdapterRegistry::Difference AdapterRegistry::match(const std::vector<LoraRequest>& loaded) {
  Difference difference;
  for (const LoraRequest& adapter : loaded) {
    if (removed_.contains(adapter.name))
      difference.to_unload.push_back(adapter.name);
    else if (!adapters_.contains(adapter.name))
      add(adapter);
  }
  is_known_ = true;
  for (const auto& [name, adapter] : adapters_) {
    const bool is_there = std::ranges::any_of(loaded, [&](const LoraRequest& other) {
      return other.name == adapter.name && other.int_id == adapter.int_id;
    });
    if (!is_there) difference.to_load.push_back(adapter);
  }
  return difference;
}

AdapterReply join_ranks(CollectiveRpcReply reply) {
  if (reply.error) return {.adapters = {}, .error = std::move(reply.error)};
  AdapterReply joined;
  for (std::size_t rank = 0; rank < reply.results.size(); ++rank) {
    auto* const list = std::get_if<AdapterList>(&reply.results[rank]);
    if (list == nullptr) continue;
    if (rank == 0) {
      joined.adapters = std::move(list->adapters);
      continue;
    }
    const bool same = std::ranges::equal(joined.adapters, list->adapters,
                                         [](const LoraRequest& a, const LoraRequest& b) {
                                           return a.name == b.name && a.int_id == b.int_id;
                                         });
    if (!same)
      return {
          .adapters = {},
          .error = Error{ErrorCode::kUnavailable, "ranks 0 and " + std::to_string(rank) +
                                                      " have found different files of an adapter"}};
  }
  return joined;
}

}  // namespace troupe
