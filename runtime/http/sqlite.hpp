#pragma once
// Statements of SQLite, whose errors are Results.

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

struct sqlite3;
struct sqlite3_stmt;

namespace troupe {

/// Owns a connection. Not thread-safe.
class SqliteDatabase {
 public:
  SqliteDatabase() = default;
  ~SqliteDatabase();
  SqliteDatabase(const SqliteDatabase&) = delete;
  SqliteDatabase& operator=(const SqliteDatabase&) = delete;

  /// Creates the file if there is none; other processes may use it too. `file` empty: in memory.
  /// Errors: kIo, as of all functions here, which begin with `shown`.
  [[nodiscard]] Result<void> open(const std::string& file, const std::string& shown);
  [[nodiscard]] Result<void> run(const char* sql);
  /// Rows that the last statement has changed.
  [[nodiscard]] std::int64_t num_changed() const;

 private:
  friend class SqliteStatement;
  [[nodiscard]] Error error() const;

  sqlite3* database_ = nullptr;
  std::string shown_;
};

/// A prepared statement with its parameters.
class SqliteStatement {
 public:
  SqliteStatement(const SqliteDatabase& database, const std::string& sql);
  ~SqliteStatement();
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  /// Parameters in their order.
  SqliteStatement& bind(std::string_view text);
  SqliteStatement& bind(std::int64_t number);
  /// True: a row; false: done.
  [[nodiscard]] Result<bool> step();
  [[nodiscard]] std::string text(int column) const;
  [[nodiscard]] std::int64_t number(int column) const;

 private:
  const SqliteDatabase& database_;
  sqlite3_stmt* statement_ = nullptr;
  int num_bound_ = 0;
};

}  // namespace troupe
