#include "runtime/http/batch_store.hpp"

#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <system_error>

#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStatusNames[] = {"validating", "in_progress", "finalizing",
                                             "completed",  "failed",      "expired",
                                             "cancelling", "cancelled"};
/// Files are never free: each counts this much in addition.
constexpr std::int64_t kFileCost = 4096;
constexpr std::int64_t kBatchStoreVersion = 1;

constexpr const char* kBatchTables =
    "CREATE TABLE IF NOT EXISTS files (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL "
    "UNIQUE, owner TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL, num_bytes INTEGER "
    "NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS batches (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT "
    "NULL UNIQUE, owner TEXT NOT NULL, responses_owner TEXT NOT NULL, endpoint TEXT NOT NULL, "
    "input_file_id TEXT NOT NULL, completion_window TEXT NOT NULL, metadata TEXT NOT NULL, "
    "output_expires_s INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, "
    "status INTEGER NOT NULL, output_file_id TEXT NOT NULL, error_file_id TEXT NOT NULL, errors "
    "TEXT NOT NULL, since0 INTEGER NOT NULL, since1 INTEGER NOT NULL, since2 INTEGER NOT NULL, "
    "since3 INTEGER NOT NULL, since4 INTEGER NOT NULL, since5 INTEGER NOT NULL, since6 INTEGER NOT "
    "NULL, since7 INTEGER NOT NULL, num_requests INTEGER NOT NULL, num_completed INTEGER NOT NULL, "
    "num_failed INTEGER NOT NULL);"
    "CREATE INDEX IF NOT EXISTS files_of ON files (owner, number);"
    "CREATE INDEX IF NOT EXISTS batches_of ON batches (owner, number);"
    "PRAGMA user_version=1";
constexpr const char* kFileColumns =
    "id, owner, filename, purpose, num_bytes, created_at, expires_at";
constexpr const char* kBatchColumns =
    "id, owner, responses_owner, endpoint, input_file_id, completion_window, metadata, "
    "output_expires_s, created_at, expires_at, status, output_file_id, error_file_id, errors, "
    "since0, since1, since2, since3, since4, since5, since6, since7, num_requests, num_completed, "
    "num_failed";
/// BatchStatus 0, 1, 2 and 6 are not final.
constexpr const char* kIsOpen = "status IN (0, 1, 2, 6)";

std::int64_t number_of(BatchStatus status) { return static_cast<std::int64_t>(status); }

StoredFile file_of(const SqliteStatement& row) {
  return {row.text(0),   row.text(1),   row.text(2),  row.text(3),
          row.number(4), row.number(5), row.number(6)};
}

StoredBatch batch_of(const SqliteStatement& row) {
  StoredBatch batch{.id = row.text(0),
                    .owner = row.text(1),
                    .responses_owner = row.text(2),
                    .endpoint = row.text(3),
                    .input_file_id = row.text(4),
                    .completion_window = row.text(5),
                    .metadata = row.text(6),
                    .output_expires_s = row.number(7),
                    .created_at = row.number(8),
                    .expires_at = row.number(9),
                    .status = static_cast<BatchStatus>(row.number(10)),
                    .output_file_id = row.text(11),
                    .error_file_id = row.text(12),
                    .errors = row.text(13)};
  for (int i = 0; i < 8; ++i) batch.since[static_cast<std::size_t>(i)] = row.number(14 + i);
  batch.num_requests = row.number(22);
  batch.num_completed = row.number(23);
  batch.num_failed = row.number(24);
  return batch;
}

void bind_changes(SqliteStatement& statement, const StoredBatch& batch) {
  statement.bind(number_of(batch.status))
      .bind(batch.output_file_id)
      .bind(batch.error_file_id)
      .bind(batch.errors);
  for (const std::int64_t each : batch.since) statement.bind(each);
  statement.bind(batch.num_requests).bind(batch.num_completed).bind(batch.num_failed);
}

