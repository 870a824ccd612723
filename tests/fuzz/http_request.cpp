// The bytes of a connection, cut into pieces, into a session whose engine answers at once. The
// session must answer each request once and stay bounded. The first byte says how long the pieces
// are.
//
// The same bytes into the parser alone: where it lets a request end, a reader who takes lines,
// names and values in any sloppy way must see the same end, so that no byte of a body is ever read
// as a request.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/http/gzip.hpp"
#include "runtime/http/session.hpp"

namespace {

using namespace troupe;

/// Keeps what it is given until the fuzzer answers for it.
class Engine final : public EnginePort {
 public:
  RequestId allocate_ids(std::int32_t count) override {
    const RequestId first{next_id_};
    next_id_ += static_cast<std::uint64_t>(count);
    return first;
  }
  std::uint64_t draw_key() override { return next_id_; }
  void submit(SubmitRequest submission) override { submitted.push_back(submission.request.id); }
  void abort(std::vector<RequestId>) override {}
  void render(RenderRequest, std::function<void(RenderReply)> reply) override { reply({}); }
  void reset_caches(ResetCaches, std::function<void(Result<CachesReset>)> reply) override {
    reply(CachesReset{true});
  }
  void move_cache(MoveCache, std::function<void(Result<CacheMoved>)> reply) override {
    reply(CacheMoved{});
  }
  void pause(PauseScheduler, PauseReply reply) override { reply(PauseStatus{true}); }
  void resume(PauseReply reply) override { reply(PauseStatus{}); }
  void ask_paused(PauseReply reply) override { reply(PauseStatus{}); }
  void drain_group(DrainGroup, std::function<void(Result<Status>)> reply) override {
    reply(Status{});
  }
  void ask_topology(std::function<void(Result<TopologyStatus>)> reply) override {
    reply(TopologyStatus{});
  }
  void load_adapter(LoadAdapter, AdapterCallback reply) override { reply(AdapterReply{}); }
  void call_workers(CollectiveRpc, std::function<void(Result<CollectiveRpcReply>)> reply) override {
    reply(CollectiveRpcReply{});
  }
  void unload_adapter(UnloadAdapter, AdapterCallback reply) override { reply(AdapterReply{}); }
  [[nodiscard]] std::shared_ptr<const AdapterList> adapters() const override { return nullptr; }
  [[nodiscard]] bool healthy() const noexcept override { return true; }

  std::vector<RequestId> submitted;

 private:
  std::uint64_t next_id_ = 1;
};

RequestOutputs answer(RequestId id, bool last) {
  RequestOutputs outputs;
  outputs.outputs.emplace_back();
  RequestOutput& output = outputs.outputs.back();
  output.id = id;
  output.outputs.emplace_back();
  output.outputs.back().text.push_back('x');
  output.outputs.back().token_ids = {1};
  if (last) output.outputs.back().finish_reason = FinishReason::kStop;
  output.finished = last;
  return outputs;
}

void drain(HttpSession& session) {
  std::string piece;
  while (session.take_output(piece)) session.sent();
}

void check(bool holds) {
  if (!holds) std::abort();
}

std::string lower(std::string_view text) {
  std::string small(text);
  for (char& c : small) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return small;
}

/// Without what is no printable ASCII, at both ends.
std::string_view stripped(std::string_view text) {
  while (!text.empty() && (text.front() <= ' ' || text.front() > '~')) text.remove_prefix(1);
  while (!text.empty() && (text.back() <= ' ' || text.back() > '~')) text.remove_suffix(1);
  return text;
}

/// The bytes of a chunked body, from the first digit to the last line; 0: it has no end, or one
/// that not all agree on.
std::size_t chunked_bytes(std::string_view bytes) {
  std::size_t at = 0;
  const auto take_line = [&]() -> std::optional<std::string_view> {
    const std::size_t end = bytes.find("\r\n", at);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = bytes.substr(at, end - at);
    at = end + 2;
    if (line.find_first_of("\r\n") != std::string_view::npos) return std::nullopt;
    return line;
  };
  for (;;) {
    const auto line = take_line();
    if (!line) return 0;
    std::size_t size = 0;
    const auto [end, error] = std::from_chars(line->data(), line->data() + line->size(), size, 16);
    if (error != std::errc() || size > bytes.size()) return 0;
    if (end != line->data() + line->size() &&
        std::string_view("; \t").find(*end) == std::string_view::npos)
      return 0;
    if (size == 0) break;
    if (bytes.substr(std::min(at + size, bytes.size()), 2) != "\r\n") return 0;
    at += size + 2;
  }
  for (;;) {
    const auto line = take_line();
    if (!line) return 0;
    if (line->empty()) return at;
  }
}

/// `head`: with its last line; `rest`: what follows on the connection, `num_used` of it the body.
void check_framing(std::string_view head, std::string_view rest, std::size_t num_used,
                   std::string_view body) {
  std::size_t num_lengths = 0, num_codings = 0, length = 0;
  bool chunked = false;
  for (std::size_t at = 0; at < head.size();) {
    const std::size_t end = head.find('\n', at);
    check(end != std::string_view::npos && end > at && head[end - 1] == '\r');
    const std::string_view line = head.substr(at, end - 1 - at);
    at = end + 1;
    check(line.find_first_of(std::string_view("\r\0", 2)) == std::string_view::npos);
    check(line.empty() || (line.front() != ' ' && line.front() != '\t'));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string name = lower(stripped(line.substr(0, colon)));
    const std::string_view value = stripped(line.substr(colon + 1));
    if (name == "content-length") {
      ++num_lengths;
      const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), length);
      check(error == std::errc() && stop == value.data() + value.size() && !value.empty());
    } else if (name == "transfer-encoding") {
      ++num_codings;
      chunked = lower(value) == "chunked";
      check(chunked);
    }
  }
  check(num_lengths + num_codings <= 1);
  if (chunked) {
    check(head.find(" HTTP/1.1\r\n") != std::string_view::npos);
    check(num_used != 0 && num_used == chunked_bytes(rest));
  } else {
    check(num_used == length && body == rest.substr(0, length));
  }
}

