#include "runtime/kv_transfer/lmcache/controller_link.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <set>
#include <thread>
#include <zmq.hpp>

#include "runtime/base/event_fd.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/kv_transfer/lmcache/controller_messages.hpp"

namespace troupe::lmcache {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMaxOperations = 1000;  ///< of a message
constexpr std::size_t kMaxBatchKeys = 2000;   ///< of a synchronisation, as LMCache's
constexpr std::int64_t kMaxMessageBytes = std::int64_t{64} << 20;
constexpr milliseconds kRetry{1000};  ///< after a connection that failed
constexpr milliseconds kStatusInterval{200};
constexpr int kMaxStatusTries = 100;
constexpr int kLingerMs = 500;
/// A full queue to the controller: it does not read any more.
constexpr int kSendTimeoutMs = 2000;

/// The address of this host that leads to "host:port". Errors: kNotFound, kUnavailable.
Result<std::string> address_towards(const std::string& url) {
  const std::size_t colon = url.rfind(':');
  addrinfo hints{};
  hints.ai_family = AF_INET;  // LMCache writes "ip:port"
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(url.substr(0, colon).c_str(), url.substr(colon + 1).c_str(), &hints, &found) !=
      0)
    return Error{ErrorCode::kNotFound, url + " is no known address", {}};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  // Sends nothing.
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  socklen_t size = sizeof own;
  std::string text(INET_ADDRSTRLEN, '\0');
  if (!socket.valid() || ::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      ::inet_ntop(AF_INET, &own.sin_addr, text.data(), INET_ADDRSTRLEN) == nullptr)
    return Error{ErrorCode::kUnavailable, "there is no way to " + url, {}};
  text.resize(text.find('\0'));
  return text;
}

}  // namespace

