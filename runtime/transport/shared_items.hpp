#pragma once
// Items in memory that the processes of one host share.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "messages/encoder_input.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// A segment of shared memory (Boost.Interprocess) with a ring of items: a new one takes the place
/// of the oldest. Thread-safe, and safe to use in several processes.
///
/// Whoever uses the segment holds a shared lock (flock) on its file. Who opens it while nobody does
/// begins it anew, and the last to leave removes it: what a killed process leaves behind is found
/// empty. Within it a robust mutex guards everything: if its owner dies, the next one forgets all
/// items. Nobody waits for it longer than a second: an item counts as not there then, and for
/// another second nobody waits. What an address says is copied in that case, without the mutex.
///
/// An item that somebody has pinned keeps its place: new ones are not kept where the oldest is
/// pinned and there is no other room. Each user is a holder with a number, and holds a lock on the
/// byte of the file with this number: the pins of killed ones do not count.
///
/// What other processes write there may be wrong, but leads to no access outside of the segment.
///
/// Memory is taken as items need it. Where the file system has no more, items are not kept.
class SharedItems : public std::enable_shared_from_this<SharedItems> {
 public:
  struct Options {
    std::filesystem::path file;  ///< in a memory file system
    std::size_t max_bytes = 0;   ///< of the segment; that of the first process counts
    std::size_t max_object_bytes = 0;
  };
  /// Errors: kIo (the file, one of another user or open to others), kTimeout (it is locked),
  /// kInvalidArgument (max_bytes is less than kMinBytes).
  static Result<std::shared_ptr<SharedItems>> open(Options options);
  /// The segment of an address, which others use. Errors: kNotFound, it is not there (any more);
  /// those of open.
  static Result<std::shared_ptr<SharedItems>> open_for(const SharedItemAddress& address);
  ~SharedItems();
  SharedItems(const SharedItems&) = delete;
  SharedItems& operator=(const SharedItems&) = delete;

  static constexpr std::size_t kMinBytes = std::size_t{1} << 20;
  static constexpr std::size_t kMaxHolders = 64;  ///< more users find and copy items

  using Bytes = std::shared_ptr<const std::vector<char>>;
  /// Of how many items the named one is the first; 0: it is not there.
  [[nodiscard]] std::size_t num_parts(const std::string& name);
  [[nodiscard]] bool has(const std::string& name);
  /// A copy of an item; null: it is not there.
  [[nodiscard]] Bytes find(const std::string& name);
  /// Items that belong together, with their names.
  void keep(std::span<const std::string> names, std::span<const Bytes> parts);
  /// What is pinned keeps its place until it is not any more.
  void clear();

  /// An item in its place, where it stays as long as `pin` or a copy of it is there.
  struct Pinned {
    SharedItemAddress address;
    std::span<const char> bytes;
    std::shared_ptr<const void> pin;
  };
  /// Nothing: it is not there, or it cannot be pinned: the pins of this user have half of the ring.
  [[nodiscard]] std::optional<Pinned> pin(const std::string& name);
  /// Of an address that another user has pinned; a copy where it cannot be pinned once more.
  /// Nothing: it is not there any more.
  [[nodiscard]] std::optional<Pinned> pin(const SharedItemAddress& address);

 private:
  struct Segment;
  struct Slot;
  class Lock;
  explicit SharedItems(Options options);
  /// False: the file was removed meanwhile.
  Result<bool> enter(bool may_create);
  void take_holder_number();
  Pinned pin(Slot& slot);
  void unpin(std::uint64_t position, std::size_t num_bytes);

  Options options_;
  std::unique_ptr<Segment> segment_;
  std::mutex pins_mutex_;
  std::unordered_map<std::uint64_t, std::size_t> pins_;  ///< how many, by position
  std::size_t pinned_bytes_ = 0;
};

/// What the items of steps refer to: opens the segments of their addresses. Used by one thread.
class SharedItemReader {
 public:
  /// Errors: those of SharedItems::open_for; kNotFound, the item is not there any more.
  [[nodiscard]] Result<SharedItems::Pinned> read(const SharedItemAddress& address);

 private:
  std::shared_ptr<SharedItems> items_;  ///< of the address before
  std::uint64_t segment_ = 0;
};

}  // namespace troupe
