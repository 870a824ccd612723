// troupe generate: batch inference, requests in and completions out, as JSON lines.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <unordered_map>

#include "tools/batch/batch_request.hpp"
#include "tools/commands.hpp"
#include "tools/line_reader.hpp"
#include "tools/offline_engine.hpp"
#include "tools/progress.hpp"

namespace troupe::tools {
namespace {

constexpr std::string_view kGenerateUsage =
    "generate [MODEL] [options] < requests.jsonl > answers.jsonl\n\n"
    "Batch inference. Each input line is the body of a request to /v1/completions, or to\n"
    "/v1/chat/completions if it has \"messages\"; \"model\" may name an adapter. Each output line\n"
    "is {\"index\", \"choices\": [{\"index\", \"text\", \"token_ids\", \"finish_reason\",\n"
    "\"stop_reason\", \"logprobs\"}], \"prompt_token_ids\", \"usage\"} or {\"index\", \"error\"}, "
    "where\n"
    "index is the number of the input line, from 0. Outputs are in the order of the inputs. The\n"
    "exit code is 1 if a line failed.";

/// Limit of finished lines that wait for slower ones before them, relative to requests in flight.
constexpr std::size_t kMaxHeldFactor = 4;

/// A line from reading it to writing its answer.
struct BatchLine {
  std::size_t index = 0;
  std::optional<BatchRequest> request;  ///< until it is finished
  std::vector<RequestId> ids;           ///< by prompt
  std::string answer;                   ///< empty: not finished
};

/// Owns the lines in progress, in order, and maps running prompts to their lines.
class Batch {
 public:
  Batch(OfflineEngine& engine, std::size_t max_in_flight)
      : engine_(engine), max_in_flight_(max_in_flight) {}

  [[nodiscard]] bool idle() const { return running_.empty(); }
  [[nodiscard]] bool has_room() const {
    return running_.size() < max_in_flight_ && lines_.size() < max_in_flight_ * kMaxHeldFactor;
  }
  [[nodiscard]] std::size_t num_answered() const { return num_answered_; }
  [[nodiscard]] std::size_t num_failed() const { return num_failed_; }

  void submit(std::size_t index, const std::string& body) {
    BatchLine& line = lines_.emplace_back();
    line.index = index;
    auto request = BatchRequest::parse(body, engine_.request_defaults());
    if (!request.ok()) return answer(line, batch_error_json(index, request.error()), true);
    auto model = engine_.served_model(request->model());
    if (!model.ok()) return answer(line, batch_error_json(index, model.error()), true);
    request->set_adapter(std::move(model->lora));
    line.request = std::move(request).value();
    for (GenerateRequest& part : line.request->take_requests()) {
      line.ids.push_back(engine_.submit(std::move(part), line.request->placement()));
      running_.emplace(line.ids.back(), Running{&line, line.ids.size() - 1});
    }
  }

  /// Waits for the engine's next step.
  void wait() {
    for (RequestOutput& output : engine_.next().outputs) {
      const auto found = running_.find(output.id);
      if (found == running_.end() || !output.finished) continue;
      const Running running = found->second;
      running_.erase(found);
      BatchLine& line = *running.line;
      line.request->add(running.prompt, std::move(output));
      if (!line.request->done()) continue;
      for (const RequestId id : line.ids) {
        if (running_.erase(id) > 0) engine_.abort(id);
      }
      answer(line, line.request->answer_json(line.index), line.request->failed());
      line.request.reset();
    }
  }

  /// Writes the answers up to the first unfinished line. False if writing fails.
  [[nodiscard]] bool write_answers() {
    bool good = true;
    while (!lines_.empty() && !lines_.front().answer.empty()) {
      good = std::puts(lines_.front().answer.c_str()) >= 0 && good;
      lines_.pop_front();
    }
    return std::fflush(stdout) == 0 && good;
  }

 private:
  struct Running {
    BatchLine* line;
    std::size_t prompt;
  };

  void answer(BatchLine& line, std::string text, bool failed) {
    line.answer = std::move(text);
    ++num_answered_;
    num_failed_ += failed;
  }

  OfflineEngine& engine_;
  const std::size_t max_in_flight_;
  std::deque<BatchLine> lines_;  // changed at its ends only, so pointers to lines stay valid
  std::unordered_map<RequestId, Running> running_;
  std::size_t num_answered_ = 0;
  std::size_t num_failed_ = 0;
};

/// Size of standard input if it is a file, else 0.
std::uint64_t input_size() {
  struct stat status {};
  if (fstat(STDIN_FILENO, &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  return static_cast<std::uint64_t>(status.st_size);
}

void show_progress(ProgressBar& bar, const Batch& batch, std::size_t num_read,
                   std::uint64_t bytes_read, std::uint64_t bytes_total) {
  const std::string what =
      std::to_string(batch.num_answered()) + " answered" +
      (batch.num_failed() > 0 ? ", " + std::to_string(batch.num_failed()) + " failed"
                              : std::string());
  if (bytes_total == 0) return bar.show_count(what);
  const double answered = static_cast<double>(batch.num_answered()) /
                          static_cast<double>(std::max<std::size_t>(num_read, 1));
  bar.show(answered * static_cast<double>(bytes_read) / static_cast<double>(bytes_total), what);
}

}  // namespace

int generate(Arguments arguments) {
  CommandLine line;
  std::int64_t max_in_flight = 256;
  line.options.log.log_level = "warning";
  // Keeps the requests in the order of their lines.
  line.options.engine.num_input_processors = 1;
  line.set.section("generate")
      .add("max-in-flight", max_in_flight, "maximum number of requests in the engine", 1, 1 << 16);
  if (const auto done = read_command_line(line, arguments, kGenerateUsage)) return *done;
  auto engine = OfflineEngine::start(line);
  if (!engine.ok()) return fail(engine.error());

  LineReader reader(STDIN_FILENO);
  Batch batch(**engine, static_cast<std::size_t>(max_in_flight));
  ProgressBar bar("generating");
  const std::uint64_t bytes_total = input_size();
  std::size_t num_lines = 0, num_read = 0;
  bool open = true;
  while (open || !batch.idle()) {
    while (open && batch.has_room()) {
      std::string text;
      const LineReader::Status status = reader.next(text, batch.idle());
      if (status == LineReader::Status::kEnd) open = false;
      if (status == LineReader::Status::kNothingYet) break;
      if (status != LineReader::Status::kLine) continue;
      const std::size_t index = num_lines++;
      if (text.find_first_not_of(" \t") == std::string::npos) continue;
      ++num_read;
      batch.submit(index, text);
      if (batch.idle()) break;  // an invalid line: write its answer before the next line arrives
    }
    if (!batch.idle()) batch.wait();
    if (!batch.write_answers()) {
      return fail({ErrorCode::kIo, "cannot write to standard output"});
    }
    show_progress(bar, batch, num_read, reader.num_bytes(), bytes_total);
  }
  bar.finish();
  return (*engine)->exit_with(batch.num_failed() == 0 ? kExitOk : kExitFailure);
}

}  // namespace troupe::tools
