#include "runtime/http/response_store.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

namespace troupe {
namespace {

constexpr int kVersion = 2;  ///< 1 has no responses in the background
constexpr std::string_view kEventEnd = "\n\n";

Error no_such(const std::string& id) {
  constexpr std::size_t kMaxShown = 128;
  return {ErrorCode::kNotFound, "Response with id '" + id.substr(0, kMaxShown) + "' not found.",
          "response_id"};
}

/// When a process was started, in ticks since the machine was; empty: there is none.
std::string start_time(std::string_view pid) {
  std::ifstream file("/proc/" + std::string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  // Behind the name of the program, which may contain anything.
  std::size_t at = text.rfind(')');
  constexpr int kFieldsBetween = 20;
  for (int i = 0; i < kFieldsBetween && at != std::string::npos; ++i) at = text.find(' ', at + 1);
  if (at == std::string::npos) return {};
  return text.substr(at + 1, text.find(' ', at + 1) - at - 1);
}

/// Whether the process that a token is of still runs. "PID START NUMBER".
bool is_alive(std::string_view token) {
  const std::size_t first = token.find(' ');
  if (first == std::string_view::npos) return false;
  const std::string_view pid = token.substr(0, first);
  const std::size_t second = token.find(' ', first + 1);
  return start_time(pid) == token.substr(first + 1, second - first - 1);
}

/// Events behind the first `count`.
std::string_view skip_events(std::string_view events, std::int64_t count) {
  for (; count > 0; --count) events.remove_prefix(events.find(kEventEnd) + kEventEnd.size());
  return events;
}

}  // namespace

std::int64_t count_events(std::string_view events) noexcept {
  std::int64_t count = 0;
  for (std::size_t at = events.find(kEventEnd); at != std::string_view::npos;
       at = events.find(kEventEnd, at + kEventEnd.size()))
    ++count;
  return count;
}

Result<std::unique_ptr<ResponseStore>> ResponseStore::open(const std::string& file,
                                                           const Limits& limits) {
  std::unique_ptr<ResponseStore> store(new ResponseStore(limits));
  RETURN_IF_ERROR(store->database_.open(
      file, "responses-db " + (file.empty() ? std::string("in memory") : file)));
  {
    SqliteStatement version(store->database_, "PRAGMA user_version");
    ASSIGN_OR_RETURN(const bool has_row, version.step());
    const std::int64_t found = has_row ? version.number(0) : 0;
    if (found > kVersion) {
      return Error{ErrorCode::kIo, "responses-db " + file + ": has version " +
                                       std::to_string(found) + ", this program knows version " +
                                       std::to_string(kVersion)};
    }
  }
  RETURN_IF_ERROR(store->database_.run(
      "CREATE TABLE IF NOT EXISTS responses (number INTEGER PRIMARY KEY, id TEXT NOT NULL, "
      "owner TEXT NOT NULL, size INTEGER NOT NULL, response TEXT NOT NULL, input TEXT NOT NULL, "
      "messages TEXT NOT NULL);"
      "CREATE UNIQUE INDEX IF NOT EXISTS by_id ON responses (id);"
      "CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, owner TEXT NOT NULL, "
      "key TEXT NOT NULL, engine TEXT NOT NULL, body TEXT NOT NULL, conversation TEXT NOT NULL, "
      "philox_key INTEGER NOT NULL, arrival_us INTEGER NOT NULL, token TEXT NOT NULL, "
      "position TEXT NOT NULL, num_events INTEGER NOT NULL);"
      "CREATE TABLE IF NOT EXISTS events (id TEXT NOT NULL, first INTEGER NOT NULL, "
      "text TEXT NOT NULL, PRIMARY KEY (id, first)) WITHOUT ROWID;"
      "PRAGMA user_version=2"));
  RETURN_IF_ERROR(store->count());
  RETURN_IF_ERROR(store->remove_oldest());
  return store;
}

template <class Change>
Result<void> ResponseStore::transact(const Change& change) {
  RETURN_IF_ERROR(database_.run("BEGIN IMMEDIATE"));
  if (const Result<void> changed = change(); !changed.ok()) {
    RETURN_IF_ERROR(database_.run("ROLLBACK"));
    RETURN_IF_ERROR(count());
    return changed.error();
  }
  return database_.run("COMMIT");
}

std::string ResponseStore::new_token() {
  const std::string pid = std::to_string(getpid());
  return pid + " " + start_time(pid) + " " + std::to_string(num_tokens_++);
}

Result<void> ResponseStore::count() {
  SqliteStatement all(database_, "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM responses");
  ASSIGN_OR_RETURN(const bool has_row, all.step());
  num_responses_ = has_row ? all.number(0) : 0;
  num_bytes_ = has_row ? all.number(1) : 0;
  return {};
}

Result<void> ResponseStore::forget(const std::string& id, std::int64_t size) {
  for (const char* sql : {"DELETE FROM responses WHERE id = ?", "DELETE FROM runs WHERE id = ?",
                          "DELETE FROM events WHERE id = ?"}) {
    SqliteStatement remove(database_, sql);
    RETURN_IF_ERROR(remove.bind(id).step());
  }
  --num_responses_;
  num_bytes_ -= size;
  return {};
}

Result<void> ResponseStore::remove_oldest() {
  while (num_responses_ > limits_.max_responses || num_bytes_ > limits_.max_bytes) {
    std::string id;
    std::int64_t size = 0;
    {
      SqliteStatement oldest(database_,
                             "SELECT id, size FROM responses ORDER BY "
                             "id IN (SELECT id FROM runs), number LIMIT 1");
      ASSIGN_OR_RETURN(const bool is_found, oldest.step());
      if (!is_found) return count();  // another process has removed them
      id = oldest.text(0);
      size = oldest.number(1);
    }
    RETURN_IF_ERROR(forget(id, size));
  }
  return {};
}

Result<void> ResponseStore::insert(const std::string& id, const std::string& owner,
                                   const StoredResponse& stored) {
  const auto size = static_cast<std::int64_t>(stored.response.size() + stored.input.size() +
                                              stored.messages.size());
  if (size > limits_.max_bytes) {
    return Error{ErrorCode::kTooLarge,
                 "the response has " + std::to_string(size) +
                     " bytes with its conversation, max-stored-response-bytes is " +
                     std::to_string(limits_.max_bytes)};
  }
  SqliteStatement insert(database_,
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
  return {};
}

/// The response has `num_bytes` more.
Result<void> ResponseStore::grow(const std::string& id, std::size_t num_bytes) {
  const auto size = static_cast<std::int64_t>(num_bytes);
  SqliteStatement grow(database_, "UPDATE responses SET size = size + ? WHERE id = ?");
  RETURN_IF_ERROR(grow.bind(size).bind(id).step());
  num_bytes_ += size;
  return {};
}

Result<void> ResponseStore::add_events(const std::string& id, std::int64_t first,
                                       const std::string& events) {
  if (events.empty()) return {};
  SqliteStatement add(database_, "INSERT INTO events (id, first, text) VALUES (?, ?, ?)");
  RETURN_IF_ERROR(add.bind(id).bind(first).bind(events).step());
  return {};
}

Result<void> ResponseStore::put(const std::string& id, const std::string& owner,
                                const StoredResponse& stored) {
  const std::lock_guard lock(mutex_);
  return transact([&]() -> Result<void> {
    RETURN_IF_ERROR(insert(id, owner, stored));
    return remove_oldest();
  });
}

Result<StoredResponse> ResponseStore::get(const std::string& id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  SqliteStatement find(
      database_, "SELECT response, input, messages FROM responses WHERE id = ? AND owner = ?");
  ASSIGN_OR_RETURN(const bool is_found, find.bind(id).bind(owner).step());
  if (!is_found) return no_such(id);
  return StoredResponse{find.text(0), find.text(1), find.text(2)};
}

Result<bool> ResponseStore::exists(const std::string& id, const std::string& owner) {
  SqliteStatement find(database_, "SELECT 1 FROM responses WHERE id = ? AND owner = ?");
  return find.bind(id).bind(owner).step();
}

Result<void> ResponseStore::remove(const std::string& id, const std::string& owner) {
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(transact([&]() -> Result<void> {
      std::int64_t size = 0;
      {
        SqliteStatement find(database_, "SELECT size FROM responses WHERE id = ? AND owner = ?");
        ASSIGN_OR_RETURN(const bool is_found, find.bind(id).bind(owner).step());
        if (!is_found) return no_such(id);
        size = find.number(0);
      }
      return forget(id, size);
    }));
  }
  notify(id);
  return {};
}

Result<std::string> ResponseStore::begin(const std::string& id, const StoredResponse& stored,
                                         const ResponseRun& run, const ResponseProgress& progress) {
  constexpr double kMicroseconds = 1e6;
  const std::lock_guard lock(mutex_);
  const std::string token = new_token();
  RETURN_IF_ERROR(transact([&]() -> Result<void> {
    RETURN_IF_ERROR(insert(id, run.owner, stored));
    SqliteStatement add(database_,
                        "INSERT INTO runs (id, owner, key, engine, body, conversation, philox_key, "
                        "arrival_us, token, position, num_events) "
                        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    add.bind(id)
        .bind(run.owner)
        .bind(run.key)
        .bind(run.engine)
        .bind(run.body)
        .bind(run.conversation)
        .bind(static_cast<std::int64_t>(run.philox_key))
        .bind(static_cast<std::int64_t>(run.arrival_time * kMicroseconds))
        .bind(token)
        .bind(progress.position)
        .bind(count_events(progress.events));
    RETURN_IF_ERROR(add.step());
    RETURN_IF_ERROR(add_events(id, 0, progress.events));
    RETURN_IF_ERROR(grow(id, run.body.size() + run.conversation.size() + progress.events.size()));
    RETURN_IF_ERROR(remove_oldest());
    ASSIGN_OR_RETURN(const bool is_there, exists(id, run.owner));
    if (is_there) return {};
    return Error{ErrorCode::kOverloaded,
                 "too many or too large background responses, see "
                 "max-stored-responses and max-stored-response-bytes",
                 "background"};
  }));
  return token;
}

Result<void> ResponseStore::append(const std::string& id, const std::string& token,
                                   const ResponseProgress& progress) {
  const Result<void> appended = try_append(id, token, progress);
  if (appended.ok()) notify(id);
  return appended;
}

Result<void> ResponseStore::try_append(const std::string& id, const std::string& token,
                                       const ResponseProgress& progress) {
  const std::lock_guard lock(mutex_);
  return transact([&]() -> Result<void> {
    std::int64_t num_events = 0;
    {
      SqliteStatement find(database_, "SELECT num_events FROM runs WHERE id = ? AND token = ?");
      ASSIGN_OR_RETURN(const bool is_found, find.bind(id).bind(token).step());
      if (!is_found) return no_such(id);
      num_events = find.number(0);
    }
    RETURN_IF_ERROR(add_events(id, num_events, progress.events));
    RETURN_IF_ERROR(grow(id, progress.events.size() + progress.messages.size()));
    if (!progress.response.empty()) {
      SqliteStatement update(
          database_, "UPDATE responses SET response = ?, messages = messages || ? WHERE id = ?");
      RETURN_IF_ERROR(update.bind(progress.response).bind(progress.messages).bind(id).step());
    }
    SqliteStatement update(
        database_, progress.is_final ? "DELETE FROM runs WHERE id = ?"
                                     : "UPDATE runs SET num_events = num_events + ?, position = "
                                       "CASE ? WHEN '' THEN position ELSE ? END WHERE id = ?");
    if (!progress.is_final)
      update.bind(count_events(progress.events)).bind(progress.position).bind(progress.position);
    RETURN_IF_ERROR(update.bind(id).step());
    return remove_oldest();
  });
}

Result<void> ResponseStore::release(const std::string& id, const std::string& token) {
  const std::lock_guard lock(mutex_);
  SqliteStatement release(database_, "UPDATE runs SET token = '' WHERE id = ? AND token = ?");
  RETURN_IF_ERROR(release.bind(id).bind(token).step());
  return {};
}

Result<std::optional<ClaimedRun>> ResponseStore::claim(const std::string& id, bool by_force) {
  constexpr double kMicroseconds = 1e6;
  const std::lock_guard lock(mutex_);
  std::optional<ClaimedRun> claimed;
  RETURN_IF_ERROR(transact([&]() -> Result<void> {
    SqliteStatement find(database_,
                         "SELECT token, owner, key, engine, body, conversation, philox_key, "
                         "arrival_us, position, num_events FROM runs WHERE id = ?");
    ASSIGN_OR_RETURN(const bool is_found, find.bind(id).step());
    if (!is_found || (!by_force && is_alive(find.text(0)))) return {};
    claimed =
        ClaimedRun{.token = new_token(),
                   .run = {.owner = find.text(1),
                           .key = find.text(2),
                           .engine = find.text(3),
                           .body = find.text(4),
                           .conversation = find.text(5),
                           .philox_key = static_cast<std::uint64_t>(find.number(6)),
                           .arrival_time = static_cast<double>(find.number(7)) / kMicroseconds},
                   .position = find.text(8),
                   .num_events = find.number(9)};
    SqliteStatement take(database_, "UPDATE runs SET token = ? WHERE id = ?");
    RETURN_IF_ERROR(take.bind(claimed->token).bind(id).step());
    return {};
  }));
  return claimed;
}

Result<std::vector<std::string>> ResponseStore::abandoned() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  SqliteStatement all(database_, "SELECT id, token FROM runs");
  for (;;) {
    ASSIGN_OR_RETURN(const bool has_row, all.step());
    if (!has_row) return ids;
    if (!is_alive(all.text(1))) ids.push_back(all.text(0));
  }
}

Result<ResponseEvents> ResponseStore::events(const std::string& id, const std::string& owner,
                                             std::int64_t after, std::size_t max_bytes) {
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(const bool is_there, exists(id, owner));
  if (!is_there) return no_such(id);
  SqliteStatement running(database_, "SELECT token FROM runs WHERE id = ?");
  ASSIGN_OR_RETURN(const bool has_run, running.bind(id).step());
  // Of another process nothing is heard: its stream ends with what is there, and is asked for
  // again.
  const bool is_running = has_run && running.text(0).starts_with(std::to_string(getpid()) + " ");
  // The last row that begins at or before the next event, and those behind it.
  SqliteStatement find(database_,
                       "SELECT first, text FROM events WHERE id = ? AND first >= COALESCE("
                       "(SELECT MAX(first) FROM events WHERE id = ? AND first <= ?), 0) "
                       "ORDER BY first");
  find.bind(id).bind(id).bind(after + 1);
  ResponseEvents found{.text = {}, .last = after, .is_complete = !is_running};
  bool has_any = false;
  for (;;) {
    ASSIGN_OR_RETURN(const bool has_row, find.step());
    if (!has_row) break;
    has_any = true;
    if (found.text.size() >= max_bytes) {
      found.is_complete = false;
      break;
    }
    const std::int64_t first = find.number(0);
    const std::string text = find.text(1);
    const std::int64_t count = count_events(text);
    if (first + count - 1 <= found.last) continue;
    found.text += skip_events(text, std::max<std::int64_t>(found.last + 1 - first, 0));
    found.last = first + count - 1;
  }
  if (!has_any) {
    return Error{ErrorCode::kInvalidArgument,
                 "only responses that were made in the background can be streamed again", "stream"};
  }
  return found;
}

std::uint64_t ResponseStore::watch(const std::string& id, std::function<void()> changed) {
  const std::lock_guard lock(watches_mutex_);
  watches_.emplace(++num_watches_, Watch{id, std::move(changed)});
  return num_watches_;
}

void ResponseStore::unwatch(std::uint64_t number) {
  const std::lock_guard lock(watches_mutex_);
  watches_.erase(number);
}

void ResponseStore::notify(const std::string& id) {
  const std::lock_guard lock(watches_mutex_);
  for (const auto& [number, watch] : watches_)
    if (watch.id == id) watch.changed();
}

}  // namespace troupe
