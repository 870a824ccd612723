#include "runtime/http/sqlite.hpp"

#include <sqlite3.h>

namespace troupe {
namespace {

constexpr int kSqliteBusyTimeout_ms = 5000;

}  // namespace

SqliteDatabase::~SqliteDatabase() { sqlite3_close(database_); }

Error SqliteDatabase::error() const {
  return {ErrorCode::kIo, shown_ + ": " + sqlite3_errmsg(database_), ""};
}

Result<void> SqliteDatabase::open(const std::string& file, const std::string& shown) {
  shown_ = shown;
  if (sqlite3_open_v2(file.empty() ? ":memory:" : file.c_str(), &database_,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr) != SQLITE_OK)
    return error();
  sqlite3_busy_timeout(database_, kSqliteBusyTimeout_ms);
  // A crash of the system may lose the last changes, never the database.
  return run("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL");
}

Result<void> SqliteDatabase::run(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return error();
  return {};
}

std::int64_t SqliteDatabase::num_changed() const { return sqlite3_changes(database_); }

SqliteStatement::SqliteStatement(const SqliteDatabase& database, const std::string& sql)
    : database_(database) {
  sqlite3_prepare_v2(database.database_, sql.c_str(), -1, &statement_, nullptr);
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

SqliteStatement& SqliteStatement::bind(std::string_view text) {
  sqlite3_bind_text64(statement_, ++num_bound_, text.data(), text.size(), SQLITE_TRANSIENT,
                      SQLITE_UTF8);
  return *this;
}

SqliteStatement& SqliteStatement::bind(std::int64_t number) {
  sqlite3_bind_int64(statement_, ++num_bound_, number);
  return *this;
}

Result<bool> SqliteStatement::step() {
  const int code = statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return database_.error();
}

std::string SqliteStatement::text(int column) const {
  const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement_, column));
  return {bytes == nullptr ? "" : bytes,
          static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
}

std::int64_t SqliteStatement::number(int column) const {
  return sqlite3_column_int64(statement_, column);
}

}  // namespace troupe
