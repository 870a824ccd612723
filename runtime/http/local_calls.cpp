#include "runtime/http/local_calls.hpp"

#include <utility>

#include "runtime/base/log.hpp"

namespace troupe {
namespace {

constexpr const char* kLocalClient = "batch";

}  // namespace

class LocalCalls::Call final : public ResponseSink {
 public:
  Call(LocalCalls& owner, std::uint64_t id, const HttpRequest& head, Done done)
      : owner_(owner),
        id_(id),
        done_(std::move(done)),
        observation_(owner.service_.begin_observation(head)) {}

  ~Call() override {
    if (answered_) return;
    constexpr int kClientClosedRequest = 499;  // as of a connection that ends
    observation_.status = kClientClosedRequest;
    try {
      owner_.service_.log_unanswered(std::move(observation_),
                                     exchange_ ? exchange_->work_done() : WorkDone{}, kLocalClient);
    } catch (const std::exception&) {
      // Only the log line is lost.
    }
  }

  void start(HttpRequest request) {
    contain(*this, [&] {
      if (auto refusal = owner_.service_.refuse(request)) return respond(*std::move(refusal));
      exchange_ = owner_.service_.handle(std::move(request), *this);
    });
  }

  /// Nothing of the exchange is on the call stack.
  void finish() {
    const WorkDone work = exchange_ ? exchange_->work_done() : WorkDone{};
    exchange_.reset();
    observation_.status = response_.status;
    observation_.response_bytes = response_.body.size();
    owner_.service_.end_observation(std::move(observation_), work, kLocalClient);
    done_(std::move(response_));
  }

  void respond(HttpResponse response) override {
    response_ = std::move(response);
    end();
  }
  void begin(HttpResponse head) override { response_ = std::move(head); }
  void write(std::string_view bytes, bool last) override {
    response_.body += bytes;
    if (last) end();
  }
  [[nodiscard]] bool ready() const noexcept override { return true; }
  void fail(std::string_view what) noexcept override {
    try {
      log_error("request of a batch failed", kv("path", observation_.path), kv("what", what));
      exchange_.reset();
      if (!answered_) respond(error_response({ErrorCode::kInternal, "internal error", ""}));
    } catch (...) {
      // Out of memory: the call stays until it is aborted.
    }
  }

 private:
  void end() {
    if (std::exchange(answered_, true)) return;
    owner_.post_([&owner = owner_, id = id_] { owner.finish(id); });
  }

  LocalCalls& owner_;
  const std::uint64_t id_;
  const Done done_;
  HttpObservation observation_;
  HttpResponse response_;
  bool answered_ = false;
  std::unique_ptr<Exchange> exchange_;
};

LocalCalls::LocalCalls(Service& service, std::function<void(std::function<void()>)> post)
    : service_(service), post_(std::move(post)) {}

LocalCalls::~LocalCalls() = default;

void LocalCalls::start(std::uint64_t id, HttpRequest request, Done done) {
  Call& call = *(calls_[id] = std::make_unique<Call>(*this, id, request, std::move(done)));
  call.start(std::move(request));
}

void LocalCalls::abort(std::uint64_t id) { calls_.erase(id); }

void LocalCalls::abort_all() { calls_.clear(); }

void LocalCalls::finish(std::uint64_t id) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  const std::unique_ptr<Call> call = std::move(found->second);
  calls_.erase(found);
  call->finish();
}

}  // namespace troupe