Error no_such_object(std::string_view what, const std::string& id, std::string_view param) {
  constexpr std::size_t kMaxShown = 128;
  return {ErrorCode::kNotFound,
          "No such " + std::string(what) + " object: " + id.substr(0, kMaxShown),
          std::string(param)};
}

Error io_error(const fs::path& path, const std::error_code& error) {
  return {ErrorCode::kIo, "batch-directory: " + path.string() + ": " + error.message(), ""};
}

/// Of uploads whose process has ended.
void remove_lost_uploads(const fs::path& directory) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    std::from_chars(name.data(), name.data() + name.size(), pid);
    const bool is_lost = pid <= 0 || pid == getpid() || (kill(pid, 0) != 0 && errno == ESRCH);
    if (is_lost) fs::remove(entry.path(), ignored);
  }
}

void append_time(std::string& json, std::string_view name, std::int64_t time) {
  json.append(",\"").append(name).append("\":");
  if (time == 0) {
    json += "null";
  } else {
    append_json_integer(json, time);
  }
}

void append_text_or_null(std::string& json, std::string_view name, std::string_view text) {
  json.append(",\"").append(name).append("\":");
  if (text.empty()) {
    json += "null";
  } else {
    append_json_string(json, text);
  }
}

}  // namespace

std::string_view to_string(BatchStatus status) noexcept {
  return kStatusNames[static_cast<std::size_t>(status)];
}

bool is_final(BatchStatus status) noexcept {
  return status == BatchStatus::kCompleted || status == BatchStatus::kFailed ||
         status == BatchStatus::kExpired || status == BatchStatus::kCancelled;
}

Result<std::unique_ptr<BatchStore>> BatchStore::open(const std::string& directory,
                                                     const Limits& limits) {
  std::unique_ptr<BatchStore> store(new BatchStore(directory, limits));
  RETURN_IF_ERROR(store->prepare());
  return store;
}

Result<void> BatchStore::prepare() {
  for (const char* folder : {"files", "uploads"}) {
    std::error_code error;
    fs::create_directories(directory_ / folder, error);
    if (error) return io_error(directory_ / folder, error);
  }
  // Prompts and answers are private to the user.
  std::error_code ignored;
  fs::permissions(directory_, fs::perms::owner_all, ignored);
  remove_lost_uploads(directory_ / "uploads");
  const std::string file = (directory_ / "batches.db").string();
  RETURN_IF_ERROR(database_.open(file, file));
  {
    SqliteStatement version(database_, "PRAGMA user_version");
    ASSIGN_OR_RETURN(const bool has_row, version.step());
    const std::int64_t found = has_row ? version.number(0) : 0;
    if (found != 0 && found != kBatchStoreVersion) {
      return Error{ErrorCode::kIo,
                   "batch-directory " + directory_.string() + " has version " +
                       std::to_string(found) + ", this program knows version " +
                       std::to_string(kBatchStoreVersion),
                   "batch-directory"};
    }
  }
  RETURN_IF_ERROR(database_.run(kBatchTables));
  SqliteStatement all(database_, "SELECT COALESCE(SUM(num_bytes), 0), COUNT(*) FROM files");
  ASSIGN_OR_RETURN(const bool has_row, all.step());
  if (has_row) num_bytes_ = all.number(0) + kFileCost * all.number(1);
  return {};
}

fs::path BatchStore::file_path(const std::string& id) const { return directory_ / "files" / id; }

Result<fs::path> BatchStore::new_upload() {
  RETURN_IF_ERROR(reserve(kFileCost));
  return directory_ / "uploads" / (std::to_string(getpid()) + "-" + std::to_string(++num_uploads_));
}

