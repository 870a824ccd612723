#include "runtime/http/response_store.hpp"

#include <sqlite3.h>

#include <string_view>

namespace troupe {
namespace {

/// Another process may write to the same file.
constexpr int kBusyTimeout_ms = 2000;
constexpr int kVersion = 1;

std::int64_t size_of(const StoredResponse& stored) {
  return static_cast<std::int64_t>(stored.response.size() + stored.input.size() +
                                   stored.messages.size());
}

Error no_such(const std::string& id) {
  constexpr std::size_t kMaxShown = 128;
  return {ErrorCode::kNotFound, "Response with id '" + id.substr(0, kMaxShown) + "' not found.",
          "response_id"};
}

}  // namespace

/// A prepared statement with its parameters.
class ResponseStore::Statement {
 public:
  Statement(const ResponseStore& store, const char* sql) : store_(store) {
    sqlite3_prepare_v2(store.database_, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  /// Parameters in their order; the text must outlive the statement.
  Statement& bind(std::string_view text) {
    sqlite3_bind_text64(statement_, ++num_bound_, text.data(), text.size(), SQLITE_STATIC,
                        SQLITE_UTF8);
    return *this;
  }
  Statement& bind(std::int64_t number) {
    sqlite3_bind_int64(statement_, ++num_bound_, number);
    return *this;
  }
  /// True: a row; false: done.
  Result<bool> step() {
    const int code = statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return store_.error();
  }
  [[nodiscard]] std::string text(int column) const {
    const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement_, column));
    return {bytes == nullptr ? "" : bytes,
            static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
  }
  [[nodiscard]] std::int64_t number(int column) const {
    return sqlite3_column_int64(statement_, column);
  }

 private:
  const ResponseStore& store_;
  sqlite3_stmt* statement_ = nullptr;
  int num_bound_ = 0;
};

Error ResponseStore::error() const {
  return {ErrorCode::kIo, "responses-db " + (file_.empty() ? "in memory" : file_) + ": " +
                              sqlite3_errmsg(database_)};
}

Result<void> ResponseStore::run(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return error();
  return {};
}

Result<std::unique_ptr<ResponseStore>> ResponseStore::open(const std::string& file,
                                                           const Limits& limits) {
  sqlite3* database = nullptr;
  const int code = sqlite3_open_v2(file.empty() ? ":memory:" : file.c_str(), &database,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  std::unique_ptr<ResponseStore> store(new ResponseStore(database, file, limits));
  if (code != SQLITE_OK) return store->error();
  sqlite3_busy_timeout(database, kBusyTimeout_ms);
  // A crash of the system may lose the last responses, never the database.
  RETURN_IF_ERROR(store->run("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"));
  {
    Statement version(*store, "PRAGMA user_version");
    ASSIGN_OR_RETURN(const bool has_row, version.step());
    const std::int64_t found = has_row ? version.number(0) : 0;
    if (found != 0 && found != kVersion) {
      return Error{ErrorCode::kIo, "responses-db " + file + ": has version " +
                                       std::to_string(found) + ", this program knows version " +
                                       std::to_string(kVersion)};
    }
  }
  RETURN_IF_ERROR(store->run(
      "CREATE TABLE IF NOT EXISTS responses (number INTEGER PRIMARY KEY, id TEXT NOT NULL, "
      "owner TEXT NOT NULL, size INTEGER NOT NULL, response TEXT NOT NULL, input TEXT NOT NULL, "
      "messages TEXT NOT NULL);"
      "CREATE UNIQUE INDEX IF NOT EXISTS by_id ON responses (id);"
      "PRAGMA user_version=1"));
  RETURN_IF_ERROR(store->count());
  RETURN_IF_ERROR(store->remove_oldest());
  return store;
}

ResponseStore::~ResponseStore() { sqlite3_close(database_); }

Result<void> ResponseStore::count() {
  Statement all(*this, "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM responses");
  ASSIGN_OR_RETURN(const bool has_row, all.step());
  num_responses_ = has_row ? all.number(0) : 0;
  num_bytes_ = has_row ? all.number(1) : 0;
  return {};
}

Result<void> ResponseStore::remove_oldest() {
  while (num_responses_ > limits_.max_responses || num_bytes_ > limits_.max_bytes) {
    Statement oldest(*this,
                     "DELETE FROM responses WHERE number = (SELECT MIN(number) FROM responses) "
                     "RETURNING size");
    ASSIGN_OR_RETURN(const bool is_gone, oldest.step());
    if (!is_gone) return count();  // another process has removed them
    --num_responses_;
    num_bytes_ -= oldest.number(0);
    ASSIGN_OR_RETURN(const bool more, oldest.step());
    CHECK(!more);
  }
  return {};
}

Result<void> ResponseStore::put(const std::string& id, const std::string& owner,
                                const StoredResponse& stored) {
  const std::int64_t size = size_of(stored);
  if (size > limits_.max_bytes) {
    return Error{ErrorCode::kTooLarge,
                 "the response has " + std::to_string(size) +
                     " bytes with its conversation, max-stored-response-bytes is " +
                     std::to_string(limits_.max_bytes)};
  }
  const std::lock_guard lock(mutex_);
  Statement insert(*this,
                   "INSERT INTO responses (id, owner, size, response, input, messages) "
                   "VALUES (?, ?, ?, ?, ?, ?)");
  insert.bind(id)
      .bind(owner)
      .bind(size)
      .bind(stored.response)
      .bind(stored.input)
      .bind(stored.messages);
  RETURN_IF_ERROR(insert.step());
  ++num_responses_;
  num_bytes_ += size;
  return remove_oldest();
}

Result<StoredResponse> ResponseStore::get(const std::string& id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  Statement find(*this,
                 "SELECT response, input, messages FROM responses WHERE id = ? AND owner = ?");
  ASSIGN_OR_RETURN(const bool is_found, find.bind(id).bind(owner).step());
  if (!is_found) return no_such(id);
  return StoredResponse{find.text(0), find.text(1), find.text(2)};
}

Result<void> ResponseStore::remove(const std::string& id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  Statement remove(*this, "DELETE FROM responses WHERE id = ? AND owner = ? RETURNING size");
  ASSIGN_OR_RETURN(const bool is_found, remove.bind(id).bind(owner).step());
  if (!is_found) return no_such(id);
  --num_responses_;
  num_bytes_ -= remove.number(0);
  ASSIGN_OR_RETURN(const bool more, remove.step());
  CHECK(!more);
  return {};
}

}  // namespace troupe
