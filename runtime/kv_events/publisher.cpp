#include "runtime/kv_events/publisher.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "runtime/base/event_fd.hpp"
#include "runtime/base/log.hpp"
#include "runtime/kv_events/event_log.hpp"

namespace troupe {
namespace {

/// How long the destructor waits for subscribers to read what was sent.
constexpr int kLingerMs = 1000;
/// A request has three short frames, a subscription has one.
constexpr std::int64_t kMaxRequestFrameBytes = 1024;
constexpr std::size_t kMaxRequestsPerTurn = 64;
/// Maximum concurrent replies; further requests are ignored, since subscribers retry.
constexpr std::size_t kMaxAnswers = 64;
/// Messages per reply between two checks of the queue.
constexpr std::size_t kMaxMessagesPerTurn = 128;
/// Retry interval for a peer that does not read its reply.
constexpr auto kRetry = std::chrono::milliseconds(5);

/// The reply to one request, with the position up to which it was sent.
struct Answer {
  std::string identity;
  EventFrames frames;
  std::size_t num_sent = 0;
};

Error open_error(const std::string& what, const std::string& endpoint, const zmq::error_t& error) {
  const bool no_endpoint = error.num() == EINVAL || error.num() == EPROTONOSUPPORT;
  return {no_endpoint ? ErrorCode::kInvalidArgument : ErrorCode::kIo,
          "cannot open the " + what + " " + endpoint + ": " + error.what(), "kv-events-config"};
}

/// IPv6 has to be enabled explicitly.
void allow_ipv6(zmq::socket_t& socket, const std::string& endpoint) {
  if (endpoint.find("::") != std::string::npos) socket.set(zmq::sockopt::ipv6, 1);
}

}  // namespace

class KVEventPublisher::Impl {
 public:
  Impl(const KVEventsConfig& config, const KVEventForm& form)
      : config_(config),
        log_(form, config.buffer_steps),
        pub_(context_, zmq::socket_type::pub),
        router_(context_, zmq::socket_type::router) {}
  ~Impl() {
    if (thread_.joinable()) {
      {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
      }
      wake_.signal();
      thread_.join();
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<void> open(std::int32_t rank) {
    ASSIGN_OR_RETURN(endpoint_, offset_endpoint(config_.endpoint, rank));
    try {
      allow_ipv6(pub_, endpoint_);
      pub_.set(zmq::sockopt::sndhwm, static_cast<int>(config_.hwm));
      pub_.set(zmq::sockopt::linger, kLingerMs);
      pub_.set(zmq::sockopt::maxmsgsize, kMaxRequestFrameBytes);
      if (is_bound_endpoint(endpoint_)) {
        pub_.bind(endpoint_);
        endpoint_ = pub_.get(zmq::sockopt::last_endpoint);
      } else {
        pub_.connect(endpoint_);
      }
    } catch (const zmq::error_t& error) {
      return open_error("KV events endpoint", endpoint_, error);
    }
    if (config_.replay_endpoint.empty()) return {};
    ASSIGN_OR_RETURN(replay_endpoint_, offset_endpoint(config_.replay_endpoint, rank));
    try {
      allow_ipv6(router_, replay_endpoint_);
      router_.set(zmq::sockopt::linger, 0);
      router_.set(zmq::sockopt::maxmsgsize, kMaxRequestFrameBytes);
      // Report a full or disconnected peer instead of dropping part of its reply.
      router_.set(zmq::sockopt::router_mandatory, true);
      router_.bind(replay_endpoint_);
      replay_endpoint_ = router_.get(zmq::sockopt::last_endpoint);
    } catch (const zmq::error_t& error) {
      return open_error("KV events replay endpoint", replay_endpoint_, error);
    }
    return {};
  }

  void run() {
    thread_ = std::thread([this] {
      while (turn()) {
      }
    });
  }

  void publish(KVEventBatch batch) {
    {
      const std::lock_guard lock(mutex_);
      if (queue_.size() <
          static_cast<std::size_t>(std::max<std::int64_t>(config_.max_queue_size, 1))) {
        queue_.push_back(std::move(batch));
      } else {
        KVEventBatch& last = queue_.back();
        last.time = batch.time;
        last.events.insert(last.events.end(), std::make_move_iterator(batch.events.begin()),
                           std::make_move_iterator(batch.events.end()));
      }
    }
    wake_.signal();
  }

  [[nodiscard]] const std::string& endpoint() const noexcept { return endpoint_; }
  [[nodiscard]] const std::string& replay_endpoint() const noexcept { return replay_endpoint_; }

 private:
  /// False after stop, when everything is published.
  bool turn() {
    try {
      wait();
      if (!publish_queue()) return false;
      if (!replay_endpoint_.empty()) {
        take_requests();
        send_answers();
      }
    } catch (const zmq::error_t& error) {
      if (error.num() == ETERM) return false;
      if (error.num() != EINTR) log_warning("kv events", kv("error", std::string(error.what())));
    }
    return true;
  }

  void wait() {
    std::array<zmq::pollitem_t, 2> items = {zmq::pollitem_t{nullptr, wake_.get(), ZMQ_POLLIN, 0},
                                            zmq::pollitem_t{router_.handle(), 0, ZMQ_POLLIN, 0}};
    const auto forever = std::chrono::milliseconds(-1);
    const std::size_t num_items = replay_endpoint_.empty() ? 1 : 2;
    zmq::poll(items.data(), num_items, answers_.empty() ? forever : kRetry);
    wake_.clear();
  }

  bool publish_queue() {
    std::deque<KVEventBatch> batches;
    bool stopping = false;
    {
      const std::lock_guard lock(mutex_);
      batches.swap(queue_);
      stopping = stopping_;
    }
    for (const KVEventBatch& batch : batches) {
      const auto frame = log_.append(batch);
      send(pub_, config_.topic, ZMQ_SNDMORE);
      send(pub_, sequence_bytes(frame->sequence), ZMQ_SNDMORE);
      send(pub_, frame->payload, 0);
    }
    return !stopping;
  }

  void take_requests() {
    for (std::size_t i = 0; i < kMaxRequestsPerTurn; ++i) {
      std::vector<zmq::message_t> frames;  // identity, empty, content
      bool more = true;
      std::size_t num_frames = 0;
      for (; more; ++num_frames) {
        zmq::message_t frame;
        if (!router_.recv(frame, zmq::recv_flags::dontwait)) return;
        more = frame.more();
        if (num_frames < 4) frames.push_back(std::move(frame));
      }
      std::vector<std::string_view> behind_identity;
      for (std::size_t f = 1; f < frames.size(); ++f)
        behind_identity.push_back(frames[f].to_string_view());
      const auto request = parse_replay_request(behind_identity);
      if (!request) {
        // Once: arbitrary peers must not fill the log.
        if (!std::exchange(warned_, true))
          log_warning("kv events: not a replay request, ignored", kv("frames", num_frames));
      } else if (answers_.size() == kMaxAnswers) {
        log_warning("kv events: too many replays at once", kv("limit", kMaxAnswers));
      } else {
        answers_.push_back({frames[0].to_string(),
                            request->snapshot ? log_.snapshot() : log_.replay(request->start)});
      }
    }
  }

  void send_answers() {
    for (std::size_t i = 0; i < answers_.size();) {
      // Replies to one peer are sent one after the other.
      const bool waits = std::any_of(
          answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(i),
          [&](const Answer& earlier) { return earlier.identity == answers_[i].identity; });
      if (!waits && send_some(answers_[i]))
        answers_.erase(answers_.begin() + static_cast<std::ptrdiff_t>(i));
      else
        ++i;
    }
  }

  /// True when the reply has been sent, or its peer has disconnected.
  bool send_some(Answer& answer) {
    try {
      for (std::size_t count = 0; count < kMaxMessagesPerTurn; ++count) {
        if (!send(router_, answer.identity, ZMQ_SNDMORE | ZMQ_DONTWAIT)) {
          return false;  // the peer has not read its messages
        }
        const bool end = answer.num_sent == answer.frames.size();
        const EventFrame last{kEndOfReplay, ""};
        const EventFrame& frame = end ? last : *answer.frames[answer.num_sent];
        send(router_, "", ZMQ_SNDMORE);
        send(router_, end ? "" : config_.topic, ZMQ_SNDMORE);
        send(router_, sequence_bytes(frame.sequence), ZMQ_SNDMORE);
        send(router_, frame.payload, 0);
        if (end) return true;
        ++answer.num_sent;
      }
      wake_.signal();  // to continue at once if there is room
      return false;
    } catch (const zmq::error_t& error) {
      if (error.num() != EHOSTUNREACH) throw;
      return true;
    }
  }

  static bool send(zmq::socket_t& socket, std::string_view bytes, int flags) {
    return socket.send(zmq::buffer(bytes), static_cast<zmq::send_flags>(flags)).has_value();
  }

  const KVEventsConfig config_;
  std::string endpoint_;
  std::string replay_endpoint_;

  std::mutex mutex_;
  std::deque<KVEventBatch> queue_;
  bool stopping_ = false;

  // Used by the thread only, once it runs.
  EventLog log_;
  const EventFd wake_;
  zmq::context_t context_{1};
  zmq::socket_t pub_;
  zmq::socket_t router_;
  std::vector<Answer> answers_;
  bool warned_ = false;
  std::thread thread_;
};

Result<std::unique_ptr<KVEventPublisher>> KVEventPublisher::start(const KVEventsConfig& config,
                                                                  const KVEventForm& form) {
  auto impl = std::make_unique<Impl>(config, form);
  RETURN_IF_ERROR(impl->open(form.data_parallel_rank.value_or(0)));
  impl->run();
  return std::unique_ptr<KVEventPublisher>(new KVEventPublisher(std::move(impl)));
}

KVEventPublisher::KVEventPublisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KVEventPublisher::~KVEventPublisher() = default;

void KVEventPublisher::publish(KVEventBatch batch) { impl_->publish(std::move(batch)); }
const std::string& KVEventPublisher::endpoint() const noexcept { return impl_->endpoint(); }
const std::string& KVEventPublisher::replay_endpoint() const noexcept {
  return impl_->replay_endpoint();
}

}  // namespace troupe
