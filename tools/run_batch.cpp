// troupe run-batch: the requests of a file of OpenAI's batch format, answered into another one.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "runtime/base/secret.hpp"
#include "runtime/http/batch_file.hpp"
#include "tools/bench/openai_client.hpp"
#include "tools/commands.hpp"
#include "tools/offline_engine.hpp"
#include "tools/progress.hpp"

namespace troupe::tools {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kRunBatchUsage =
    "run-batch [MODEL] -i requests.jsonl -o results.jsonl [options]\n\n"
    "Runs a file of OpenAI's batch format: each line is {\"custom_id\", \"method\": \"POST\",\n"
    "\"url\": \"/v1/chat/completions\", \"body\"}. Results are written when they are complete, in\n"
    "any order; those of failed requests go to a separate file. An interrupted run is resumed:\n"
    "requests with results in the files are skipped. The exit code is 1 if a request\n"
    "failed.";

/// Responses of an overloaded or restarted server are waited for so often, at doubled intervals.
constexpr int kMaxAttempts = 6;
constexpr auto kFirstPause = 500ms;

struct BatchSettings {
  std::string input_file;
  std::string output_file;
  std::string error_file;
  std::string url;
  std::int64_t max_in_flight = 128;
};

std::string new_id() { return random_hex(16); }

/// Owns the files; its methods may be called by several threads.
class BatchFiles {
 public:
  struct Request {
    BatchLine line;
    std::size_t number = 0;  ///< of the line, from 1
  };

  /// Reads the whole input once, so that a line with an error is known before anything is run.
  [[nodiscard]] Result<void> open(const BatchSettings& settings) {
    ASSIGN_OR_RETURN(std::unordered_set<std::string> finished, take_finished(settings.output_file));
    ASSIGN_OR_RETURN(const auto failed, take_finished(settings.error_file));
    finished.insert(failed.begin(), failed.end());
    num_failed_ = failed.size();
    std::ifstream input(settings.input_file, std::ios::binary);
    if (!input)
      return Error{ErrorCode::kNotFound, "cannot read " + settings.input_file, "input-file"};
    std::unordered_set<std::string> ids;
    std::size_t number = 0;
    for (std::string text; std::getline(input, text);) {
      ++number;
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      auto line = parse_batch_line(text);
      const std::string where = settings.input_file + ": line " + std::to_string(number) + ": ";
      if (!line.ok()) return invalid_argument(where + line.error().message);
      if (!ids.insert(line->custom_id).second)
        return invalid_argument(where + "custom_id \"" + line->custom_id.substr(0, 128) +
                                "\" is also in an earlier line");
      if (!finished.contains(line->custom_id)) open_lines_.push_back(number);
    }
    num_requests_ = ids.size();
    input_.open(settings.input_file, std::ios::binary);
    results_.open(settings.output_file, std::ios::binary | std::ios::app);
    if (!results_) return cannot_write(settings.output_file);
    error_file_ = settings.error_file;
    return {};
  }

  /// False: there is none left.
  [[nodiscard]] bool next(Request& request) {
    const std::lock_guard lock(mutex_);
    if (next_ == open_lines_.size() || broken_) return false;
    request.number = open_lines_[next_++];
    std::string text;
    while (num_read_ < request.number && std::getline(input_, text)) ++num_read_;
    auto line = parse_batch_line(text);
    if (!line.ok()) {
      broken_ = invalid_argument("the input file was changed while it was read");
      return false;
    }
    request.line = std::move(line).value();
    return true;
  }

  void add(const std::string& result, bool failed) {
    const std::lock_guard lock(mutex_);
    if (failed && !errors_.is_open()) errors_.open(error_file_, std::ios::binary | std::ios::app);
    std::ofstream& file = failed ? errors_ : results_;
    file << result << '\n' << std::flush;
    if (!file) broken_ = cannot_write(failed ? error_file_ : "the output file");
    num_failed_ += failed;
    ++num_done_;
  }

  [[nodiscard]] std::size_t num_requests() const { return num_requests_; }
  [[nodiscard]] std::size_t num_open() const { return open_lines_.size(); }
  [[nodiscard]] std::size_t num_done() const {
    const std::lock_guard lock(mutex_);
    return num_requests_ - open_lines_.size() + num_done_;
  }
  [[nodiscard]] std::size_t num_failed() const {
    const std::lock_guard lock(mutex_);
    return num_failed_;
  }
  [[nodiscard]] std::optional<Error> broken() const {
    const std::lock_guard lock(mutex_);
    return broken_;
  }

 private:
  static Error cannot_write(const std::string& file) {
    return {ErrorCode::kIo, "cannot write to " + file, "output-file"};
  }

