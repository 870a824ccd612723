#pragma once
// The processor cache: what was made of images, so that one that was seen is neither decoded nor
// sent again. It has two sides: that of the front end, which makes items of images, and that of
// the engine, which gets them. Kinds (--mm-processor-cache-type):
//
//   lru             the front end knows what it has sent, the engine keeps it; the items of a
//                   image that was sent have no data. Both drop what was used first.
//   shm             both have the same segment of shared memory, which the processes of a host
//                   share: items lie there, and have no data in messages. The oldest go first, but
//                   for those of requests that are under way. Workers read them there.
//   processor_only  the front end keeps it, and sends it each time.
//
// What one side believes of the other may be wrong: after a restart, where requests come in another
// order than they were prepared in, or in front of several front ends. Then the engine says what is
// missing, and the request is prepared again with data (ItemsMissing).

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/request.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// MultiModalFeature::data: an array, or where one lies.
using ItemData = std::shared_ptr<const std::vector<char>>;

/// The front end's side. Thread-safe.
class ProcessorCache {
 public:
  virtual ~ProcessorCache() = default;
  /// The data of an image and its parts, in order; empty: it is not known. Where the engine is
  /// likely to have it the data is null, unless `with_data`.
  [[nodiscard]] virtual std::vector<ItemData> find(const std::string& identifier,
                                                   bool with_data) = 0;
  virtual void keep(const std::string& identifier, const std::vector<ItemData>& data) = 0;
  /// Whether find may leave data to the engine.
  [[nodiscard]] virtual bool leaves_out_data() const noexcept = 0;
  /// The engine does not have these items.
  virtual void forget(std::span<const std::string> item_identifiers) = 0;
  virtual void clear() = 0;
};

/// The engine's side. Used by the Scheduler alone.
class ItemCache {
 public:
  virtual ~ItemCache() = default;
  /// Gives their data to items that have none, and keeps that of others. Returns the identifiers of
  /// items whose data is not there.
  [[nodiscard]] virtual std::vector<std::string> complete(std::span<MultiModalFeature> items) = 0;
  virtual void clear() = 0;
};

struct ProcessorCacheOptions {
  std::string kind;                  ///< as above
  std::size_t max_bytes = 0;         ///< 0: there is no cache
  std::size_t max_object_bytes = 0;  ///< shm: of an item
  /// shm: what the processes that share a segment have in common, the model and how it takes
  /// images.
  std::string key;
  std::filesystem::path directory = "/dev/shm";  ///< shm
  /// shm: the workers are on the engine's host. They are given where items lie, and read them
  /// there.
  bool workers_share = false;
};

/// The names of the kinds.
[[nodiscard]] std::vector<std::string> processor_cache_kinds();

/// Null: there is none. Errors: those of the kind. Pre: the kind is known.
[[nodiscard]] Result<std::shared_ptr<ProcessorCache>> make_processor_cache(
    const ProcessorCacheOptions& options);
/// The engine's side of the same. Null: items always have their data.
[[nodiscard]] Result<std::shared_ptr<ItemCache>> make_item_cache(
    const ProcessorCacheOptions& options);

// The kinds, each in a file of its own.
Result<std::shared_ptr<ProcessorCache>> make_processor_only_cache(
    const ProcessorCacheOptions& options);
Result<std::shared_ptr<ProcessorCache>> make_lru_processor_cache(
    const ProcessorCacheOptions& options);
Result<std::shared_ptr<ItemCache>> make_lru_item_cache(const ProcessorCacheOptions& options);
Result<std::shared_ptr<ProcessorCache>> make_shared_processor_cache(
    const ProcessorCacheOptions& options);
Result<std::shared_ptr<ItemCache>> make_shared_item_cache(const ProcessorCacheOptions& options);

}  // namespace troupe
