// troupe chat: a conversation in the terminal, or with a pipe, one message a line.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/base/check.hpp"
#include "tools/commands.hpp"
#include "tools/line_reader.hpp"
#include "tools/offline_engine.hpp"

namespace troupe::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kUsage =
    "chat [MODEL] [options]\n\n"
    "Each line of standard input is a message. /reset forgets the conversation, /quit or Ctrl-D\n"
    "ends it, Ctrl-C stops an answer.";

constexpr double kOwnTemperature = -1;  // stands for the model's

struct ChatOptions {
  std::string system;
  double temperature = kOwnTemperature;
  std::int64_t max_tokens = 0;
};

/// Ctrl-C, as a pipe that becomes readable: it ends waiting for input, and is looked at between the
/// pieces of an answer. One at a time.
class Interrupt {
 public:
  /// Without a terminal nobody is there to go on with the conversation: Ctrl-C then ends the
  /// program.
  explicit Interrupt(bool terminal) {
    int ends[2];
    CHECK(pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0, errno);
    read_end_ = ends[0];
    write_end_ = ends[1];
    if (!terminal) return;
    struct sigaction action {};
    action.sa_handler = [](int) {
      const int error = errno;
      const char byte = 0;
      [[maybe_unused]] const ssize_t written = write(write_end_, &byte, 1);  // full: it is known
      errno = error;
    };
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, nullptr);
  }
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt() {
    std::signal(SIGINT, SIG_DFL);
    close(read_end_);
    close(write_end_);
  }

  [[nodiscard]] int descriptor() const noexcept { return read_end_; }
  /// Whether it has come since the last call.
  [[nodiscard]] bool take() {
    char bytes[64];
    bool came = false;
    while (read(read_end_, bytes, sizeof bytes) > 0) came = true;
    return came;
  }

 private:
  int read_end_ = -1;
  static inline int write_end_ = -1;  // for the handler, which gets no object
};

/// Owns the messages so far. Invariant: they end with an answer, or are empty but for the system's.
class Conversation {
 public:
  Conversation(OfflineEngine& engine, const ChatOptions& options)
      : engine_(engine), options_(options) {
    reset();
  }

  void reset() {
    messages_ = Json::array();
    if (!options_.system.empty()) {
      messages_.push_back({{"role", "system"}, {"content", options_.system}});
    }
  }

  /// Prints the answer as it comes; Ctrl-C ends it early, and what was printed stays. An error
  /// leaves the conversation as it was.
  [[nodiscard]] Result<void> say(const std::string& text, Interrupt& interrupt) {
    Json messages = messages_;
    messages.push_back({{"role", "user"}, {"content", text}});
    ASSIGN_OR_RETURN(GenerateRequest request, make_request(messages));
    ASSIGN_OR_RETURN(std::string answer, stream(std::move(request), interrupt));
    messages.push_back({{"role", "assistant"}, {"content", std::move(answer)}});
    messages_ = std::move(messages);
    return {};
  }

 private:
  Result<GenerateRequest> make_request(const Json& messages) const {
    Json body = {{"messages", messages}};
    if (options_.temperature != kOwnTemperature) body["temperature"] = options_.temperature;
    if (options_.max_tokens > 0) body["max_tokens"] = options_.max_tokens;
    ASSIGN_OR_RETURN(ChatRequest chat,
                     parse_chat_request(body.dump(-1, ' ', false, Json::error_handler_t::replace),
                                        engine_.request_defaults()));
    GenerateRequest request;
    request.prompt = std::move(chat.prompt);
    request.params = std::move(chat.params);
    request.params.output_kind = OutputKind::kDelta;
    return request;
  }

  Result<std::string> stream(GenerateRequest request, Interrupt& interrupt) {
    const RequestId id = engine_.submit(std::move(request));
    std::string answer;
    for (bool aborted = false;;) {
      for (RequestOutput& output : engine_.next().outputs) {
        if (output.id != id) continue;
        for (const CompletionOutput& sample : output.outputs) {
          std::fwrite(sample.text.data(), 1, sample.text.size(), stdout);
          answer += sample.text;
        }
        std::fflush(stdout);
        if (!output.finished) continue;
        if (output.error) return *std::move(output.error);
        return answer;
      }
      if (interrupt.take() && !aborted) {
        engine_.abort(id);
        aborted = true;
      }
    }
  }

  OfflineEngine& engine_;
  const ChatOptions& options_;
  Json messages_;
};

}  // namespace

int chat(Arguments arguments) {
  CommandLine line;
  ChatOptions options;
  line.options.log.log_level = "warning";
  line.set.section("chat")
      .add("system", options.system, "the system message")
      .add("temperature", options.temperature, "of the answers, 0 to 2; -1: the model's own",
           kOwnTemperature, 2)
      .add("max-tokens", options.max_tokens, "longest answer; 0: the model's own", 0, 1 << 30);
  if (const auto done = read_command_line(line, arguments, kUsage)) return *done;
  if (options.temperature < 0 && options.temperature != kOwnTemperature) {
    return fail(invalid_argument("temperature is " + std::to_string(options.temperature) +
                                     ", it must be between 0 and 2, or -1",
                                 "temperature"));
  }
  auto engine = OfflineEngine::start(line);
  if (!engine.ok()) return fail(engine.error());

  const bool terminal = isatty(STDIN_FILENO) == 1;
  Interrupt interrupt(terminal);
  LineReader reader(STDIN_FILENO, interrupt.descriptor());
  Conversation conversation(**engine, options);
  if (terminal) {
    std::fprintf(stderr, "%s. /reset forgets, /quit or Ctrl-D ends, Ctrl-C stops an answer.\n",
                 line.options.model.model.c_str());
  }
  int code = kExitOk;
  for (;;) {
    if (terminal) std::fputs("> ", stderr);
    std::string text;
    const LineReader::Status status = reader.next(text, true);
    if (status == LineReader::Status::kInterrupted) {
      if (interrupt.take()) std::fputc('\n', stderr);
      continue;
    }
    if (status == LineReader::Status::kEnd || text == "/quit") break;
    if (text == "/reset") {
      conversation.reset();
      continue;
    }
    if (text.find_first_not_of(" \t") == std::string::npos) continue;
    const auto said = conversation.say(text, interrupt);
    if (said.ok()) {
      std::fputs(terminal ? "\n\n" : "\n", stdout);
      std::fflush(stdout);
    } else {
      fail(said.error());
      code = kExitFailure;
    }
  }
  if (terminal) std::fputc('\n', stderr);
  return terminal ? kExitOk : code;
}

}  // namespace troupe::tools
