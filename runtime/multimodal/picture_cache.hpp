#pragma once
// The processor cache: processed images, so that one that was seen is neither decoded nor sent
// again. It has two sides: the front end, which processes images into items, and the engine, which
// receives them. Kinds (--mm-processor-cache-type):
//
//   lru             the engine caches items, the front end tracks which ones; the items of an
//                   image that was sent have no data. Both evict the least recently used.
//   shm             both use the same segment of shared memory, which the processes of a host
//                   share: items are stored there, without data in messages. FIFO eviction.
//   processor_only  the front end caches items, and sends them each time.
//
// The sides may disagree: after a restart, if requests arrive in another order than they were
// prepared in, or with several front ends. Then the engine answers with the missing items, and the
// request is prepared again with data (ItemsMissing).

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

/// MultiModalFeature::data.
using ItemData = std::shared_ptr<const std::vector<char>>;

/// The front end's side. Thread-safe.
class PictureCache {
 public:
  virtual ~PictureCache() = default;
  /// The data of a picture and its parts, in order; empty: it is not known. Where the engine is
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

struct PictureCacheOptions {
  std::string kind;                  ///< as above
  std::size_t max_bytes = 0;         ///< 0: there is no cache
  std::size_t max_object_bytes = 0;  ///< shm: of an item
  /// shm: what the processes that share a segment have in common, the model and how it takes
  /// pictures.
  std::string key;
  std::filesystem::path directory = "/dev/shm";  ///< shm
};

/// The names of the kinds.
[[nodiscard]] std::vector<std::string> picture_cache_kinds();

/// Null: there is none. Errors: those of the kind. Pre: the kind is known.
[[nodiscard]] Result<std::shared_ptr<PictureCache>> make_picture_cache(
    const PictureCacheOptions& options);
/// The engine's side of the same. Null: items always have their data.
[[nodiscard]] Result<std::shared_ptr<ItemCache>> make_item_cache(
    const PictureCacheOptions& options);

/// Of a part of a picture: its number is added to the picture's identifier. Part 0 is the picture.
[[nodiscard]] std::string part_identifier(const std::string& identifier, std::size_t part);

// The kinds, each in a file of its own.
Result<std::shared_ptr<PictureCache>> make_processor_only_cache(const PictureCacheOptions& options);
Result<std::shared_ptr<PictureCache>> make_lru_picture_cache(const PictureCacheOptions& options);
Result<std::shared_ptr<ItemCache>> make_lru_item_cache(const PictureCacheOptions& options);
Result<std::shared_ptr<PictureCache>> make_shared_picture_cache(const PictureCacheOptions& options);
Result<std::shared_ptr<ItemCache>> make_shared_item_cache(const PictureCacheOptions& options);

}  // namespace troupe