class ControllerLink::Thread {
 public:
  Thread(ControllerOptions options, std::vector<ControlledWorker> workers, ChunkBoard& board,
         std::optional<ChunkSource> source)
      : options_(std::move(options)),
        workers_(std::move(workers)),
        board_(board),
        source_(std::move(source)) {
    board_.set_listener([this] { wake_.signal(); });
    thread_ = std::thread([this] { run(); });
  }
  ~Thread() {
    board_.set_listener(nullptr);
    ends_ = true;
    wake_.signal();
    thread_.join();
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

 private:
  enum class Request : std::uint8_t { kRegister, kHeartbeat, kSyncStart, kSyncStatus };
  struct Waiting {
    Request request = Request::kRegister;
    std::size_t worker = 0;
    Clock::time_point deadline;
  };
  /// Requests, which are answered in their order.
  struct Channel {
    zmq::socket_t socket;
    std::deque<Waiting> waiting;
  };
  /// All keys of one worker, location after location. Changes are held back until its end, as the
  /// controller drops those that come meanwhile.
  struct Sync {
    std::size_t worker = 0;
    FullSync message;
    std::vector<PythonInt> keys;
    int num_tries = 0;
    std::optional<Clock::time_point> ask_at;  ///< for its status
  };
  /// Of one worker, which gets no other order meanwhile.
  struct Move {
    ControllerOrder order;
    std::vector<ChunkId> chunks;
    std::future<Result<std::size_t>> num_copied;
    std::jthread thread;
  };
  /// All ranks are ordered to move: which of them have done the last one that does not copy.
  struct LastMove {
    Location location = Location::kCpu;
    std::vector<std::int64_t> tokens;
    std::set<std::size_t> workers;
    std::size_t num_chunks = SIZE_MAX;  ///< that each of them has copied
  };

  void run() {
    std::string last_problem;
    while (!ends_) {
      const Result<void> served = serve();
      if (ends_) return;
      if (!served.ok() && served.error().message != last_problem) {
        last_problem = served.error().message;
        log_warning("LMCache's controller is not reached", kv("url", options_.reply_url),
                    kv("reason", last_problem));
      }
      const Clock::time_point retry_at = Clock::now() + kRetry;
      while (!ends_ && Clock::now() < retry_at) {
        zmq::pollitem_t item{nullptr, wake_.get(), ZMQ_POLLIN, 0};
        wait_for(&item, 1, retry_at);
        static_cast<void>(board_.take_changes());  // all are reported with the next connection
      }
    }
  }

  /// One connection, until it fails or ends.
  Result<void> serve() {
    try {
      ASSIGN_OR_RETURN(const std::string ip, address_towards(options_.reply_url));
      zmq::context_t context(1);
      context_ = &context;
      // The context's end waits for its sockets.
      struct Closer {
        Thread& thread;
        ~Closer() { thread.close(); }
      } const closer{*this};
      for (ControlledWorker& worker : workers_) {
        worker.ip = ip;
        zmq::socket_t& socket = orders_.emplace_back(context, zmq::socket_type::rep);
        socket.set(zmq::sockopt::linger, kLingerMs);
        socket.set(zmq::sockopt::maxmsgsize, kMaxMessageBytes);
        socket.bind("tcp://" + ip + ":" + std::to_string(worker.port));
      }
      requests_ = {zmq::socket_t(context, zmq::socket_type::dealer), {}};
      zmq::socket_t monitor(context, zmq::socket_type::pair);
      if (zmq_socket_monitor(requests_.socket.handle(), "inproc://controller",
                             ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) != 0)
        throw zmq::error_t();
      monitor.connect("inproc://controller");
      open(requests_.socket, options_.reply_url);
      heartbeats_.reset();
      heartbeat_at_.reset();
      sync_.reset();
      wanted_syncs_.clear();
      num_registered_ = 0;
      register_by_ = Clock::now() + options_.timeout;
      reports_ = zmq::socket_t(context, zmq::socket_type::push);
      open(reports_, options_.pull_url);
      reports_.set(zmq::sockopt::linger, kLingerMs);
      const Result<void> ended = exchange(monitor);
      if (ends_ && is_registered())
        for (const ControlledWorker& worker : workers_) report(controller_deregister(worker));
      return ended;
    } catch (const zmq::error_t& error) {
      return Error{ErrorCode::kUnavailable, error.what(), {}};
    }
  }

  void close() {
    moves_.clear();
    orders_.clear();
    requests_ = {};
    heartbeats_.reset();
    reports_ = {};
  }

  static void open(zmq::socket_t& socket, const std::string& url) {
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::sndtimeo, kSendTimeoutMs);
    socket.set(zmq::sockopt::maxmsgsize, kMaxMessageBytes);
    socket.set(zmq::sockopt::heartbeat_ivl, 5000);  // finds hosts that are gone
    socket.connect("tcp://" + url);
  }

  Result<void> exchange(zmq::socket_t& monitor) {
    while (!ends_) {
      std::vector<zmq::pollitem_t> items = {{nullptr, wake_.get(), ZMQ_POLLIN, 0},
                                            {monitor.handle(), 0, ZMQ_POLLIN, 0},
                                            {requests_.socket.handle(), 0, ZMQ_POLLIN, 0}};
      for (zmq::socket_t& socket : orders_) items.push_back({socket.handle(), 0, ZMQ_POLLIN, 0});
      if (heartbeats_) items.push_back({heartbeats_->socket.handle(), 0, ZMQ_POLLIN, 0});
      wait_for(items.data(), items.size(), next_deadline());
      RETURN_IF_ERROR(take_events(monitor));
      RETURN_IF_ERROR(take_replies(requests_));
      if (heartbeats_) {
        RETURN_IF_ERROR(take_replies(*heartbeats_));
      }
      end_moves();
      for (std::size_t i = 0; i < orders_.size(); ++i) answer(i);
      RETURN_IF_ERROR(keep_time());
      if (!is_registered()) {
        static_cast<void>(board_.take_changes());  // all are reported once they are
      } else if (!sync_) {
        RETURN_IF_ERROR(report_changes(board_.take_changes()));
      }
    }
    return {};
  }