Result<void> BatchStore::reserve(std::int64_t num_bytes) {
  const std::int64_t before = num_bytes_.fetch_add(num_bytes);
  if (before + num_bytes <= limits_.max_bytes) return {};
  num_bytes_ -= num_bytes;
  return Error{ErrorCode::kTooLarge,
               "all files have " + std::to_string(before) +
                   " bytes, with this one they exceed max-batch-directory-bytes, " +
                   std::to_string(limits_.max_bytes) + "; delete some",
               "file"};
}

Result<void> BatchStore::insert_file(const StoredFile& file) {
  SqliteStatement insert(database_, std::string("INSERT OR REPLACE INTO files (") + kFileColumns +
                                        ") VALUES (?, ?, ?, ?, ?, ?, ?)");
  insert.bind(file.id).bind(file.owner).bind(file.filename).bind(file.purpose);
  insert.bind(file.num_bytes).bind(file.created_at).bind(file.expires_at);
  RETURN_IF_ERROR(insert.step());
  return {};
}

Result<void> BatchStore::add_upload(const StoredFile& file, const fs::path& upload) {
  const std::lock_guard lock(mutex_);
  std::error_code error;
  fs::rename(upload, file_path(file.id), error);
  if (error) return io_error(upload, error);
  return insert_file(file);
}

Result<void> BatchStore::add_result(const StoredFile& file) {
  const std::lock_guard lock(mutex_);
  num_bytes_ += file.num_bytes + kFileCost;
  return insert_file(file);
}

Result<StoredFile> BatchStore::file(const std::string& id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  SqliteStatement find(
      database_, std::string("SELECT ") + kFileColumns + " FROM files WHERE id = ? AND owner = ?");
  ASSIGN_OR_RETURN(const bool found, find.bind(id).bind(owner).step());
  if (!found) return no_such_object("File", id, "id");
  return file_of(find);
}

Result<std::vector<StoredFile>> BatchStore::files(const std::string& owner,
                                                  const std::string& purpose,
                                                  const std::string& after, bool oldest_first,
                                                  std::int64_t limit) {
  const std::lock_guard lock(mutex_);
  std::string sql = std::string("SELECT ") + kFileColumns + " FROM files WHERE owner = ?";
  if (!purpose.empty()) sql += " AND purpose = ?";
  if (!after.empty()) {
    sql += std::string(" AND number ") + (oldest_first ? ">" : "<") +
           " (SELECT number FROM files WHERE id = ? AND owner = ?)";
  }
  sql += std::string(" ORDER BY number ") + (oldest_first ? "ASC" : "DESC") + " LIMIT ?";
  SqliteStatement find(database_, sql);
  find.bind(owner);
  if (!purpose.empty()) find.bind(purpose);
  if (!after.empty()) find.bind(after).bind(owner);
  find.bind(limit);
  std::vector<StoredFile> files;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, find.step());
    if (!more) return files;
    files.push_back(file_of(find));
  }
}

Result<void> BatchStore::erase_file(const std::string& id, std::int64_t num_bytes) {
  SqliteStatement remove(database_, "DELETE FROM files WHERE id = ?");
  RETURN_IF_ERROR(remove.bind(id).step());
  std::error_code ignored;
  fs::remove(file_path(id), ignored);
  num_bytes_ -= num_bytes + kFileCost;
  return {};
}

Result<void> BatchStore::remove_file(const std::string& id, const std::string& owner) {
  ASSIGN_OR_RETURN(const StoredFile file, this->file(id, owner));
  const std::lock_guard lock(mutex_);
  {
    SqliteStatement find(
        database_,
        std::string("SELECT id FROM batches WHERE input_file_id = ? AND ") + kIsOpen + " LIMIT 1");
    ASSIGN_OR_RETURN(const bool is_used, find.bind(id).step());
    if (is_used)
      return invalid_argument(id + " is the input of " + find.text(0) + ", which has not ended",
                              "id");
  }
  return erase_file(id, file.num_bytes);
}

