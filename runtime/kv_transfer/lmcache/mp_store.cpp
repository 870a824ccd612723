#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>
#include <zmq.hpp>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/kv_transfer/lmcache/mp_messages.hpp"
#include "runtime/kv_transfer/lmcache/remote_store.hpp"

namespace troupe::lmcache {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Of a reply: a list of a few slots, or a number.
constexpr std::int64_t kMaxReplyBytes = std::int64_t{1} << 20;
/// The server forgets an instance that it has not heard of for an hour, and does not answer it.
constexpr std::chrono::minutes kMaxIdle{1};

/// Shared memory of another process, which may be gone by now: what is read is checked afterwards.
class SharedPool {
 public:
  SharedPool() = default;
  ~SharedPool() {
    if (data_ != nullptr) ::munmap(data_, num_bytes_);
  }
  SharedPool(const SharedPool&) = delete;
  SharedPool& operator=(const SharedPool&) = delete;

  /// Errors: kIo, kCorrupt.
  Result<void> open(const MpPool& pool) {
    std::string name = pool.shm_name;
    if (!name.starts_with('/')) name.insert(0, 1, '/');
    if (name.find('/', 1) != std::string::npos || pool.num_bytes <= 0)
      return Error{ErrorCode::kCorrupt, "the LMCache server's shared memory is " + name, {}};
    const FileDescriptor file(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
    struct stat status {};
    if (!file.valid() || ::fstat(file.get(), &status) != 0)
      return Error{ErrorCode::kIo, "cannot open the LMCache server's shared memory " + name, {}};
    if (status.st_size < pool.num_bytes)
      return Error{ErrorCode::kCorrupt,
                   "the LMCache server's shared memory has " + std::to_string(status.st_size) +
                       " bytes, expected " + std::to_string(pool.num_bytes),
                   {}};
    num_bytes_ = static_cast<std::size_t>(pool.num_bytes);
    void* const data =
        ::mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (data == MAP_FAILED)
      return Error{ErrorCode::kIo, "cannot map the LMCache server's shared memory", {}};
    data_ = static_cast<std::byte*>(data);
    return {};
  }

  /// Empty: it is not within the pool.
  [[nodiscard]] std::span<std::byte> at(const MpSlots::Slot& slot) const {
    const auto limit = static_cast<std::int64_t>(num_bytes_);
    if (slot.offset < 0 || slot.num_bytes < 0 || slot.num_bytes > limit ||
        slot.offset > limit - slot.num_bytes)
      return {};
    return {data_ + slot.offset, static_cast<std::size_t>(slot.num_bytes)};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

/// Values in the memory of `lmcache server`. It addresses its objects by the tokens of a chunk: a
/// key stands as one chunk of numbers that are made of it. Values have one size, that of a chunk;
/// shorter ones are followed by what lay there before.
class MpStore final : public RemoteStore {
 public:
  MpStore(const RemoteUrl& url, const RemoteOptions& options)
      : url_("tcp://" + url.host + ":" + std::to_string(url.port == 0 ? 5555 : url.port)),
        shown_(url.shown()),
        timeout_(options.timeout),
        value_bytes_(options.value_bytes) {
    std::array<std::uint8_t, 8> random;
    fill_random(random);
    std::memcpy(&instance_, random.data(), sizeof(instance_));
    instance_ &= INT64_MAX;
  }
  ~MpStore() override {
    if (connection_ != nullptr) send(mp_unregister_context(++number_, instance_));
  }

  Result<std::size_t> count_leading(std::span<const std::string> keys) override {
    return guarded([&]() -> Result<std::size_t> {
      std::size_t count = 0;
      for (; count < keys.size(); ++count) {
        const MpKey key = key_of(keys[count], /*is_lookup=*/true);
        ASSIGN_OR_RETURN(const bool has, look_up(key));
        if (has) {
          ASSIGN_OR_RETURN(const MpFrames free, mp_free_lookup_locks(++number_, key, 1));
          RETURN_IF_ERROR(call(free));
        }
        send(mp_end_session(++number_, key.request_id));
        if (!has) break;
      }
      return count;
    });
  }

  Result<std::optional<std::vector<std::byte>>> get(const std::string& text,
                                                    std::size_t num_bytes) override {
    using Found = std::optional<std::vector<std::byte>>;
    return guarded([&]() -> Result<Found> {
      MpKey key = key_of(text, /*is_lookup=*/true);
      ASSIGN_OR_RETURN(const bool has, look_up(key));
      Found found;
      if (has) {
        key.worker = 0;
        ASSIGN_OR_RETURN(const MpSlots slots, transfer(MpOperation::kPrepareRetrieve, key));
        if (slots.success && !slots.slots.empty()) {
          const std::span<std::byte> slot = connection_->pool.at(slots.slots.front());
          if (slot.size() < num_bytes) return wrong_slot(slot.size(), num_bytes);
          found.emplace(slot.begin(), slot.begin() + static_cast<std::ptrdiff_t>(num_bytes));
          ASSIGN_OR_RETURN(const MpFrames commit,
                           mp_transfer(++number_, MpOperation::kCommitRetrieve, key, instance_));
          RETURN_IF_ERROR(call(commit));
        }
      }
      send(mp_end_session(++number_, key.request_id));
      return found;
    });
  }

  Result<void> put(const std::string& text, const TensorInfo&,
                   std::span<const std::byte> bytes) override {
    return guarded([&]() -> Result<void> {
      const MpKey key = key_of(text, /*is_lookup=*/false);
      ASSIGN_OR_RETURN(const MpSlots slots, transfer(MpOperation::kPrepareStore, key));
      // None: it is there, or there is no room for it.
      if (!slots.slots.empty()) {
        const std::span<std::byte> slot = connection_->pool.at(slots.slots.front());
        if (slot.size() < bytes.size()) return wrong_slot(slot.size(), bytes.size());
        std::ranges::copy(bytes, slot.begin());
        ASSIGN_OR_RETURN(const MpFrames commit, mp_commit_store(++number_, key, instance_, ""));
        RETURN_IF_ERROR(call(commit));
      }
      send(mp_end_session(++number_, key.request_id));
      return {};
    });
  }

 private:
  struct Connection {
    zmq::context_t context{1};
    zmq::socket_t socket{context, zmq::socket_type::dealer};
    SharedPool pool;
    std::int64_t chunk_size = 0;
    steady_clock::time_point last_used;
  };

  Error failed(ErrorCode code, const std::string& what) const {
    return {code, shown_ + ": " + what, {}};
  }
  Error wrong_slot(std::size_t num_bytes, std::size_t expected) const {
    return failed(ErrorCode::kCorrupt, "a slot has " + std::to_string(num_bytes) +
                                           " bytes, expected at least " + std::to_string(expected));
  }

  /// Runs the calls of one operation on a connection, which is closed when one of them fails.
  template <class Operation>
  auto guarded(Operation&& operation) -> decltype(operation()) {
    deadline_ = steady_clock::now() + timeout_;
    const auto connected = connect();
    if (!connected.ok()) {
      connection_.reset();
      return connected.error();
    }
    auto result = operation();
    if (result.ok()) {
      connection_->last_used = steady_clock::now();
      return result;
    }
    connection_.reset();
    retry_at_ = steady_clock::now() + kReconnectInterval;
    return result;
  }

  Result<void> connect() {
    const auto now = steady_clock::now();
    if (connection_ != nullptr && now - connection_->last_used < kMaxIdle) return {};
    if (connection_ == nullptr) {
      if (now < retry_at_) return failed(ErrorCode::kUnavailable, "it has failed a moment ago");
      retry_at_ = now + kReconnectInterval;
      try {
        connection_ = std::make_unique<Connection>();
        zmq::socket_t& socket = connection_->socket;
        socket.set(zmq::sockopt::linger, 0);
        socket.set(zmq::sockopt::immediate, true);
        socket.set(zmq::sockopt::maxmsgsize, kMaxReplyBytes);
        socket.connect(url_);
      } catch (const zmq::error_t& error) {
        return failed(ErrorCode::kUnavailable, error.what());
      }
    }
    ASSIGN_OR_RETURN(const MpReply chunk, call(mp_get_chunk_size(++number_)));
    ASSIGN_OR_RETURN(connection_->chunk_size, mp_integer(chunk));
    if (connection_->chunk_size < kDigestTokens || connection_->chunk_size > kMaxChunkTokens)
      return failed(ErrorCode::kUnsupported,
                    "its chunk size is " + std::to_string(connection_->chunk_size) + ", expected " +
                        std::to_string(kDigestTokens) + " to " + std::to_string(kMaxChunkTokens));
    const auto num_bytes = static_cast<std::int64_t>(value_bytes_);
    ASSIGN_OR_RETURN(const MpReply registered,
                     call(mp_register_context(++number_, {.instance = instance_,
                                                          .model = model(),
                                                          .block_size = 1,
                                                          .num_layers = 1,
                                                          .hidden_dim = num_bytes,
                                                          .dtype = "uint8",
                                                          .use_mla = true,
                                                          .num_physical_slots = 1})));
    ASSIGN_OR_RETURN(const MpPool pool, mp_pool(registered));
    if (pool.shm_name.empty())
      return failed(ErrorCode::kUnsupported, "it was started without shared memory (--shm-name)");
    if (connection_->pool.at({.num_bytes = 1}).empty()) {
      RETURN_IF_ERROR(connection_->pool.open(pool));
    }
    connection_->last_used = steady_clock::now();
    return {};
  }

  /// Whether the key's value is there; it stays there until it is retrieved or freed.
  Result<bool> look_up(const MpKey& key) {
    ASSIGN_OR_RETURN(const MpFrames lookup, mp_lookup(++number_, key, 1));
    RETURN_IF_ERROR(call(lookup));
    while (true) {
      const double left_s =
          std::chrono::duration<double>(deadline_ - steady_clock::now()).count() / 2;
      ASSIGN_OR_RETURN(const MpReply reply, call(mp_wait_prefetch_status(++number_, key.request_id,
                                                                         std::max(left_s, 0.0))));
      if (reply.result.empty() || reply.result == kNil) continue;  // call() has the deadline
      ASSIGN_OR_RETURN(const std::int64_t num_chunks, mp_integer(reply));
      return num_chunks > 0;
    }
  }

  Result<MpSlots> transfer(MpOperation operation, const MpKey& key) {
    ASSIGN_OR_RETURN(const MpFrames frames, mp_transfer(++number_, operation, key, instance_));
    ASSIGN_OR_RETURN(const MpReply reply, call(frames));
    return mp_slots(reply);
  }

  /// Its reply is not read.
  bool send(const MpFrames& frames) {
    try {
      for (std::size_t i = 0; i < frames.size(); ++i) {
        const bool more = i + 1 < frames.size();
        const auto flags =
            zmq::send_flags::dontwait | (more ? zmq::send_flags::sndmore : zmq::send_flags::none);
        if (!connection_->socket.send(zmq::buffer(frames[i]), flags)) return false;
      }
      return true;
    } catch (const zmq::error_t&) {
      return false;
    }
  }

  /// Errors: kTimeout at the deadline, kCorrupt, kUnavailable.
  Result<MpReply> call(const MpFrames& frames) {
    RETURN_IF_ERROR(wait_for(ZMQ_POLLOUT));
    const std::uint64_t number = number_;
    if (!send(frames)) return failed(ErrorCode::kUnavailable, "it takes nothing");
    while (true) {
      RETURN_IF_ERROR(wait_for(ZMQ_POLLIN));
      ASSIGN_OR_RETURN(const MpFrames received, receive());
      ASSIGN_OR_RETURN(MpReply reply, parse_mp_reply(received));
      if (reply.number == number) return reply;  // others: nobody waits for them any more
    }
  }

  Result<MpFrames> receive() {
    MpFrames frames;
    try {
      zmq::message_t part;
      do {
        if (!connection_->socket.recv(part, zmq::recv_flags::dontwait)) break;
        if (frames.size() < kMaxFrames) frames.push_back(part.to_string());
      } while (part.more());
    } catch (const zmq::error_t& error) {
      return failed(ErrorCode::kUnavailable, error.what());
    }
    return frames;
  }

  Result<void> wait_for(short events) {
    zmq::pollitem_t item{connection_->socket.handle(), 0, events, 0};
    while (true) {
      const auto left = std::chrono::ceil<milliseconds>(deadline_ - steady_clock::now());
      if (left <= milliseconds::zero())
        return failed(ErrorCode::kTimeout,
                      "no answer within " + std::to_string(timeout_.count()) + " ms");
      try {
        if (zmq::poll(&item, 1, left) > 0) return {};
      } catch (const zmq::error_t& error) {
        if (error.num() != EINTR) return failed(ErrorCode::kUnavailable, error.what());
      }
    }
  }

  [[nodiscard]] std::string model() const { return "troupe-" + std::to_string(value_bytes_); }

  /// A chunk that no other key has.
  [[nodiscard]] MpKey key_of(const std::string& text, bool is_lookup) {
    MpKey key{
        .model = model(),
        .worker = is_lookup ? std::nullopt : std::optional<std::int32_t>(0),
        .token_ids = std::vector<std::int64_t>(static_cast<std::size_t>(connection_->chunk_size)),
        .begin = 0,
        .end = connection_->chunk_size,
        .request_id = "troupe-" + std::to_string(instance_) + "-" + std::to_string(++num_sessions_),
        .cache_salt = {},
        .request_configs = {}};
    const auto digest = sha256({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
    for (std::size_t i = 0; i < kDigestTokens; ++i)
      key.token_ids[i] = (digest[4 * i] & 0x7f) << 24 | digest[4 * i + 1] << 16 |
                         digest[4 * i + 2] << 8 | digest[4 * i + 3];
    return key;
  }

  static constexpr std::int64_t kDigestTokens = 8;
  static constexpr std::int64_t kMaxChunkTokens = 1 << 16;
  static constexpr std::size_t kMaxFrames = 4;
  static constexpr std::string_view kNil = "\xc0";

  const std::string url_;
  const std::string shown_;
  const milliseconds timeout_;
  const std::size_t value_bytes_;
  std::int64_t instance_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t num_sessions_ = 0;
  std::unique_ptr<Connection> connection_;  // null: there is none
  steady_clock::time_point deadline_;       // of the operation
  steady_clock::time_point retry_at_;
};

}  // namespace

Result<std::unique_ptr<RemoteStore>> make_mp_store(const RemoteUrl& url,
                                                   const RemoteOptions& options) {
  if (url.host.empty() || !url.path.empty())
    return invalid_argument("remote_url is " + url.shown() + ", expected mp://host:port",
                            "remote_url");
  if (options.value_bytes == 0)
    return invalid_argument("remote_url is " + url.shown() + ": the size of values is not known",
                            "remote_url");
  return std::unique_ptr<RemoteStore>(std::make_unique<MpStore>(url, options));
}

}  // namespace troupe::lmcache