void check_requests(std::string_view bytes, std::size_t piece_bytes) {
  using State = RequestParser::State;
  const HttpLimits limits{.max_body_bytes = 4096, .max_header_bytes = 1024};
  std::size_t begin = 0;
  while (begin < bytes.size()) {
    RequestParser parser(limits);
    std::size_t at = begin, head_end = 0;
    while (parser.state() <= State::kBody) {
      if (parser.state() == State::kHeadDone && head_end == 0) head_end = at;
      if (at == bytes.size() && parser.state() != State::kHeadDone) return;
      at += parser.feed(bytes.substr(at, piece_bytes));
    }
    check(at - begin <= 1024 + 2 * 4096 + 4096 + 1);
    if (parser.state() == State::kRefused) return;
    check_framing(bytes.substr(begin, head_end - begin), bytes.substr(head_end), at - head_end,
                  parser.take().body);
    begin = at;
  }
}

/// What unpacks must stay within its limit.
void check_gunzip(std::string_view bytes) {
  const auto plain = gunzip(bytes, 4096);
  check(!plain.ok() || plain->size() <= 4096);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t piece_bytes = std::size_t{data[0]} * 8 + 1;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);

  check_requests(rest, piece_bytes);
  check_gunzip(rest);

  static EngineMetrics metrics("m", 100);
  static const ServiceConfig config = [] {
    ServiceConfig built;
    built.model_names = {"m"};
    built.defaults.max_model_len = 100;
    built.defaults.vocab_size = 1000;
    built.defaults.by_priority = true;
    built.cors.origins = {"*"};
    built.enable_request_id_headers = true;
    return built;
  }();
  ServiceCounters counters;
  Engine engine;
  Service service(config,
                  {.wall_clock = [] { return 1e9; },
                   .steady_clock = [] { return 1.0; },
                   .random = [] { return std::uint64_t{1}; },
                   .post = [](std::function<void()> function) { function(); },
                   .exchange_ended = {}},
                  counters, engine, metrics);
  {
    HttpSession session(
        service, {.max_body_bytes = 4096, .max_header_bytes = 1024}, [] { return 1e9; }, [] {});
    while (!rest.empty() && session.wants_input()) {
      const std::string_view piece = rest.substr(0, piece_bytes);
      rest.remove_prefix(piece.size());
      session.receive(piece);
      drain(session);
      // Half of the requests get their answer, the others wait until the client is gone.
      while (!engine.submitted.empty()) {
        const RequestId id = engine.submitted.back();
        engine.submitted.pop_back();
        RequestOutputs first = answer(id, false);
        service.deliver(first);
        if (value(id) % 2 == 0) {
          RequestOutputs last = answer(id, true);
          service.deliver(last);
        }
        drain(session);
      }
    }
  }
  if (counters.num_exchanges != 0 || counters.num_samples != 0) std::abort();
  return 0;
}
