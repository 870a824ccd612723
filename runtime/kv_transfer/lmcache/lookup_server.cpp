#include "runtime/kv_transfer/lmcache/lookup_server.hpp"

#include <algorithm>
#include <filesystem>
#include <thread>
#include <zmq.hpp>

#include "messages/msgpack_reader.hpp"
#include "runtime/base/event_fd.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"

namespace troupe::lmcache {
namespace {

constexpr std::size_t kNumQuestionFrames = 4;
constexpr std::int64_t kMaxFrameBytes = std::int64_t{16} << 20;
constexpr std::size_t kMaxPathBytes = 107;  ///< of a socket of the kernel

/// Hashes are 64 bits, with or without a sign.
PythonInt read_key(msgspec::Reader& reader) {
  const std::string_view raw = reader.raw();
  if (raw.size() == 9 && raw.front() == '\xcf') {
    std::uint64_t key = 0;
    for (const char c : raw.substr(1)) key = key << 8 | static_cast<std::uint8_t>(c);
    return {key, false};
  }
  msgspec::Reader integer(raw);
  return PythonInt::of(integer.integer());
}

}  // namespace

Result<std::string> answer_lookup(std::span<const std::string> frames, ChunkBoard& board) {
  const Error corrupt{ErrorCode::kCorrupt, "a question of a lookup client cannot be read", {}};
  if (frames.size() != kNumQuestionFrames) return corrupt;
  std::vector<PythonInt> keys;
  msgspec::Reader hashes(frames[0]);
  for (std::size_t left = hashes.array(); hashes.ok() && left > 0; --left)
    keys.push_back(read_key(hashes));
  std::vector<std::int64_t> sizes;
  msgspec::Reader offsets(frames[1]);
  for (std::size_t left = offsets.array(); offsets.ok() && left > 0; --left)
    sizes.push_back(offsets.integer());
  if (!hashes.at_end() || !offsets.at_end() || sizes.size() != keys.size()) return corrupt;
  std::uint64_t num_tokens = 0;
  const std::size_t count = board.count_leading(keys);
  for (std::size_t i = 0; i < count; ++i) num_tokens += static_cast<std::uint64_t>(sizes[i]);
  std::string answer;
  for (int shift = 24; shift >= 0; shift -= 8) answer += static_cast<char>(num_tokens >> shift);
  return answer;
}

Result<std::string> lookup_socket_path(const std::string& folder, const std::string& engine_id,
                                       std::int64_t port, std::int32_t rank) {
  std::string path = folder + "/engine_" + engine_id + "_service_lookup_lmcache_rpc_port_" +
                     std::to_string(port + rank);
  if (path.size() > kMaxPathBytes) {
    const auto digest = sha256({reinterpret_cast<const std::uint8_t*>(path.data()), path.size()});
    path = folder + "/lmcache_rpc_" + to_hex(digest).substr(0, 16);
  }
  if (path.size() > kMaxPathBytes)
    return invalid_argument("VLLM_RPC_BASE_PATH is " + folder + ", too long for a socket's path",
                            "kv-transfer-config");
  return path;
}

class LookupServer::Thread {
 public:
  explicit Thread(ChunkBoard& board) : board_(board) {}
  ~Thread() {
    wake_.signal();
    if (thread_.joinable()) thread_.join();
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  Result<void> open(std::span<const std::string> paths) {
    for (const std::string& path : paths) {
      try {
        std::error_code ignored;
        std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
        zmq::socket_t& socket = sockets_.emplace_back(context_, zmq::socket_type::router);
        socket.set(zmq::sockopt::linger, 0);
        socket.set(zmq::sockopt::maxmsgsize, kMaxFrameBytes);
        socket.bind("ipc://" + path);
      } catch (const zmq::error_t& error) {
        return Error{ErrorCode::kIo, "cannot bind " + path + ": " + error.what(),
                     "kv-transfer-config"};
      }
    }
    thread_ = std::thread([this] {
      while (turn()) {
      }
    });
    return {};
  }

 private:
  /// False: it ends.
  bool turn() {
    try {
      std::vector<zmq::pollitem_t> items = {{nullptr, wake_.get(), ZMQ_POLLIN, 0}};
      for (zmq::socket_t& socket : sockets_) items.push_back({socket.handle(), 0, ZMQ_POLLIN, 0});
      zmq::poll(items, std::chrono::milliseconds(-1));
      if (items.front().revents != 0) return false;
      for (zmq::socket_t& socket : sockets_) answer(socket);
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) log_warning("lookups", kv("reason", std::string(error.what())));
    }
    return true;
  }

  void answer(zmq::socket_t& socket) {
    std::vector<std::string> frames;  // the client, an empty one, the question's
    zmq::message_t part;
    do {
      if (!socket.recv(part, zmq::recv_flags::dontwait)) return;
      if (frames.size() <= kNumQuestionFrames + 2) frames.push_back(part.to_string());
    } while (part.more());
    const auto question =
        std::span<const std::string>(frames).subspan(std::min<std::size_t>(frames.size(), 2));
    const auto reply = answer_lookup(question, board_);
    if (!reply.ok()) return log_warning("lookups", kv("reason", reply.error().message));
    // A ROUTER never waits: it drops what is for a client that is gone.
    static_cast<void>(socket.send(zmq::buffer(frames[0]), zmq::send_flags::sndmore));
    static_cast<void>(socket.send(zmq::message_t(), zmq::send_flags::sndmore));
    static_cast<void>(socket.send(zmq::buffer(*reply), zmq::send_flags::none));
  }

  ChunkBoard& board_;
  const EventFd wake_;
  zmq::context_t context_{1};
  std::vector<zmq::socket_t> sockets_;
  std::thread thread_;
};

Result<std::unique_ptr<LookupServer>> LookupServer::open(std::span<const std::string> paths,
                                                         ChunkBoard& board) {
  std::unique_ptr<LookupServer> server(new LookupServer());
  server->thread_ = std::make_unique<Thread>(board);
  RETURN_IF_ERROR(server->thread_->open(paths));
  return server;
}

LookupServer::~LookupServer() = default;

}  // namespace troupe::lmcache
