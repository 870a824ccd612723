#pragma once
// What /v1/files and /v1/batches keep on disk: files as they are, and an SQLite database of them.

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/http/sqlite.hpp"

namespace troupe {

struct StoredFile {
  std::string id;  ///< file-...
  std::string owner;
  std::string filename;
  std::string purpose;
  std::int64_t num_bytes = 0;
  std::int64_t created_at = 0;  ///< seconds since 1970, as all times here
  std::int64_t expires_at = 0;  ///< 0: never
};

enum class BatchStatus : std::uint8_t {
  kValidating,
  kInProgress,
  kFinalizing,
  kCompleted,
  kFailed,
  kExpired,
  kCancelling,
  kCancelled
};
[[nodiscard]] std::string_view to_string(BatchStatus status) noexcept;
/// Nothing happens to it any more.
[[nodiscard]] bool is_final(BatchStatus status) noexcept;

struct StoredBatch {
  std::string id;  ///< batch_...
  std::string owner;
  std::string responses_owner;  ///< see BatchOwner
  std::string endpoint;
  std::string input_file_id;
  std::string completion_window;
  std::string metadata;               ///< a JSON object; empty: null
  std::int64_t output_expires_s = 0;  ///< after it was created; 0: never
  std::int64_t created_at = 0;
  std::int64_t expires_at = 0;

  // What changes later.
  BatchStatus status = BatchStatus::kValidating;
  std::string output_file_id;           ///< set before the file is there
  std::string error_file_id;            ///< the same
  std::string errors;                   ///< of validation: a JSON array; empty: none
  std::array<std::int64_t, 8> since{};  ///< by status: when it was reached; 0: not yet
  std::int64_t num_requests = 0;
  std::int64_t num_completed = 0;
  std::int64_t num_failed = 0;

  [[nodiscard]] std::int64_t& reached(BatchStatus which) {
    return since[static_cast<std::size_t>(which)];
  }
};

/// Owns the directory's layout: batches.db, files/ID and uploads/. Files and batches are visible to
/// their owner only. Thread-safe; another process may use the directory too.
class BatchStore {
 public:
  struct Limits {
    std::int64_t max_file_bytes = 200 << 20;
    std::int64_t max_bytes = std::int64_t{10} << 30;  ///< of all files
    std::int64_t max_requests = 50000;                ///< of a batch
    std::int64_t max_line_bytes = 32 << 20;
  };
  static constexpr std::int64_t kMaxOpenBatches = 1000;

  /// Errors: kIo, naming the file.
  [[nodiscard]] static Result<std::unique_ptr<BatchStore>> open(const std::string& directory,
                                                                const Limits& limits);

  [[nodiscard]] const Limits& limits() const noexcept { return limits_; }
  [[nodiscard]] std::filesystem::path file_path(const std::string& id) const;
  [[nodiscard]] std::filesystem::path lock_path() const { return directory_ / "lock"; }

  /// A new file for an upload. Errors: kIo.
  [[nodiscard]] Result<std::filesystem::path> new_upload();
  /// Counts bytes that a file is to take. Errors: kTooLarge (all files together).
  [[nodiscard]] Result<void> reserve(std::int64_t num_bytes);
  void release(std::int64_t num_bytes) noexcept { num_bytes_ -= num_bytes; }

  /// Moves `upload`, whose bytes are reserved, to its place. Errors: kIo.
  [[nodiscard]] Result<void> add_upload(const StoredFile& file,
                                        const std::filesystem::path& upload);
  /// Registers the file that is at file_path already.
  [[nodiscard]] Result<void> add_result(const StoredFile& file);
  /// Errors of this and what follows: kNotFound, kIo.
  [[nodiscard]] Result<StoredFile> file(const std::string& id, const std::string& owner);
  /// From the newest on, or from the oldest, behind the file `after` (empty: all).
  [[nodiscard]] Result<std::vector<StoredFile>> files(const std::string& owner,
                                                      const std::string& purpose,
                                                      const std::string& after, bool oldest_first,
                                                      std::int64_t limit);
  /// Error also: kInvalidArgument, a batch that has not ended reads it.
  [[nodiscard]] Result<void> remove_file(const std::string& id, const std::string& owner);

  /// Error also: kOverloaded, there are kMaxOpenBatches that have not ended.
  [[nodiscard]] Result<void> add_batch(const StoredBatch& batch);
  [[nodiscard]] Result<StoredBatch> batch(const std::string& id, const std::string& owner);
  [[nodiscard]] Result<std::vector<StoredBatch>> batches(const std::string& owner,
                                                         const std::string& after,
                                                         std::int64_t limit);
  /// Begins to cancel it. Error also: kInvalidArgument, it has ended.
  [[nodiscard]] Result<StoredBatch> cancel_batch(const std::string& id, const std::string& owner,
                                                 std::int64_t now);
  /// Those that have not ended, of all owners, the oldest first.
  [[nodiscard]] Result<std::vector<StoredBatch>> open_batches();
  /// Stores what has changed, if the stored status is still `expected`; false: it is not.
  [[nodiscard]] Result<bool> update_batch(const StoredBatch& batch, BatchStatus expected);

  /// Removes expired files, and batches that were created before `oldest_batch`.
  [[nodiscard]] Result<void> remove_expired(std::int64_t now, std::int64_t oldest_batch);

 private:
  BatchStore(std::filesystem::path directory, const Limits& limits)
      : directory_(std::move(directory)), limits_(limits) {}
  [[nodiscard]] Result<void> prepare();
  [[nodiscard]] Result<void> insert_file(const StoredFile& file);
  [[nodiscard]] Result<void> erase_file(const std::string& id, std::int64_t num_bytes);
  [[nodiscard]] Result<StoredBatch> find_batch(const std::string& id, const std::string& owner);

  const std::filesystem::path directory_;
  const Limits limits_;
  std::atomic<std::int64_t> num_bytes_{0};
  std::atomic<std::uint64_t> num_uploads_{0};
  std::mutex mutex_;
  SqliteDatabase database_;
};

[[nodiscard]] std::string file_json(const StoredFile& file);
[[nodiscard]] std::string batch_json(const StoredBatch& batch);

}  // namespace troupe
