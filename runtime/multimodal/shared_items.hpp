#pragma once
// Items in memory that the processes of one host share.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/multimodal/picture_cache.hpp"

namespace troupe {

/// A segment of shared memory (Boost.Interprocess) with a ring of items: a new one takes the place
/// of the oldest. Thread-safe, and safe to use in several processes.
///
/// Users of the segment hold a shared lock (flock) on its file. A process that opens it without
/// other users initialises it, and the last user removes it, so that the next process resets what
/// killed ones left. A robust mutex guards its contents: if its owner dies, the next one empties
/// the ring. Lock attempts time out after a second: the item then counts as a miss.
///
/// Memory is allocated on demand. If the file system is full, items are not cached.
class SharedItems {
 public:
  struct Options {
    std::filesystem::path file;  ///< in a memory file system
    std::size_t max_bytes = 0;   ///< of the segment; that of the first process counts
    std::size_t max_object_bytes = 0;
  };
  /// Errors: kIo (the file, one of another user or open to others), kTimeout (it is locked),
  /// kInvalidArgument (max_bytes is less than kMinBytes).
  static Result<std::shared_ptr<SharedItems>> open(Options options);
  ~SharedItems();
  SharedItems(const SharedItems&) = delete;
  SharedItems& operator=(const SharedItems&) = delete;

  static constexpr std::size_t kMinBytes = std::size_t{1} << 20;

  /// Of a picture; 0: it is not there as a whole.
  [[nodiscard]] std::size_t num_parts(const std::string& identifier);
  /// A copy of an item's data; null: it is not there.
  [[nodiscard]] ItemData find(const std::string& item_identifier);
  void keep(const std::string& identifier, const std::vector<ItemData>& parts);
  void clear();

 private:
  struct Segment;
  class Lock;
  explicit SharedItems(Options options);
  /// False: the file was removed meanwhile.
  Result<bool> enter();

  Options options_;
  std::unique_ptr<Segment> segment_;
};

}  // namespace troupe
