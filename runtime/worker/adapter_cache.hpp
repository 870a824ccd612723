#pragma once
// The adapters that a worker has loaded.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/adapter.hpp"
#include "runtime/models/device.hpp"

namespace troupe {

/// Owns adapters of one model, at most AdapterOptions::max_loaded of them in addition to those of
/// the current step: the least recently used is evicted. A request names its adapter by id; one
/// that was evicted, or loaded in an earlier life of this worker, is reloaded from its folder, and
/// rejected unless its files are unchanged.
///
/// Names are for new requests: a name that is unloaded or loaded in place keeps its weights until
/// no request uses them.
class AdapterCache {
 public:
  /// Both outlive the cache.
  AdapterCache(Device& device, const AdapterTargets& targets, const AdapterOptions& options,
               const AdapterLimits& limits)
      : device_(device), targets_(targets), options_(options), limits_(limits) {}

  /// Reads the folder, also if the name is known: then that means the new weights. Errors: those of
  /// Adapter::load; all stays as it was.
  Result<LoraRequest> load(const LoadAdapter& what);
  /// Nothing if there is none of that name.
  void unload(const std::string& name);
  /// Those with a name, by name.
  [[nodiscard]] std::vector<LoraRequest> list() const;

  /// What a request says of its adapter, which steps name by id alone.
  void remember(const LoraRequest& request);
  /// The adapters of a step's sequences by id, null where it is 0. Errors: one cannot be read
  /// again, or is another one by now; `failed` is its index. Valid until the next call. Pre:
  /// remember().
  Result<std::vector<const Adapter*>> use(std::span<const std::int32_t> ids, std::size_t& failed);
  /// Forgets what no name stands for and none of these ids.
  void release_unused(std::span<const std::int32_t> ids_in_use);
  /// There may be something to release.
  [[nodiscard]] bool has_nameless() const noexcept { return has_nameless_; }

 private:
  struct Entry {
    std::shared_ptr<const Adapter> adapter;
    std::uint64_t last_use = 0;
  };
  Result<const Adapter*> find_or_load(std::int32_t id);
  void put(std::shared_ptr<const Adapter> adapter);
  /// Down to the limit, but not those that were used since `now`.
  void evict(std::uint64_t now);

  Device& device_;
  const AdapterTargets& targets_;
  AdapterOptions options_;
  AdapterLimits limits_;
  std::uint64_t clock_ = 0;
  std::map<std::int32_t, Entry> entries_;      // by id
  std::map<std::int32_t, LoraRequest> known_;  // by id
  std::map<std::string, LoraRequest> by_name_;
  bool has_nameless_ = false;
};

}  // namespace troupe