  mutable std::mutex mutex_;
  std::ifstream input_;
  std::ofstream results_;
  std::ofstream errors_;  // opened with the first of them
  std::string error_file_;
  std::vector<std::size_t> open_lines_;  // numbers
  std::size_t next_ = 0;                 // of these
  std::size_t num_read_ = 0;             // lines of input_
  std::size_t num_requests_ = 0;
  std::size_t num_done_ = 0;
  std::size_t num_failed_ = 0;
  std::optional<Error> broken_;
};

/// Overload and a server that is being restarted pass.
bool may_pass(unsigned status) { return status == 429 || status == 502 || status == 503; }

void run_request(const ServerAddress& server, const ClientHeaders& headers,
                 const BatchFiles::Request& request, BatchFiles& files) {
  const BatchLine& line = request.line;
  auto pause = std::chrono::milliseconds(kFirstPause);
  for (int attempt = 1;; ++attempt, pause *= 2) {
    std::string body;
    const auto posted = http_post(
        server, line.url, headers, line.body, [&](std::string_view bytes) { body.append(bytes); },
        /*interrupt_descriptor=*/-1);
    const bool passes = posted.ok() ? may_pass(posted->status) : true;
    if (passes && attempt < kMaxAttempts) {
      std::this_thread::sleep_for(pause);
      continue;
    }
    if (!posted.ok())
      return files.add(
          batch_failure_json(new_id(), line.custom_id, "no_response", posted.error().message),
          true);
    const bool is_answer = posted->status == 200;
    return files.add(batch_result_json(new_id(), line.custom_id, posted->status,
                                       is_answer ? body : posted->error_body),
                     !is_answer);
  }
}

std::string shown(const BatchFiles& files) {
  std::string text = std::to_string(files.num_done()) + " of " +
                     std::to_string(files.num_requests()) + " requests";
  if (files.num_failed() > 0) text += ", " + std::to_string(files.num_failed()) + " failed";
  return text;
}

Result<void> run(const ServerAddress& server, const ClientHeaders& headers,
                 const BatchSettings& settings, BatchFiles& files) {
  ProgressBar bar("batch");
  std::vector<std::thread> threads;
  const auto num_threads =
      std::min(files.num_open(), static_cast<std::size_t>(settings.max_in_flight));
  for (std::size_t i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] {
      for (BatchFiles::Request request; files.next(request);) {
        run_request(server, headers, request, files);
        bar.show(static_cast<double>(files.num_done()) / static_cast<double>(files.num_requests()),
                 shown(files));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  bar.complete(shown(files));
  if (const auto broken = files.broken()) return *broken;
  return {};
}

/// "-i FILE" and "-o FILE" by their long names.
std::vector<std::string> long_names(Arguments arguments) {
  std::vector<std::string> result(arguments.begin(), arguments.end());
  for (std::string& argument : result) {
    if (argument == "--") break;
    if (argument == "-i") argument = "--input-file";
    if (argument == "-o") argument = "--output-file";
    if (argument == "-e") argument = "--error-file";
  }
  return result;
}

}  // namespace

int run_batch(Arguments given) {
  const std::vector<std::string> arguments = long_names(given);
  CommandLine line;
  line.options.log.log_level = "warning";
  BatchSettings settings;
  line.set.section("batch")
      .add("input-file", settings.input_file, "requests, JSON lines; also -i")
      .add("output-file", settings.output_file, "results, JSON lines; also -o")
      .add("error-file", settings.error_file,
           "results of requests that failed; also -e; default: the output file's name with .errors")
      .add("url", settings.url,
           "a running server, http[s]://HOST:PORT; default: one that is started for the batch")
      .add("max-in-flight", settings.max_in_flight, "requests that are sent at once", 1, 4096);
  if (const auto done = read_command_line(line, arguments, kRunBatchUsage)) return *done;
  for (const auto& [name, value] : {std::pair("input-file", &settings.input_file),
                                    std::pair("output-file", &settings.output_file)})
    if (value->empty())
      return fail(invalid_argument(std::string("--") + name + " is missing", name));
  if (settings.error_file.empty()) settings.error_file = settings.output_file + ".errors";

  BatchFiles files;
  if (const auto opened = files.open(settings); !opened.ok()) return fail(opened.error());
  ClientHeaders headers;
  if (!line.options.server.api_key.empty())
    headers.emplace_back("Authorization", "Bearer " + line.options.server.api_key.front());
  if (!settings.url.empty()) {
    const auto server = parse_url(settings.url);
    if (!server.ok()) return fail(server.error());
    if (const auto done = run(*server, headers, settings, files); !done.ok())
      return fail(done.error());
    return files.num_failed() == 0 ? kExitOk : kExitFailure;
  }
  line.options.server.host = "127.0.0.1";
  line.options.server.port = 0;
  line.options.server.disable_uvicorn_access_log = true;
  auto engine = OfflineEngine::start(line, OfflineEngine::Http::kServed);
  if (!engine.ok()) return fail(engine.error());
  const ServerAddress server{"127.0.0.1", std::to_string((*engine)->port()), ""};
  const auto done = run(server, headers, settings, files);
  if (!done.ok()) return (*engine)->exit_with(fail(done.error()));
  return (*engine)->exit_with(files.num_failed() == 0 ? kExitOk : kExitFailure);
}

}  // namespace troupe::tools
