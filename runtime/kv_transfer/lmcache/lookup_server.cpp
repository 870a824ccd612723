#include "runtime/kv_transfer/lmcache/lookup_server.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <thread>
#include <zmq.hpp>

#include "messages/msgpack.hpp"
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

/// The chunks of a prompt, from its first one on.
struct Question {
  std::vector<PythonInt> keys;
  std::vector<std::int64_t> num_tokens;  ///< of each

  void read_keys(msgspec::Reader& reader) {
    for (std::size_t left = reader.array(); reader.ok() && left > 0; --left)
      keys.push_back(read_key(reader));
  }
  void read_num_tokens(msgspec::Reader& reader) {
    for (std::size_t left = reader.array(); reader.ok() && left > 0; --left)
      num_tokens.push_back(reader.integer());
  }
  /// The tokens of the leading chunks that are there.
  [[nodiscard]] std::uint64_t count(ChunkBoard& board) const {
    std::uint64_t sum = 0;
    const std::size_t num_chunks = board.count_leading(keys);
    for (std::size_t i = 0; i < num_chunks; ++i) sum += static_cast<std::uint64_t>(num_tokens[i]);
    return sum;
  }
};

Error corrupt_question() {
  return {ErrorCode::kCorrupt, "a question of a lookup client cannot be read", {}};
}

}  // namespace

Result<std::string> answer_lookup(std::span<const std::string> frames, ChunkBoard& board) {
  if (frames.size() != kNumQuestionFrames) return corrupt_question();
  Question question;
  msgspec::Reader hashes(frames[0]);
  msgspec::Reader offsets(frames[1]);
  question.read_keys(hashes);
  question.read_num_tokens(offsets);
  if (!hashes.at_end() || !offsets.at_end() || question.num_tokens.size() != question.keys.size())
    return corrupt_question();
  const std::uint64_t num_tokens = question.count(board);
  std::string answer;
  for (int shift = 24; shift >= 0; shift -= 8) answer += static_cast<char>(num_tokens >> shift);
  return answer;
}

Result<std::string> answer_async_lookup(std::string_view bytes, ChunkBoard& board) {
  Question question;
  std::string type;
  std::string id;
  msgspec::Reader reader(bytes);
  reader.fields([&](const std::string& name) {
    if (name == "type")
      type = reader.text();
    else if (name == "lookup_id")
      id = reader.text();
    else if (name == "hashes")
      question.read_keys(reader);
    else if (name == "offsets")
      question.read_num_tokens(reader);
    else
      reader.skip();
  });
  if (!reader.at_end() || question.num_tokens.size() != question.keys.size())
    return corrupt_question();
  if (type == "LookupCleanupMsg") return std::string();
  if (type != "LookupRequestMsg") return corrupt_question();
  std::string answer;
  msgspec::Writer writer(answer);
  writer.put_map(3);
  writer.put("type"), writer.put("LookupResponseMsg");
  writer.put("lookup_id"), writer.put(id);
  writer.put("num_hit_tokens"), writer.put(question.count(board));
  return answer;
}

Result<std::string> lookup_socket_path(LookupSocket socket, const std::string& folder,
                                       const std::string& engine_id, std::int64_t port,
                                       std::int32_t rank) {
  constexpr std::array kServices = {"lookup", "lookup_worker", "lookup_scheduler"};
  std::string path = folder + "/engine_" + engine_id + "_service_" +
                     kServices[static_cast<std::size_t>(socket)] + "_lmcache_rpc_port_" +
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

  Result<void> open(std::span<const std::string> paths, const std::string& answers) {
    if (!answers.empty()) {
      answers_.emplace(context_, zmq::socket_type::push);
      answers_->set(zmq::sockopt::linger, 0);
      answers_->connect("ipc://" + answers);
    }
    for (const std::string& path : paths) {
      try {
        std::error_code ignored;
        std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
        zmq::socket_t& socket = sockets_.emplace_back(
            context_, answers_ ? zmq::socket_type::pull : zmq::socket_type::router);
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
      for (zmq::socket_t& socket : sockets_) answers_ ? answer_async(socket) : answer(socket);
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

  void answer_async(zmq::socket_t& socket) {
    zmq::message_t part;
    while (socket.recv(part, zmq::recv_flags::dontwait)) {
      const auto reply = answer_async_lookup(part.to_string_view(), board_);
      if (!reply.ok()) {
        log_warning("lookups", kv("reason", reply.error().message));
        continue;
      }
      if (!reply->empty() && !answers_->send(zmq::buffer(*reply), zmq::send_flags::dontwait))
        log_warning("lookups", kv("reason", "the client does not take its answers"));
    }
  }

  ChunkBoard& board_;
  const EventFd wake_;
  zmq::context_t context_{1};
  std::vector<zmq::socket_t> sockets_;    // of the ranks
  std::optional<zmq::socket_t> answers_;  // none: a rank's socket answers
  std::thread thread_;
};

Result<std::unique_ptr<LookupServer>> LookupServer::open(std::span<const std::string> paths,
                                                         const std::string& answers,
                                                         ChunkBoard& board) {
  std::unique_ptr<LookupServer> server(new LookupServer());
  server->thread_ = std::make_unique<Thread>(board);
  RETURN_IF_ERROR(server->thread_->open(paths, answers));
  return server;
}

LookupServer::~LookupServer() = default;

}  // namespace troupe::lmcache