Result<void> BatchStore::add_batch(const StoredBatch& batch) {
  const std::lock_guard lock(mutex_);
  SqliteStatement count(database_, std::string("SELECT COUNT(*) FROM batches WHERE ") + kIsOpen);
  ASSIGN_OR_RETURN(const bool has_row, count.step());
  if (has_row && count.number(0) >= kMaxOpenBatches) {
    return Error{ErrorCode::kOverloaded,
                 std::to_string(count.number(0)) + " batches have not ended, the limit is " +
                     std::to_string(kMaxOpenBatches),
                 ""};
  }
  std::string places = "?";
  for (int i = 1; i < 25; ++i) places += ", ?";
  SqliteStatement insert(database_, std::string("INSERT INTO batches (") + kBatchColumns +
                                        ") VALUES (" + places + ")");
  insert.bind(batch.id).bind(batch.owner).bind(batch.responses_owner).bind(batch.endpoint);
  insert.bind(batch.input_file_id).bind(batch.completion_window).bind(batch.metadata);
  insert.bind(batch.output_expires_s).bind(batch.created_at).bind(batch.expires_at);
  bind_changes(insert, batch);
  RETURN_IF_ERROR(insert.step());
  return {};
}

Result<StoredBatch> BatchStore::find_batch(const std::string& id, const std::string& owner) {
  SqliteStatement find(database_, std::string("SELECT ") + kBatchColumns +
                                      " FROM batches WHERE id = ? AND owner = ?");
  ASSIGN_OR_RETURN(const bool found, find.bind(id).bind(owner).step());
  if (!found) return no_such_object("Batch", id, "batch_id");
  return batch_of(find);
}

Result<StoredBatch> BatchStore::batch(const std::string& id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  return find_batch(id, owner);
}

Result<std::vector<StoredBatch>> BatchStore::batches(const std::string& owner,
                                                     const std::string& after, std::int64_t limit) {
  const std::lock_guard lock(mutex_);
  std::string sql = std::string("SELECT ") + kBatchColumns + " FROM batches WHERE owner = ?";
  if (!after.empty())
    sql += " AND number < (SELECT number FROM batches WHERE id = ? AND owner = ?)";
  SqliteStatement find(database_, sql + " ORDER BY number DESC LIMIT ?");
  find.bind(owner);
  if (!after.empty()) find.bind(after).bind(owner);
  find.bind(limit);
  std::vector<StoredBatch> batches;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, find.step());
    if (!more) return batches;
    batches.push_back(batch_of(find));
  }
}

Result<StoredBatch> BatchStore::cancel_batch(const std::string& id, const std::string& owner,
                                             std::int64_t now) {
  const std::lock_guard lock(mutex_);
  SqliteStatement cancel(database_,
                         "UPDATE batches SET status = 6, since6 = ? WHERE id = ? AND owner = ? AND "
                         "status IN (0, 1, 2)");
  RETURN_IF_ERROR(cancel.bind(now).bind(id).bind(owner).step());
  const bool is_changed = database_.num_changed() > 0;
  ASSIGN_OR_RETURN(StoredBatch batch, find_batch(id, owner));
  if (!is_changed && batch.status != BatchStatus::kCancelling)
    return invalid_argument(
        "Cannot cancel a batch with status '" + std::string(to_string(batch.status)) + "'.",
        "batch_id");
  return batch;
}

Result<std::vector<StoredBatch>> BatchStore::open_batches() {
  const std::lock_guard lock(mutex_);
  SqliteStatement find(database_, std::string("SELECT ") + kBatchColumns + " FROM batches WHERE " +
                                      kIsOpen + " ORDER BY number");
  std::vector<StoredBatch> batches;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, find.step());
    if (!more) return batches;
    batches.push_back(batch_of(find));
  }
}

