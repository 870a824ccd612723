#pragma once
// The responses that clients may ask for again: GET /v1/responses/ID, previous_response_id, and
// those that are made in the background.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/http/sqlite.hpp"

namespace troupe {

struct StoredResponse {
  std::string response;  ///< the object, as JSON
  std::string input;     ///< the items of its request, as a JSON array
  std::string messages;  ///< the whole conversation up to and with it, as messages of a chat
};

/// What a response in the background is made of: the same makes the same tokens.
struct ResponseRun {
  std::string owner;
  std::string key;           ///< see ApiKeys::key_id
  std::string engine;        ///< ServiceConfig::engine_name
  std::string body;          ///< of the request
  std::string conversation;  ///< before the answer, as elements of a JSON array
  std::uint64_t philox_key = 0;
  double arrival_time = 0;  ///< seconds since 1970
};

/// A run that its holder alone may add to.
struct ClaimedRun {
  std::string token;
  ResponseRun run;
  std::string position;  ///< of the events so far, see StreamPosition; empty: none of the answer's
  std::int64_t num_events = 0;
};

/// What has become of a response in the background since the last time.
struct ResponseProgress {
  std::string events;    ///< those of its stream
  std::string position;  ///< behind them; empty: as before
  std::string response;  ///< the object; empty: as before
  std::string messages;  ///< of a finished response
  bool is_final = false;
};

struct ResponseEvents {
  std::string text;
  std::int64_t last =
      -1;  ///< the number of the last one; that which was asked for if there are none
  bool is_complete = false;  ///< none follow
};

/// An SQLite database, in a file or in memory. When one of the limits is exceeded, the oldest
/// responses are removed, those in progress last. Responses are visible to their owner only.
/// Thread-safe. A response in progress is written by one process; when that has ended,
/// another one claims it.
class ResponseStore {
 public:
  struct Limits {
    std::int64_t max_responses = 1000;
    std::int64_t max_bytes = 256 << 20;
  };

  /// `file` empty: in memory. Errors: kIo (not writable, not such a database), which name the file.
  [[nodiscard]] static Result<std::unique_ptr<ResponseStore>> open(const std::string& file,
                                                                   const Limits& limits);

  /// Errors: kTooLarge (larger than all may be together), kIo.
  [[nodiscard]] Result<void> put(const std::string& id, const std::string& owner,
                                 const StoredResponse& stored);
  /// Errors: kNotFound, kIo.
  [[nodiscard]] Result<StoredResponse> get(const std::string& id, const std::string& owner);
  /// Errors: as get. Ends a response in progress.
  [[nodiscard]] Result<void> remove(const std::string& id, const std::string& owner);

  /// Stores a response in progress, with its first events; returns the token for `append`. Errors:
  /// as put.
  [[nodiscard]] Result<std::string> begin(const std::string& id, const StoredResponse& stored,
                                          const ResponseRun& run, const ResponseProgress& progress);
  /// Errors: kNotFound (it was removed, or claimed by another), kTooLarge, kIo.
  [[nodiscard]] Result<void> append(const std::string& id, const std::string& token,
                                    const ResponseProgress& progress);
  /// Releases the claim; another process may continue the response.
  [[nodiscard]] Result<void> release(const std::string& id, const std::string& token);
  /// Claims a response in progress; nullopt: it is finished, or (unless `by_force`) the process
  /// that has claimed it runs.
  [[nodiscard]] Result<std::optional<ClaimedRun>> claim(const std::string& id, bool by_force);
  /// Those whose process has ended.
  [[nodiscard]] Result<std::vector<std::string>> abandoned();
  /// The events behind number `after`, about `max_bytes` of them. Errors: kNotFound (no response in
  /// the background), kIo.
  [[nodiscard]] Result<ResponseEvents> events(const std::string& id, const std::string& owner,
                                              std::int64_t after, std::size_t max_bytes);

  /// `changed` is called, by any thread, whenever this process has appended to the response, or
  /// removed it. Returns a number for `unwatch`.
  [[nodiscard]] std::uint64_t watch(const std::string& id, std::function<void()> changed);
  void unwatch(std::uint64_t number);

 private:
  explicit ResponseStore(const Limits& limits) : limits_(limits) {}
  [[nodiscard]] Result<void> insert(const std::string& id, const std::string& owner,
                                    const StoredResponse& stored);
  [[nodiscard]] Result<void> try_append(const std::string& id, const std::string& token,
                                        const ResponseProgress& progress);
  [[nodiscard]] Result<void> add_events(const std::string& id, std::int64_t first,
                                        const std::string& events);
  [[nodiscard]] Result<void> grow(const std::string& id, std::size_t num_bytes);
  [[nodiscard]] Result<void> count();
  [[nodiscard]] Result<void> remove_oldest();
  [[nodiscard]] Result<void> forget(const std::string& id, std::int64_t size);
  [[nodiscard]] Result<bool> exists(const std::string& id, const std::string& owner);
  [[nodiscard]] std::string new_token();
  void notify(const std::string& id);
  /// All changes of `change`, or none.
  template <class Change>
  [[nodiscard]] Result<void> transact(const Change& change);

  SqliteDatabase database_;
  const Limits limits_;
  std::mutex mutex_;
  std::int64_t num_responses_ = 0;
  std::int64_t num_bytes_ = 0;
  std::uint64_t num_tokens_ = 0;

  struct Watch {
    std::string id;
    std::function<void()> changed;
  };
  std::mutex watches_mutex_;  // guards everything below
  std::map<std::uint64_t, Watch> watches_;
  std::uint64_t num_watches_ = 0;
};

/// The number of events in the text of a stream.
[[nodiscard]] std::int64_t count_events(std::string_view events) noexcept;

}  // namespace troupe
