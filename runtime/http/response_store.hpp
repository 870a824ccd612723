#pragma once
// The responses that clients may ask for again: GET /v1/responses/ID, previous_response_id.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/base/result.hpp"

struct sqlite3;

namespace troupe {

struct StoredResponse {
  std::string response;  ///< the object, as JSON
  std::string input;     ///< the items of its request, as a JSON array
  std::string messages;  ///< the whole conversation up to and with it, as messages of a chat
};

/// An SQLite database, in a file or in memory. When one of the limits is exceeded, the oldest
/// responses are removed. Responses belong to an owner, who alone finds them. Thread-safe.
class ResponseStore {
 public:
  struct Limits {
    std::int64_t max_responses = 1000;
    std::int64_t max_bytes = 256 << 20;
  };

  /// `file` empty: in memory. Errors: kIo (not writable, not such a database), which name the file.
  [[nodiscard]] static Result<std::unique_ptr<ResponseStore>> open(const std::string& file,
                                                                   const Limits& limits);
  ~ResponseStore();
  ResponseStore(const ResponseStore&) = delete;
  ResponseStore& operator=(const ResponseStore&) = delete;

  /// Errors: kTooLarge (larger than all may be together), kIo.
  [[nodiscard]] Result<void> put(const std::string& id, const std::string& owner,
                                 const StoredResponse& stored);
  /// Errors: kNotFound, kIo.
  [[nodiscard]] Result<StoredResponse> get(const std::string& id, const std::string& owner);
  /// Errors: as get.
  [[nodiscard]] Result<void> remove(const std::string& id, const std::string& owner);

 private:
  class Statement;
  ResponseStore(sqlite3* database, std::string file, const Limits& limits)
      : database_(database), file_(std::move(file)), limits_(limits) {}
  [[nodiscard]] Error error() const;
  [[nodiscard]] Result<void> run(const char* sql);
  [[nodiscard]] Result<void> count();
  [[nodiscard]] Result<void> remove_oldest();

  sqlite3* const database_;
  const std::string file_;
  const Limits limits_;
  std::mutex mutex_;
  std::int64_t num_responses_ = 0;
  std::int64_t num_bytes_ = 0;
};

}  // namespace troupe
