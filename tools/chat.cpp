// troupe chat: chat in the terminal, or through a pipe, one message per line.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "tools/chat/conversation.hpp"
#include "tools/chat/interrupt.hpp"
#include "tools/chat/server_chat.hpp"
#include "tools/chat/terminal_input.hpp"
#include "tools/commands.hpp"
#include "tools/line_reader.hpp"
#include "tools/offline_engine.hpp"

namespace troupe::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kChatUsage =
    "chat [MODEL] [options]\n"
    "       troupe chat [MODEL] --url http://HOST:PORT [--api-key KEY] [options]\n\n"
    "Chats with a model that this command loads, or with --url through a running server with\n"
    "OpenAI's API (MODEL is then its name there, by default the server's first). Terminals have\n"
    "line editing and a history (up and down, Ctrl-R searches), and several pasted lines are one\n"
    "message. From a pipe, each line of standard input is a message.\n"
    "/help lists the commands.";

constexpr const char* kHelp =
    "  /clear       start a new conversation (/reset)\n"
    "  /exit        exit (/quit, Ctrl-D)\n"
    "  /help        this help\n"
    "  /image FILE  add an image before the next message\n"
    "  Ctrl-C stops an answer, up and down browse the history, Ctrl-R searches it.\n"
    "  Put a space before a message that begins with /.\n";

constexpr double kLookS = 0.05;  ///< polling interval for Ctrl-C

/// Answers from an engine in this process.
class EngineChat final : public AnswerSource {
 public:
  EngineChat(OfflineEngine& engine, std::string name) : engine_(engine), name_(std::move(name)) {}

  Result<Answer> answer(const std::string& body,
                        const std::function<void(const std::string&)>& on_text,
                        Interrupt& interrupt) override {
    ASSIGN_OR_RETURN(ChatRequest chat, parse_chat_request(body, engine_.request_defaults()));
    GenerateRequest request;
    request.prompt = std::move(chat.prompt);
    request.params = std::move(chat.params);
    request.params.output_kind = OutputKind::kDelta;
    const Clock::time_point start = Clock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    const RequestId id = engine_.submit(std::move(request));
    Answer answer;
    for (bool aborted = false;;) {
      const auto outputs = engine_.next_within(kLookS);
      if (interrupt.take() && !aborted) {
        engine_.abort(id);
        aborted = true;
      }
      if (!outputs) continue;
      for (const RequestOutput& output : outputs->outputs) {
        if (output.id != id) continue;
        answer.num_prompt_tokens += static_cast<std::int64_t>(output.prompt_token_ids.size());
        for (const CompletionOutput& sample : output.outputs) {
          if (answer.num_tokens == 0) answer.first_token_s = seconds();
          answer.num_tokens += static_cast<std::int64_t>(sample.token_ids.size());
          answer.text += sample.text;
          if (sample.finish_reason && !aborted)
            answer.finish_reason = to_string(*sample.finish_reason);
          on_text(sample.text);
        }
        if (!output.finished) continue;
        if (output.error) return *output.error;
        answer.total_s = seconds();
        return answer;
      }
    }
  }

  [[nodiscard]] std::string name() const override { return name_; }

 private:
  OfflineEngine& engine_;
  std::string name_;
};

/// Prints token counts and speed below an answer.
void print_figures(const Conversation::Said& said) {
  const Answer& answer = said.answer;
  // The first token includes the prefill; the decoding speed is that of the others.
  const double seconds = answer.total_s - answer.first_token_s;
  const std::int64_t num_tokens = answer.num_tokens;
  std::fprintf(stderr, "[%lld tokens", static_cast<long long>(num_tokens));
  if (num_tokens > 1 && seconds > 0)
    std::fprintf(stderr, ", %.1f tokens/s", static_cast<double>(num_tokens - 1) / seconds);
  std::fprintf(stderr, ", first after %.2f s", answer.first_token_s);
  if (answer.num_prompt_tokens > 0)
    std::fprintf(stderr, "; %lld in the conversation",
                 static_cast<long long>(answer.num_prompt_tokens + num_tokens));
  std::fputs("]\n", stderr);
  if (answer.finish_reason == "length")
    std::fputs(
        "[the answer was truncated: --max-tokens reached, or the context is full; /clear "
        "starts a new conversation]\n",
        stderr);
  if (answer.finish_reason.empty()) std::fputs("[stopped]\n", stderr);
}

void print_forgotten(std::size_t num_forgotten) {
  if (num_forgotten == 0) return;
  std::fprintf(stderr,
               "[the context is full: the oldest %zu message%s and their answers were dropped; "
               "/clear starts a new conversation]\n",
               num_forgotten, num_forgotten == 1 ? "" : "s");
}

/// Reads messages from a terminal, or lines of other input.
class MessageReader {
 public:
  MessageReader(bool terminal, Interrupt& interrupt)
      : lines_(STDIN_FILENO, interrupt.descriptor()) {
    if (terminal) input_.emplace("> ", interrupt);
  }

