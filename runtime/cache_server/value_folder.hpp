#pragma once
// The disk of the cache server: a file for each value.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/cache_server/value.hpp"

namespace troupe {

/// Owns the folder, which one process may use at a time, and the threads that read and write it. A
/// file is written beside its place and renamed: whatever moment the process is killed at, each
/// file is whole, or is removed by the next start. It has no limit of its own.
class CacheFolder {
 public:
  struct Entry {
    CacheKey key;
    std::uint64_t file_bytes = 0;
  };
  /// Called from the threads.
  using Written = std::function<void(const CacheKey&, const CacheValuePtr&, bool written)>;
  /// Null: it is not there, or it is corrupt and has been removed.
  using Read = std::function<void(CacheValuePtr)>;

  /// Errors: kIo; kInvalidArgument, another process uses it.
  [[nodiscard]] static Result<std::unique_ptr<CacheFolder>> open(const std::string& path);
  /// Writes what waits.
  ~CacheFolder();
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;

  /// What lies there, the latest used one last; what is no whole value is removed.
  [[nodiscard]] std::vector<Entry> scan();
  /// Starts the threads. `written` is called for every write.
  void start(Written written);

  [[nodiscard]] static std::uint64_t file_bytes(const CacheKey& key, std::uint64_t num_bytes) {
    return sizeof(CacheFileHeader) + key.owner.size() + key.key.size() + num_bytes;
  }
  /// False: too much waits to be written.
  [[nodiscard]] bool write(const CacheKey& key, CacheValuePtr value);
  void remove(const CacheKey& key);
  void read(const CacheKey& key, Read done);

 private:
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{256} << 20;
  static constexpr std::size_t kNumReaders = 2;

  struct Write {
    CacheKey key;
    CacheValuePtr value;
  };
  struct Removal {
    CacheKey key;
  };
  struct Reading {
    CacheKey key;
    Read done;
  };

  CacheFolder(std::string path, FileDescriptor lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}
  [[nodiscard]] std::string path_of(const CacheKey& key) const;
  void run_writer();
  void run_reader();
  [[nodiscard]] bool write_file(const Write& write) const;
  [[nodiscard]] CacheValuePtr read_file(const CacheKey& key) const;

  const std::string path_;
  const FileDescriptor lock_;
  Written written_;
  std::mutex mutex_;  // guards the four below
  std::condition_variable changed_;
  std::deque<std::variant<Write, Removal>> writes_;  // in order
  std::deque<Reading> reads_;
  std::size_t waiting_bytes_ = 0;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace troupe