Result<bool> BatchStore::update_batch(const StoredBatch& batch, BatchStatus expected) {
  const std::lock_guard lock(mutex_);
  SqliteStatement update(
      database_,
      "UPDATE batches SET status = ?, output_file_id = ?, error_file_id = ?, errors = ?, since0 = "
      "?, since1 = ?, since2 = ?, since3 = ?, since4 = ?, since5 = ?, since6 = ?, since7 = ?, "
      "num_requests = ?, num_completed = ?, num_failed = ? WHERE id = ? AND status = ?");
  bind_changes(update, batch);
  RETURN_IF_ERROR(update.bind(batch.id).bind(number_of(expected)).step());
  return database_.num_changed() > 0;
}

Result<void> BatchStore::remove_expired(std::int64_t now, std::int64_t oldest_batch) {
  const std::lock_guard lock(mutex_);
  std::vector<StoredFile> expired;
  {
    SqliteStatement find(database_,
                         std::string("SELECT ") + kFileColumns +
                             " FROM files WHERE expires_at > 0 AND expires_at <= ? AND NOT EXISTS "
                             "(SELECT 1 FROM batches WHERE input_file_id = files.id AND " +
                             kIsOpen + ")");
    find.bind(now);
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, find.step());
      if (!more) break;
      expired.push_back(file_of(find));
    }
  }
  for (const StoredFile& file : expired) RETURN_IF_ERROR(erase_file(file.id, file.num_bytes));
  SqliteStatement remove(
      database_, std::string("DELETE FROM batches WHERE created_at < ? AND NOT ") + kIsOpen);
  RETURN_IF_ERROR(remove.bind(oldest_batch).step());
  return {};
}

std::string file_json(const StoredFile& file) {
  std::string json = "{\"id\":";
  append_json_string(json, file.id);
  json += ",\"object\":\"file\",\"bytes\":";
  append_json_integer(json, file.num_bytes);
  append_time(json, "created_at", file.created_at);
  append_time(json, "expires_at", file.expires_at);
  json += ",\"filename\":";
  append_json_string(json, file.filename);
  append_text_or_null(json, "purpose", file.purpose);
  return json + ",\"status\":\"processed\",\"status_details\":null}";
}

std::string batch_json(const StoredBatch& batch) {
  constexpr std::pair<std::string_view, BatchStatus> kTimes[] = {
      {"in_progress_at", BatchStatus::kInProgress}, {"finalizing_at", BatchStatus::kFinalizing},
      {"completed_at", BatchStatus::kCompleted},    {"failed_at", BatchStatus::kFailed},
      {"expired_at", BatchStatus::kExpired},        {"cancelling_at", BatchStatus::kCancelling},
      {"cancelled_at", BatchStatus::kCancelled},
  };
  std::string json = "{\"id\":";
  append_json_string(json, batch.id);
  json += ",\"object\":\"batch\"";
  append_text_or_null(json, "endpoint", batch.endpoint);
  json += ",\"errors\":";
  json += batch.errors.empty() ? "null" : "{\"object\":\"list\",\"data\":" + batch.errors + "}";
  append_text_or_null(json, "input_file_id", batch.input_file_id);
  append_text_or_null(json, "completion_window", batch.completion_window);
  append_text_or_null(json, "status", to_string(batch.status));
  // They are there when nothing is added any more.
  const bool has_files = is_final(batch.status);
  append_text_or_null(json, "output_file_id", has_files ? batch.output_file_id : "");
  append_text_or_null(json, "error_file_id", has_files ? batch.error_file_id : "");
  append_time(json, "created_at", batch.created_at);
  append_time(json, "expires_at", batch.expires_at);
  for (const auto& [name, status] : kTimes)
    append_time(json, name, batch.since[static_cast<std::size_t>(status)]);
  json += ",\"request_counts\":{\"total\":";
  append_json_integer(json, batch.num_requests);
  json += ",\"completed\":";
  append_json_integer(json, batch.num_completed);
  json += ",\"failed\":";
  append_json_integer(json, batch.num_failed);
  json += "},\"metadata\":" + (batch.metadata.empty() ? "null" : batch.metadata);
  return json + "}";
}

}  // namespace troupe
