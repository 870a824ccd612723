// The bytes of a connection, cut into pieces, into a session whose engine answers at once. The
// session must answer each request once and stay bounded. The first byte says how long the pieces
// are.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

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
  void pause(PauseScheduler, PauseReply reply) override { reply(PauseStatus{true}); }
  void resume(PauseReply reply) override { reply(PauseStatus{}); }
  void ask_paused(PauseReply reply) override { reply(PauseStatus{}); }
  void drain_group(DrainGroup, std::function<void(Result<Status>)> reply) override {
    reply(Status{});
  }
  void ask_topology(std::function<void(Result<TopologyStatus>)> reply) override {
    reply(TopologyStatus{});
  }
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t piece_bytes = std::size_t{data[0]} * 8 + 1;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);

  static EngineMetrics metrics("m", 100);
  static const ServiceConfig config = [] {
    ServiceConfig built;
    built.model_names = {"m"};
    built.defaults.max_model_len = 100;
    built.defaults.vocab_size = 1000;
    built.allowed_origins = {"*"};
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
