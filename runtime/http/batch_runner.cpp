#include "runtime/http/batch_runner.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/file_lock.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/http/batch_file.hpp"
#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookInterval = 500ms;               ///< without news
constexpr double kStoreSeconds = 0.25;              ///< between updates of request_counts
constexpr double kExpirySeconds = 60;               ///< between removals of what has expired
constexpr std::int64_t kBatchSeconds = 30 * 86400;  ///< for which a batch is remembered
constexpr std::size_t kMaxValidationErrors = 100;
constexpr double kLeastPauseSeconds = 0.5;

std::string new_result_id() { return random_hex(16); }

struct BatchLinePlace {
  std::uint64_t offset = 0;
  std::uint32_t num_bytes = 0;
};

/// A file of results, to which whole lines are appended.
class ResultFile {
 public:
  ResultFile() = default;
  ~ResultFile() { close(); }
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  [[nodiscard]] Result<void> append(const std::filesystem::path& path, std::string line) {
    line += '\n';
    if (descriptor_ < 0)
      descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    for (std::size_t written = 0; descriptor_ >= 0 && written < line.size();) {
      const ssize_t count = ::write(descriptor_, line.data() + written, line.size() - written);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return failure(path);
      written += static_cast<std::size_t>(count);
    }
    if (descriptor_ < 0) return failure(path);
    return {};
  }
  void close() {
    if (descriptor_ < 0) return;
    ::fsync(descriptor_);
    ::close(std::exchange(descriptor_, -1));
  }

 private:
  static Error failure(const std::filesystem::path& path) {
    return {ErrorCode::kIo, path.string() + ": " + std::generic_category().message(errno), ""};
  }
  int descriptor_ = -1;
};

/// A batch that is being run.
struct BatchRun {
  StoredBatch batch;
  std::ifstream input;
  std::vector<BatchLinePlace> lines;  ///< to be answered
  std::size_t next = 0;               ///< of these
  std::vector<std::size_t> again;     ///< lines that were refused for a while
  double paused_until = 0;
  std::int64_t num_in_flight = 0;
  ResultFile output, errors;
  bool is_dirty = false;  ///< request_counts have changed
  double stored_at = 0;

  [[nodiscard]] bool has_lines() const { return next < lines.size() || !again.empty(); }
};

struct BatchCall {
  std::string batch_id;
  std::size_t line = 0;
  std::string custom_id;
};

/// What the file says is wrong, as OpenAI's batch.errors.data.
class ValidationErrors {
 public:
  void add(std::string_view code, std::size_t line, const Error& error) {
    if (++count_ > kMaxValidationErrors) return;
    json_.append(json_.empty() ? "[" : ",").append("{\"code\":");
    append_json_string(json_, code);
    json_ += ",\"line\":";
    if (line == 0) {
      json_ += "null";
    } else {
      append_json_integer(json_, line);
    }
    json_ += ",\"message\":";
    append_json_string(json_, error.message);
    json_ += ",\"param\":";
    if (error.param.empty()) {
      json_ += "null";
    } else {
      append_json_string(json_, error.param);
    }
    json_ += '}';
  }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] bool full() const { return count_ >= kMaxValidationErrors; }
  [[nodiscard]] std::string json() const { return empty() ? "" : json_ + "]"; }

 private:
  std::string json_;
  std::size_t count_ = 0;
};

/// Overload passes, and so does an engine that is being started again.
bool is_passing(const HttpResponse& response, std::string_view endpoint, bool draining) {
  if (response.status == 429 || response.status == 503) return true;
  // In a JSON text these quotes are not part of a string.
  const bool is_aborted = response.body.find(R"("finish_reason":"abort")") != std::string::npos;
  // These have other words for it.
  const bool may_be_aborted = endpoint == "/v1/responses" || endpoint == "/v1/messages";
  return is_aborted || (draining && (response.status != 200 || may_be_aborted));
}