  void wait_for(zmq::pollitem_t* items, std::size_t count, Clock::time_point until) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    try {
      zmq::poll(items, count, std::clamp(left, milliseconds(0), milliseconds(60'000)));
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;
    }
    wake_.clear();
  }

  [[nodiscard]] Clock::time_point next_deadline() const {
    Clock::time_point next = Clock::now() + std::chrono::minutes(1);
    for (const Channel* channel : {&requests_, heartbeats_ ? &*heartbeats_ : &requests_})
      if (!channel->waiting.empty()) next = std::min(next, channel->waiting.front().deadline);
    if (!is_registered()) next = std::min(next, register_by_);
    if (heartbeat_at_) next = std::min(next, *heartbeat_at_);
    if (sync_ && sync_->ask_at) next = std::min(next, *sync_->ask_at);
    return next;
  }

  [[nodiscard]] bool is_registered() const noexcept { return num_registered_ == workers_.size(); }

  Result<void> take_events(zmq::socket_t& monitor) {
    zmq::message_t event;
    zmq::message_t address;
    while (monitor.recv(event, zmq::recv_flags::dontwait)) {
      static_cast<void>(monitor.recv(address));
      std::uint16_t kind = 0;
      if (event.size() >= sizeof kind) std::memcpy(&kind, event.data(), sizeof kind);
      if (kind == ZMQ_EVENT_DISCONNECTED)
        return Error{ErrorCode::kUnavailable, "the connection has ended", {}};
      for (std::size_t i = 0; i < workers_.size(); ++i)
        RETURN_IF_ERROR(send(requests_, Request::kRegister, i, controller_register(workers_[i])));
    }
    return {};
  }

  // ---- requests ---------------------------------------------------------------------------------

  Result<void> send(Channel& channel, Request request, std::size_t worker, std::string bytes) {
    if (!channel.socket.send(zmq::message_t(), zmq::send_flags::sndmore) ||
        !channel.socket.send(zmq::buffer(bytes), zmq::send_flags::none))
      return not_taken();
    channel.waiting.push_back({request, worker, Clock::now() + options_.timeout});
    return {};
  }
  static Error not_taken() { return {ErrorCode::kTimeout, "it does not read", {}}; }

  Result<void> take_replies(Channel& channel) {
    zmq::message_t part;
    while (channel.socket.recv(part, zmq::recv_flags::dontwait)) {
      while (part.more()) static_cast<void>(channel.socket.recv(part));
      ASSIGN_OR_RETURN(const ControllerReply reply, parse_controller_reply(part.to_string_view()));
      if (channel.waiting.empty())
        return Error{ErrorCode::kCorrupt, "it answers what nobody asked", {}};
      const Waiting waiting = channel.waiting.front();
      channel.waiting.pop_front();
      RETURN_IF_ERROR(take_reply(waiting, reply));
    }
    return {};
  }

  Result<void> take_reply(const Waiting& waiting, const ControllerReply& reply) {
    switch (waiting.request) {
      case Request::kRegister:
        if (reply.type != "RegisterRetMsg")
          return Error{
              ErrorCode::kCorrupt, "it does not register: " + reply.type + reply.error, {}};
        heartbeat_url_ = reply.heartbeat_url;
        if (++num_registered_ == workers_.size()) return start_reports();
        return {};
      case Request::kHeartbeat:
        if (reply.wants_sync &&
            std::ranges::find(wanted_syncs_, waiting.worker) == wanted_syncs_.end() &&
            !(sync_ && sync_->worker == waiting.worker))
          wanted_syncs_.push_back(waiting.worker);
        return sync_ ? Result<void>() : next_sync();
      case Request::kSyncStart:
        if (!sync_) return {};
        if (!reply.accepted) {
          log_warning("LMCache's controller refuses a synchronisation",
                      kv("reason", reply.error.empty() ? reply.type : reply.error));
          return end_sync();
        }
        return send_keys();
      case Request::kSyncStatus:
        if (!sync_) return {};
        if (reply.is_complete) return next_location();
        if (++sync_->num_tries >= kMaxStatusTries) return end_sync();
        sync_->ask_at = Clock::now() + kStatusInterval;
        return {};
    }
    return {};
  }

  /// The controller has dropped what it knew of the workers.
  Result<void> start_reports() {
    log_info("registered with LMCache's controller", kv("instance", options_.instance_id),
             kv("workers", workers_.size()));
    numbers_ = {};
    RETURN_IF_ERROR(report_changes(board_.snapshot()));
    if (!options_.heartbeat_time) return {};
    if (!heartbeat_url_.empty()) {
      heartbeats_ = Channel{zmq::socket_t(*context_, zmq::socket_type::dealer), {}};
      open(heartbeats_->socket, heartbeat_url_);
    }
    heartbeat_at_ = Clock::now() + options_.heartbeat_delay;
    return {};
  }

  Result<void> keep_time() {
    const Clock::time_point now = Clock::now();
    bool is_late = !is_registered() && register_by_ <= now;
    for (const Channel* channel : {&requests_, heartbeats_ ? &*heartbeats_ : &requests_})
      is_late |= !channel->waiting.empty() && channel->waiting.front().deadline <= now;
    if (is_late)
      return Error{ErrorCode::kTimeout,
                   "no answer within " + std::to_string(options_.timeout.count()) + " ms",
                   {}};
    if (heartbeat_at_ && *heartbeat_at_ <= now) {
      heartbeat_at_ = now + *options_.heartbeat_time;
      Channel& channel = heartbeats_ ? *heartbeats_ : requests_;
      for (std::size_t i = 0; i < workers_.size(); ++i)
        RETURN_IF_ERROR(send(channel, Request::kHeartbeat, i, controller_heartbeat(workers_[i])));
    }
    if (sync_ && sync_->ask_at && *sync_->ask_at <= now) {
      sync_->ask_at.reset();
      return send(requests_, Request::kSyncStatus, sync_->worker,
                  controller_sync_status(workers_[sync_->worker], sync_->message));
    }
    return {};
  }

  // ---- reports ----------------------------------------------------------------------------------

  bool report(const std::string& bytes) {
    return reports_.send(zmq::buffer(bytes), zmq::send_flags::none).has_value();
  }

  /// In messages of one location each.
  Result<void> report_changes(std::span<const ChunkBoard::Change> changes) {
    while (!changes.empty()) {
      const Location location = changes.front().location;
      const auto end = std::ranges::find_if(
          changes, [location](const auto& change) { return change.location != location; });
      const std::size_t count =
          std::min(kMaxOperations, static_cast<std::size_t>(end - changes.begin()));
      std::uint64_t& number = numbers_[static_cast<std::size_t>(location)];
      for (const ControlledWorker& worker : workers_)
        if (!report(controller_operations(worker, location, changes.first(count), number)))
          return not_taken();
      number += count;
      changes = changes.subspan(count);
    }
    return {};
  }

  Result<void> next_sync() {
    if (wanted_syncs_.empty()) return {};
    sync_ = Sync{.worker = wanted_syncs_.front(), .message = {}, .keys = {}, .ask_at = {}};
    wanted_syncs_.pop_front();
    return start_sync(Location::kCpu);
  }

  Result<void> start_sync(Location location) {
    // Those that wait to be reported come after these keys, in the end.
    sync_->keys = board_.keys(location);
    sync_->num_tries = 0;
    sync_->message = {.location = location,
                      .id = options_.instance_id + "_" +
                            std::to_string(workers_[sync_->worker].worker) + "_" + random_hex(4),
                      .num_keys = sync_->keys.size(),
                      .num_batches = std::max<std::size_t>(
                          1, (sync_->keys.size() + kMaxBatchKeys - 1) / kMaxBatchKeys)};
    return send(requests_, Request::kSyncStart, sync_->worker,
                controller_sync_start(workers_[sync_->worker], sync_->message));
  }

  Result<void> send_keys() {
    const ControlledWorker& worker = workers_[sync_->worker];
    for (std::size_t i = 0; i < sync_->message.num_batches; ++i) {
      const auto batch = std::span<const PythonInt>(sync_->keys).subspan(i * kMaxBatchKeys);
      if (!report(controller_sync_batch(worker, sync_->message, i,
                                        batch.first(std::min(batch.size(), kMaxBatchKeys)))))
        return not_taken();
    }
    if (!report(controller_sync_end(worker, sync_->message))) return not_taken();
    sync_->ask_at = Clock::now();
    return {};
  }

  Result<void> next_location() {
    if (sync_->message.location == Location::kCpu) return start_sync(Location::kDisk);
    return end_sync();
  }
  Result<void> end_sync() {
    sync_.reset();
    return next_sync();
  }

  // ---- orders -----------------------------------------------------------------------------------

  void answer(std::size_t worker) {
    zmq::socket_t& socket = orders_[worker];
    zmq::message_t part;
    // One that has not been answered is the last one.
    while (!moves_.contains(worker) && socket.recv(part, zmq::recv_flags::dontwait)) {
      while (part.more()) static_cast<void>(socket.recv(part));
      auto order = parse_controller_order(part.to_string_view());
      if (!order.ok()) {
        reply(worker, controller_error(order.error().message));
      } else if (source_ && order->type == "MoveWorkerMsg") {
        begin_move(worker, std::move(*order));
      } else {
        reply(worker, answer_controller_order(*order, workers_[worker].worker, board_, last_clear_,
                                              Clock::now(), options_.pin_time));
      }
    }
  }

  void reply(std::size_t worker, const std::string& bytes) {
    static_cast<void>(orders_[worker].send(zmq::buffer(bytes), zmq::send_flags::dontwait));
  }

  void begin_move(std::size_t worker, ControllerOrder order) {
    const auto location = parse_location(order.location);
    if (!location || order.new_location != kLocationNames[0])
      return reply(worker,
                   controller_error("a move from " + order.location + " to " + order.new_location +
                                    " is not offered here, it is to " + kLocationNames[0]));
    std::vector<ChunkId> chunks = board_.leading(*location, order.tokens);
    std::vector<std::string> keys;
    for (const ChunkId& chunk : chunks)
      keys.push_back(source_->key_of(chunk, workers_[worker].worker));
    Move& move = moves_[worker];
    move.order = std::move(order);
    move.chunks = std::move(chunks);
    std::promise<Result<std::size_t>> promise;
    move.num_copied = promise.get_future();
    move.thread = std::jthread([this, promise = std::move(promise), keys = std::move(keys),
                                target = move.order.target](const std::stop_token& stop) mutable {
      promise.set_value(copy_chunks(*source_, target, keys, stop));
      wake_.signal();
    });
  }

  void end_moves() {
    for (auto each = moves_.begin(); each != moves_.end();) {
      auto& [worker, move] = *each;
      if (move.num_copied.wait_for(milliseconds(0)) != std::future_status::ready) {
        ++each;
        continue;
      }
      const Result<std::size_t> num_copied = move.num_copied.get();
      if (num_copied.ok()) {
        if (!move.order.copy)
          note_moved(worker, move.order, std::span(move.chunks).first(*num_copied));
        reply(worker,
              controller_moved(static_cast<std::int64_t>(*num_copied * board_.chunk_size())));
      } else {
        reply(worker, controller_error(num_copied.error().message));
      }
      each = moves_.erase(each);
    }
  }

  /// The chunks leave their location once all ranks' parts are elsewhere.
  void note_moved(std::size_t worker, const ControllerOrder& order,
                  std::span<const ChunkId> chunks) {
    const Location location = *parse_location(order.location);
    if (last_move_.location != location || last_move_.tokens != order.tokens)
      last_move_ = {.location = location, .tokens = order.tokens, .workers = {}};
    last_move_.workers.insert(worker);
    last_move_.num_chunks = std::min(last_move_.num_chunks, chunks.size());
    if (last_move_.workers.size() < workers_.size()) return;
    board_.remove(location, chunks.first(last_move_.num_chunks), Clock::now());
    last_move_ = {};
  }

  const ControllerOptions options_;
  std::vector<ControlledWorker> workers_;
  ChunkBoard& board_;
  const std::optional<ChunkSource> source_;  // none: nothing is moved
  const EventFd wake_;
  std::atomic<bool> ends_ = false;

  // The thread's, of one connection.
  zmq::context_t* context_ = nullptr;
  std::vector<zmq::socket_t> orders_;
  Channel requests_;
  std::optional<Channel> heartbeats_;  // none: the controller names no address for them
  zmq::socket_t reports_;
  std::string heartbeat_url_;
  std::optional<Clock::time_point> heartbeat_at_;
  std::size_t num_registered_ = 0;
  Clock::time_point register_by_;
  std::array<std::uint64_t, kLocationNames.size()> numbers_{};  // of the next reports
  std::optional<Sync> sync_;
  std::deque<std::size_t> wanted_syncs_;  // of which workers
  LastClear last_clear_;
  std::map<std::size_t, Move> moves_;  // that workers are at
  LastMove last_move_;

  std::thread thread_;  // last: it uses the others
};

Result<ControllerOptions> ControllerLink::of_group(ControllerOptions options,
                                                   std::int32_t num_workers, std::int32_t group,
                                                   std::int32_t num_groups) {
  const auto wrong = [](const std::string& what) {
    return invalid_argument(what, "kv-transfer-config");
  };
  if (options.instance_id.empty()) return wrong("enable_controller needs lmcache_instance_id");
  for (const auto& [name, url] : {std::pair("controller_pull_url", options.pull_url),
                                  std::pair("controller_reply_url", options.reply_url)}) {
    const std::size_t colon = url.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == url.size() ||
        url.find('/') != std::string::npos)
      return wrong(std::string(name) + " is '" + url + "', enable_controller needs HOST:PORT");
  }
  for (const std::int32_t id : options.worker_ids)
    if (id >= num_workers)
      return wrong("lmcache_worker_ids has " + std::to_string(id) + ", there are " +
                   std::to_string(num_workers) + " ranks");
  if (options.moves_chunks && !options.worker_ids.empty() &&
      std::ssize(options.worker_ids) < num_workers)
    return wrong("lmcache_worker_ids leaves out ranks, with enable_p2p all of them register");
  const std::ptrdiff_t num_ports =
      options.worker_ids.empty() ? num_workers : std::ssize(options.worker_ids);
  if (std::ssize(options.worker_ports) < num_ports * num_groups)
    return wrong("lmcache_worker_ports has " + std::to_string(options.worker_ports.size()) +
                 " ports, there are " + std::to_string(num_ports * num_groups) +
                 " ranks that need one" +
                 (num_groups > 1 ? ", in " + std::to_string(num_groups) + " groups" : ""));
  const auto first = options.worker_ports.begin() + group * num_ports;
  options.worker_ports = {first, first + num_ports};
  if (num_groups > 1) options.instance_id += "_dp" + std::to_string(group);
  return options;
}

ControllerLink::ControllerLink(ControllerOptions options, std::int32_t num_workers,
                               ChunkBoard& board, std::optional<ChunkSource> source) {
  std::vector<ControlledWorker> workers;
  const std::size_t count = options.worker_ids.empty() ? static_cast<std::size_t>(num_workers)
                                                       : options.worker_ids.size();
  for (std::size_t i = 0; i < count; ++i)
    workers.push_back(
        {.instance = options.instance_id,
         .worker =
             options.worker_ids.empty() ? static_cast<std::int32_t>(i) : options.worker_ids[i],
         .ip = {},
         .port = options.worker_ports[i],
         .store_url = options.store_url.empty() ? std::nullopt : std::optional(options.store_url)});
  thread_ =
      std::make_unique<Thread>(std::move(options), std::move(workers), board, std::move(source));
}

ControllerLink::~ControllerLink() = default;

}  // namespace troupe::lmcache