  /// False at the end.
  bool next(std::string& text) {
    if (!input_) return lines_.next(text, true) == LineReader::Status::kLine;
    for (;;) {
      const TerminalInput::Status status = input_->next(text);
      if (status != TerminalInput::Status::kInterrupted)
        return status == TerminalInput::Status::kMessage;
    }
  }

 private:
  LineReader lines_;
  std::optional<TerminalInput> input_;
};

enum class CommandEffect : std::uint8_t { kNone, kDone, kExit };

/// False (and an error is printed) if there is no such image.
bool attach_image(const std::string& path, Conversation& conversation) {
  auto url = image_file_url(path);
  if (!url.ok()) {
    fail(url.error());
    return false;
  }
  conversation.attach(std::move(url).value());
  return true;
}

/// "/word" alone is a command, and "/image FILE".
CommandEffect run_command(const std::string& text, Conversation& conversation) {
  constexpr std::string_view kImage = "/image ";
  if (text.starts_with(kImage)) {
    const std::size_t begin = text.find_first_not_of(' ', kImage.size());
    const std::size_t last = text.find_last_not_of(" \t");
    if (begin != std::string::npos)
      attach_image(text.substr(begin, last + 1 - begin), conversation);
    return CommandEffect::kDone;
  }
  const std::size_t end = text.find_last_not_of(" \t");
  const std::string word = text.substr(0, end == std::string::npos ? 0 : end + 1);
  if (!word.starts_with("/") ||
      word.find_first_not_of("abcdefghijklmnopqrstuvwxyz", 1) != std::string::npos)
    return CommandEffect::kNone;
  if (word == "/exit" || word == "/quit") return CommandEffect::kExit;
  if (word == "/clear" || word == "/reset") {
    conversation.clear();
  } else {
    if (word != "/help") std::fprintf(stderr, "troupe: unknown command '%s'\n", word.c_str());
    std::fputs(kHelp, stderr);
  }
  return CommandEffect::kDone;
}

int converse(AnswerSource& source, const ChatOptions& options, bool terminal,
             Interrupt& interrupt) {
  MessageReader reader(terminal, interrupt);
  Conversation conversation(source, options);
  if (terminal)
    std::fprintf(stderr, "%s. /help lists commands, /exit exits.\n", source.name().c_str());
  for (const std::string& path : options.images)
    if (!attach_image(path, conversation)) return kExitFailure;
  int code = kExitOk;
  const auto show = [](const std::string& piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  for (std::string text; reader.next(text);) {
    const CommandEffect effect = run_command(text, conversation);
    if (effect == CommandEffect::kExit) break;
    if (effect == CommandEffect::kDone || text.find_first_not_of(" \t\n") == std::string::npos)
      continue;
    static_cast<void>(interrupt.take());  // one that arrived too late for the previous answer
    const auto said = conversation.say(text, show, interrupt);
    if (said.ok()) {
      show("\n");
      print_forgotten(said->num_forgotten);
      if (terminal) print_figures(*said);
    } else {
      fail(said.error());
      if (is_too_long(said.error()))
        std::fputs("troupe: the message is too long for the model\n", stderr);
      code = kExitFailure;
    }
    if (terminal) std::fputc('\n', stderr);
  }
  return terminal ? kExitOk : code;
}

/// The API key: from the option, or from the variable that OpenAI's own clients read.
std::string server_key(const Options& options) {
  if (!options.server.api_key.empty()) return options.server.api_key.front();
  const char* key = std::getenv("OPENAI_API_KEY");
  return key == nullptr ? "" : key;
}

}  // namespace

int chat(Arguments arguments) {
  CommandLine line;
  ChatOptions options;
  std::string url;
  line.options.log.log_level = "warning";
  line.set.section("chat")
      .add("url", url, "use this server instead of loading a model: http[s]://HOST:PORT")
      .add("system", options.system, "system message")
      .add("image", options.images, "file with an image, before the first message")
      .add("temperature", options.temperature,
           "sampling temperature, 0 to 2; -1: the model's default", ChatOptions::kOwnTemperature, 2)
      .add("max-tokens", options.max_tokens, "maximum tokens of an answer; 0: the model's default",
           0, 1 << 30);
  if (const auto done = read_command_line(line, arguments, kChatUsage)) return *done;
  if (options.temperature < 0 && options.temperature != ChatOptions::kOwnTemperature) {
    return fail(invalid_argument("temperature is " + std::to_string(options.temperature) +
                                     ", it must be between 0 and 2, or -1",
                                 "temperature"));
  }
  const bool terminal = isatty(STDIN_FILENO) == 1;
  if (!url.empty()) {
    const auto server =
        ServerChat::connect(url, server_key(line.options), line.options.model.model);
    if (!server.ok()) return fail(server.error());
    Interrupt interrupt(terminal);
    return converse(**server, options, terminal, interrupt);
  }
  auto engine = OfflineEngine::start(line);
  if (!engine.ok()) return fail(engine.error());
  EngineChat source(**engine, line.options.model.model);
  Interrupt interrupt(terminal);
  return converse(source, options, terminal, interrupt);
}

}  // namespace troupe::tools