double retry_after(const HttpResponse& response) {
  double seconds = 0;
  for (const auto& [name, value] : response.headers)
    if (name == "Retry-After") std::from_chars(value.data(), value.data() + value.size(), seconds);
  return std::max(seconds, kLeastPauseSeconds);
}

}  // namespace

class BatchRunner::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(BatchStore& store, BatchPort port, std::function<double()> wall_clock,
       std::int64_t max_in_flight)
      : store_(store),
        port_(std::move(port)),
        wall_clock_(std::move(wall_clock)),
        max_in_flight_(max_in_flight) {}

  void start() {
    thread_ = std::thread([this] { run(); });
  }

  void changed() {
    const std::lock_guard lock(mutex_);
    has_news_ = true;
    wake_.notify_all();
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    for (const auto& [id, call] : calls_) port_.abort(id);
    calls_.clear();
    runs_.clear();
    lock_ = FileDescriptor();
  }

 private:
  struct Answer {
    std::uint64_t id = 0;
    HttpResponse response;
  };

  [[nodiscard]] std::int64_t now() const { return static_cast<std::int64_t>(wall_clock_()); }

  void run() {
    for (bool look = true;;) {
      if (take_lock()) {
        try {
          work(look);
        } catch (const std::exception& failure) {
          log_error("batches failed", kv("what", std::string(failure.what())));
          look = true;
        }
      }
      std::deque<Answer> answers;
      {
        std::unique_lock lock(mutex_);
        const bool woken = wake_.wait_for(
            lock, kLookInterval, [this] { return stopping_ || has_news_ || !answers_.empty(); });
        if (stopping_) return;
        look = !woken || std::exchange(has_news_, false);
        answers.swap(answers_);
      }
      for (Answer& answer : answers) take_answer(std::move(answer));
    }
  }

  bool take_lock() {
    if (lock_.valid()) return true;
    FileDescriptor file(::open(store_.lock_path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file.valid() || !lock_file(file, LOCK_EX | LOCK_NB)) return false;
    lock_ = std::move(file);
    return true;
  }

  void work(bool look) {
    if (wall_clock_() - expired_at_ > kExpirySeconds) {
      expired_at_ = wall_clock_();
      report(store_.remove_expired(now(), now() - kBatchSeconds));
    }
    if (look) look_for_batches();
    start_requests();
    std::vector<std::string> ended;
    for (auto& [id, run] : runs_) {
      if (look_at(*run)) ended.push_back(id);
    }
    for (const std::string& id : ended) runs_.erase(id);
  }

  static void report(const Result<void>& done) {
    if (!done.ok()) log_error("batches: cannot store", kv("reason", done.error().message));
  }

  void look_for_batches() {
    auto open = store_.open_batches();
    if (!open.ok()) return report(open.error());
    for (StoredBatch& batch : *open) {
      const auto known = runs_.find(batch.id);
      if (known == runs_.end()) {
        begin(std::move(batch));
      } else if (batch.status == BatchStatus::kCancelling) {
        BatchRun& run = *known->second;
        run.batch.status = batch.status;
        run.batch.since = batch.since;
      }
    }
  }

  /// Moves a batch on; false: its status was changed by someone else, which is then known.
  bool move_on(StoredBatch& batch, BatchStatus status) {
    const BatchStatus before = batch.status;
    batch.status = status;
    if (batch.reached(status) == 0) batch.reached(status) = now();
    const auto updated = store_.update_batch(batch, before);
    if (!updated.ok()) report(updated.error());
    if (updated.ok() && *updated) {
      log_info("batch", kv("batch", batch.id), kv("status", to_string(status)),
               kv("requests", batch.num_requests), kv("completed", batch.num_completed),
               kv("failed", batch.num_failed));
      return true;
    }
    batch.reached(status) = 0;
    batch.status = before;
    return false;
  }

  void begin(StoredBatch batch) {
    auto run = std::make_unique<BatchRun>();
    run->batch = std::move(batch);
    StoredBatch& stored = run->batch;
    const bool is_new = stored.status == BatchStatus::kValidating;
    ValidationErrors errors;
    const auto read = read_input(*run, errors);
    if (!read.ok()) errors.add("invalid_file", 0, read.error());
    if (!errors.empty() && stored.status != BatchStatus::kCancelling) {
      stored.errors = errors.json();
      stored.num_requests = 0;
      stored.output_file_id.clear();
      stored.error_file_id.clear();
      static_cast<void>(move_on(stored, BatchStatus::kFailed));
      return;
    }
    if (is_new) {
      stored.output_file_id = "file-" + new_result_id();
      stored.error_file_id = "file-" + new_result_id();
      if (!move_on(stored, BatchStatus::kInProgress)) return;  // cancelled: begins again as such
    }
    runs_.emplace(stored.id, std::move(run));
  }

  /// The lines that have no result yet, and how many have one.
  Result<void> read_input(BatchRun& run, ValidationErrors& errors) {
    StoredBatch& batch = run.batch;
    ASSIGN_OR_RETURN(const auto finished, finished_lines(batch.output_file_id));
    ASSIGN_OR_RETURN(const auto failed, finished_lines(batch.error_file_id));
    batch.num_completed = static_cast<std::int64_t>(finished.size());
    batch.num_failed = static_cast<std::int64_t>(failed.size());
    const BatchStore::Limits& limits = store_.limits();
    const auto path = store_.file_path(batch.input_file_id);
    run.input.open(path, std::ios::binary);
    if (!run.input) {
      return Error{ErrorCode::kNotFound,
                   "the input file " + batch.input_file_id + " no longer exists", "input_file_id"};
    }
    std::unordered_set<std::string> ids;  // hashes: custom_ids may be long
    std::uint64_t offset = 0;
    std::size_t number = 0;
    std::int64_t count = 0;
    for (std::string text; std::getline(run.input, text); offset += text.size() + 1) {
      ++number;
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      if (++count > limits.max_requests) {
        errors.add("too_many_tasks", number,
                   invalid_argument("the file has more requests than max-batch-requests, " +
                                    std::to_string(limits.max_requests)));
        break;
      }
      if (static_cast<std::int64_t>(text.size()) > limits.max_line_bytes) {
        errors.add(
            "invalid_json_line", number,
            invalid_argument("the line has " + std::to_string(text.size()) +
                             " bytes, max-body-bytes is " + std::to_string(limits.max_line_bytes)));
        continue;
      }
      const auto line = parse_batch_line(text);
      if (!line.ok()) {
        errors.add("invalid_json_line", number, line.error());
      } else if (line->url != batch.endpoint) {
        errors.add(
            "mismatched_endpoint", number,
            invalid_argument(
                "url is \"" + line->url + "\", the batch's endpoint is " + batch.endpoint, "url"));
      } else if (const auto digest = xxh3_128(line->custom_id);
                 !ids.emplace(digest.begin(), digest.end()).second) {
        errors.add("duplicate_custom_id", number,
                   invalid_argument("custom_id \"" + line->custom_id.substr(0, 128) +
                                        "\" is also in an earlier line",
                                    "custom_id"));
      } else if (!finished.contains(line->custom_id) && !failed.contains(line->custom_id)) {
        run.lines.push_back({offset, static_cast<std::uint32_t>(text.size())});
      }
      if (errors.full()) break;
    }
    if (count == 0) errors.add("empty_file", 0, invalid_argument("the file has no requests"));
    run.input.clear();
    batch.num_requests = count;
    return {};
  }

  Result<std::unordered_set<std::string>> finished_lines(const std::string& file_id) {
    if (file_id.empty()) return std::unordered_set<std::string>();
    return take_finished(store_.file_path(file_id));
  }

  void start_requests() {
    if (port_.draining()) return;
    while (static_cast<std::int64_t>(calls_.size()) < max_in_flight_) {
      // The one with the fewest requests in flight: a small batch does not wait for a large one.
      BatchRun* least = nullptr;
      for (auto& [id, run] : runs_) {
        const bool may = run->batch.status != BatchStatus::kCancelling && run->has_lines() &&
                         run->paused_until <= wall_clock_() && run->batch.expires_at > now();
        if (may && (least == nullptr || run->num_in_flight < least->num_in_flight))
          least = run.get();
      }
      if (least == nullptr) return;
      start_line(*least);
    }
  }

  Result<BatchLine> read_line(BatchRun& run, std::size_t index) {
    const BatchLinePlace place = run.lines[index];
    std::string text(place.num_bytes, '\0');
    run.input.clear();
    run.input.seekg(static_cast<std::streamoff>(place.offset));
    run.input.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (!run.input) return Error{ErrorCode::kIo, "cannot read the input file", ""};
    return parse_batch_line(text);
  }

  void start_line(BatchRun& run) {
    std::size_t index = run.next;
    if (run.again.empty()) {
      ++run.next;
    } else {
      index = run.again.back();
      run.again.pop_back();
    }
    auto line = read_line(run, index);
    if (!line.ok()) return fail(run, line.error());
    const std::uint64_t id = ++num_calls_;
    calls_.emplace(id, BatchCall{run.batch.id, index, std::move(line->custom_id)});
    ++run.num_in_flight;
    HttpRequest request{.method = "POST",
                        .target = std::move(line->url),
                        .headers = {{"Content-Type", "application/json"}},
                        .client = run.batch.id + ":0",
                        .body = std::move(line->body),
                        .has_body = true,
                        .owner = BatchOwner{run.batch.owner, run.batch.responses_owner}};
    // A late answer is dropped.
    port_.start(id, std::move(request), [id, weak = weak_from_this()](HttpResponse response) {
      const auto self = weak.lock();
      if (!self) return;
      const std::lock_guard lock(self->mutex_);
      self->answers_.push_back({id, std::move(response)});
      self->wake_.notify_all();
    });
  }

  void take_answer(Answer answer) {
    const auto found = calls_.find(answer.id);
    if (found == calls_.end()) return;
    const BatchCall call = std::move(found->second);
    calls_.erase(found);
    const auto owner = runs_.find(call.batch_id);
    if (owner == runs_.end()) return;
    BatchRun& run = *owner->second;
    --run.num_in_flight;
    const HttpResponse& response = answer.response;
    if (is_passing(response, run.batch.endpoint, port_.draining())) {
      run.again.push_back(call.line);
      run.paused_until = wall_clock_() + retry_after(response);
      return;
    }
    const bool is_good = response.status == 200;
    add_result(run, is_good,
               batch_result_json(new_result_id(), call.custom_id,
                                 static_cast<unsigned>(response.status), response.body));
  }

  void add_result(BatchRun& run, bool is_good, std::string line) {
    StoredBatch& batch = run.batch;
    const auto written =
        is_good ? run.output.append(store_.file_path(batch.output_file_id), std::move(line))
                : run.errors.append(store_.file_path(batch.error_file_id), std::move(line));
    if (!written.ok()) return fail(run, written.error());
    ++(is_good ? batch.num_completed : batch.num_failed);
    run.is_dirty = true;
  }

  /// It cannot continue: the disk is full, or a file is missing.
  void fail(BatchRun& run, const Error& error) {
    ValidationErrors errors;
    errors.add("server_error", 0, error);
    run.batch.errors = errors.json();
    log_error("batch failed", kv("batch", run.batch.id), kv("reason", error.message));
    finish(run, BatchStatus::kFailed);
  }

  void abort_calls(BatchRun& run) {
    std::erase_if(calls_, [&](const auto& entry) {
      if (entry.second.batch_id != run.batch.id) return false;
      port_.abort(entry.first);
      return true;
    });
    run.num_in_flight = 0;
  }

  /// True: it has ended.
  bool look_at(BatchRun& run) {
    StoredBatch& batch = run.batch;
    if (is_final(batch.status)) return true;
    if (batch.status == BatchStatus::kCancelling) {
      abort_calls(run);
      finish(run, BatchStatus::kCancelled);
      return is_final(batch.status);
    }
    if (batch.expires_at <= now()) {
      abort_calls(run);
      write_expired(run);
      if (!is_final(batch.status)) finish(run, BatchStatus::kExpired);
      return is_final(batch.status);
    }
    if (run.num_in_flight == 0 && !run.has_lines()) {
      if (batch.status == BatchStatus::kInProgress && !move_on(batch, BatchStatus::kFinalizing))
        return false;  // cancelled
      finish(run, BatchStatus::kCompleted);
      return is_final(batch.status);
    }
    if (run.is_dirty && wall_clock_() - run.stored_at > kStoreSeconds) {
      run.is_dirty = false;
      run.stored_at = wall_clock_();
      if (const auto updated = store_.update_batch(batch, batch.status); !updated.ok())
        report(updated.error());
    }
    return false;
  }

  /// Errors for the lines that were not answered in time.
  void write_expired(BatchRun& run) {
    run.output.close();
    run.errors.close();
    BatchRun rest;
    rest.batch = run.batch;
    ValidationErrors ignored;
    if (const auto read = read_input(rest, ignored); !read.ok()) return fail(run, read.error());
    for (std::size_t i = 0; i < rest.lines.size(); ++i) {
      const auto line = read_line(rest, i);
      if (!line.ok()) return fail(run, line.error());
      add_result(run, false,
                 batch_failure_json(new_result_id(), line->custom_id, "batch_expired",
                                    "This request could not be executed before the completion "
                                    "window expired."));
      if (is_final(run.batch.status)) return;
    }
  }

  void finish(BatchRun& run, BatchStatus status) {
    abort_calls(run);
    run.output.close();
    run.errors.close();
    StoredBatch& batch = run.batch;
    StoredBatch final = batch;
    for (const bool is_output : {true, false}) {
      std::string& id = is_output ? final.output_file_id : final.error_file_id;
      std::error_code error;
      const auto size = id.empty() ? 0 : std::filesystem::file_size(store_.file_path(id), error);
      if (error || size == 0) {
        id.clear();
        continue;
      }
      report(store_.add_result(
          {.id = id,
           .owner = batch.owner,
           .filename = batch.id + (is_output ? "_output.jsonl" : "_error.jsonl"),
           .purpose = "batch_output",
           .num_bytes = static_cast<std::int64_t>(size),
           .created_at = now(),
           .expires_at = batch.output_expires_s > 0 ? now() + batch.output_expires_s : 0}));
    }
    if (move_on(final, status)) batch = std::move(final);
  }

  BatchStore& store_;
  const BatchPort port_;
  const std::function<double()> wall_clock_;
  const std::int64_t max_in_flight_;

  std::mutex mutex_;  ///< guards the next three
  std::deque<Answer> answers_;
  bool has_news_ = false;
  bool stopping_ = false;
  std::condition_variable wake_;

  // Of the thread alone.
  FileDescriptor lock_;
  double expired_at_ = 0;
  std::uint64_t num_calls_ = 0;
  std::unordered_map<std::string, std::unique_ptr<BatchRun>> runs_;  ///< by batch
  std::unordered_map<std::uint64_t, BatchCall> calls_;
  std::thread thread_;
};

BatchRunner::BatchRunner(BatchStore& store, BatchPort port, std::function<double()> wall_clock,
                         std::int64_t max_in_flight)
    : impl_(std::make_shared<Impl>(store, std::move(port), std::move(wall_clock), max_in_flight)) {
  impl_->start();
}

BatchRunner::~BatchRunner() { stop(); }

void BatchRunner::changed() { impl_->changed(); }

void BatchRunner::stop() { impl_->stop(); }

}  // namespace troupe
