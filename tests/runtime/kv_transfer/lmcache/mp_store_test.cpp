// The client of LMCache's server of several processes, against one that does what the test says.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <map>
#include <thread>
#include <zmq.hpp>

#include "messages/msgpack.hpp"
#include "messages/msgpack_reader.hpp"
#include "runtime/kv_transfer/lmcache/mp_messages.hpp"
#include "runtime/kv_transfer/lmcache/remote_store.hpp"

namespace troupe::lmcache {
namespace {

constexpr std::size_t kValueBytes = 100;
constexpr std::size_t kNumSlots = 4;

/// Holds up to kNumSlots values in shared memory, as `lmcache server` does.
class FakeMpServer {
 public:
  enum class Fault : std::uint8_t { kNone, kSilent, kGarbage, kSlotOutside, kNoSharedMemory };

  FakeMpServer() : name_("/lmcache-mp-test-" + std::to_string(getpid())) {
    const int file = ::shm_open(name_.c_str(), O_CREAT | O_RDWR, 0600);
    BOOST_REQUIRE(file >= 0);
    BOOST_REQUIRE(::ftruncate(file, kValueBytes * kNumSlots) == 0);
    ::close(file);
    router_.set(zmq::sockopt::linger, 0);
    router_.bind("tcp://127.0.0.1:*");
    endpoint_ = router_.get(zmq::sockopt::last_endpoint);
    thread_ = std::thread([this] { run(); });
  }
  ~FakeMpServer() {
    ends_ = true;
    thread_.join();
    ::shm_unlink(name_.c_str());
  }
  FakeMpServer(const FakeMpServer&) = delete;
  FakeMpServer& operator=(const FakeMpServer&) = delete;

  [[nodiscard]] RemoteOptions options(int timeout_ms = 120'000) {
    return {.url = "mp://" + endpoint_.substr(endpoint_.find("//") + 2),
            .timeout = std::chrono::milliseconds(timeout_ms),
            .value_bytes = kValueBytes};
  }
  void fail(MpOperation operation, Fault fault) {
    fault_ = Fault::kNone;
    failing_ = static_cast<int>(operation);
    fault_ = fault;
  }
  /// All operations had the arguments that the real server takes.
  [[nodiscard]] bool is_well_asked() const { return is_well_asked_; }
  /// Locks of lookups that nobody has freed.
  [[nodiscard]] int num_locks() const { return num_locks_; }

 private:
  void run() {
    while (!ends_) {
      zmq::pollitem_t item{router_.handle(), 0, ZMQ_POLLIN, 0};
      if (zmq::poll(&item, 1, std::chrono::milliseconds(10)) == 0) continue;
      std::vector<std::string> frames;
      zmq::message_t part;
      do {
        static_cast<void>(router_.recv(part));
        frames.push_back(part.to_string());
      } while (part.more());
      answer(frames);
    }
  }

  void answer(const std::vector<std::string>& frames) {
    msgspec::Reader operation(frames.at(2));
    const auto number = static_cast<int>(operation.integer());
    const Fault fault = number == failing_ ? fault_.load() : Fault::kNone;
    if (fault == Fault::kSilent) return;
    const std::string result = fault == Fault::kGarbage
                                   ? "\xc1?"
                                   : result_of(static_cast<MpOperation>(number), frames, fault);
    router_.send(zmq::buffer(frames[0]), zmq::send_flags::sndmore);
    router_.send(zmq::buffer(frames[1]), zmq::send_flags::sndmore);
    router_.send(zmq::buffer(frames[2]),
                 result.empty() ? zmq::send_flags::none : zmq::send_flags::sndmore);
    if (!result.empty()) router_.send(zmq::buffer(result), zmq::send_flags::none);
  }

  std::string result_of(MpOperation operation, const std::vector<std::string>& frames,
                        Fault fault) {
    using msgspec::encode;
    std::string out;
    msgspec::Writer writer(out);
    const auto key = [&] { return tokens_of(frames.at(3)); };
    switch (operation) {
      case MpOperation::kGetChunkSize:
        return encode(16);
      case MpOperation::kRegisterContext:
        writer.put_map(2);
        writer.put("shm_name"), writer.put(fault == Fault::kNoSharedMemory ? "" : name_);
        writer.put("pool_size"), writer.put(kValueBytes * kNumSlots);
        return out;
      case MpOperation::kLookup:
        if (frames.size() != 5) is_well_asked_ = false;
        found_ = stored_.contains(key()) ? 1 : 0;
        num_locks_ += found_;
        return {};
      case MpOperation::kWaitPrefetchStatus:
        return encode(found_);
      case MpOperation::kFreeLookupLocks:
        if (frames.size() != 5) is_well_asked_ = false;
        --num_locks_;
        return {};
      case MpOperation::kPrepareStore: {
        const bool is_new = !stored_.contains(key()) && stored_.size() < kNumSlots;
        if (is_new) stored_.emplace(key(), stored_.size() * kValueBytes);
        return slots(is_new ? std::optional(stored_.at(key())) : std::nullopt, fault);
      }
      case MpOperation::kPrepareRetrieve:
        return slots(stored_.at(key()), fault);
      case MpOperation::kCommitRetrieve:
        --num_locks_;
        return encode(true);
      case MpOperation::kCommitStore:
        return encode(true);
      default:
        return {};
    }
  }

  static std::string slots(std::optional<std::size_t> offset, Fault fault) {
    std::string out;
    msgspec::Writer writer(out);
    writer.put_map(1), writer.put("context"), writer.put_map(2), writer.put("slots");
    out += offset ? '\x91' : '\x90';
    if (offset) {
      writer.put_map(2);
      writer.put("offset"), writer.put(*offset + (fault == Fault::kSlotOutside ? 1000 : 0));
      writer.put("length"), writer.put(kValueBytes);
    }
    writer.put("chunk_indices"), writer.put(std::vector<int>(offset ? 1 : 0));
    return out;
  }

  static std::string tokens_of(const std::string& key) {
    msgspec::Reader reader(key);
    for (std::size_t left = reader.map(); left > 0; --left) {
      if (reader.text() == "token_ids") return std::string(reader.raw());
      reader.skip();
    }
    return {};
  }

  const std::string name_;
  zmq::context_t context_{1};
  zmq::socket_t router_{context_, zmq::socket_type::router};
  std::string endpoint_;
  std::map<std::string, std::size_t> stored_;
  int found_ = 0;
  std::atomic<int> num_locks_ = 0;
  std::atomic<bool> is_well_asked_ = true;
  std::atomic<int> failing_ = -1;
  std::atomic<Fault> fault_ = Fault::kNone;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

std::vector<std::byte> value_of(int number, std::size_t num_bytes = kValueBytes) {
  return std::vector<std::byte>(num_bytes, static_cast<std::byte>(number));
}

BOOST_AUTO_TEST_CASE(values_come_back_from_shared_memory) {
  FakeMpServer server;
  const auto writer = make_remote_store(server.options()).value();
  const auto reader = make_remote_store(server.options()).value();
  const std::vector<std::string> keys = {"a", "b", "c"};
  BOOST_TEST(reader->count_leading(keys).value() == 0u);
  BOOST_TEST(writer->put("a", {}, value_of(1)).ok());
  BOOST_TEST(writer->put("b", {}, value_of(2, 60)).ok());
  BOOST_TEST(writer->put("a", {}, value_of(3)).ok());  // it is there
  BOOST_TEST(reader->count_leading(keys).value() == 2u);
  BOOST_TEST((reader->get("a", kValueBytes).value() == value_of(1)));
  BOOST_TEST((reader->get("b", 60).value() == value_of(2, 60)));
  BOOST_TEST(!reader->get("c", kValueBytes).value().has_value());
  BOOST_TEST(!writer->put("d", {}, value_of(4, kValueBytes + 1)).ok());
  BOOST_TEST(server.num_locks() == 0);
  BOOST_TEST(server.is_well_asked());
}

BOOST_AUTO_TEST_CASE(a_server_that_is_wrong_is_an_error_in_time) {
  using Fault = FakeMpServer::Fault;
  FakeMpServer server;
  BOOST_TEST(make_remote_store(server.options()).value()->put("a", {}, value_of(1)).ok());
  const auto code = [&](MpOperation operation, Fault fault, int timeout_ms) {
    server.fail(operation, fault);
    const auto store = make_remote_store(server.options(timeout_ms)).value();
    const auto found = store->get("a", kValueBytes);
    BOOST_TEST(!store->get("a", kValueBytes).ok());  // at once: it has just failed
    return found.ok() ? ErrorCode::kInternal : found.error().code;
  };
  BOOST_TEST((code(MpOperation::kRegisterContext, Fault::kNoSharedMemory, 5000) ==
              ErrorCode::kUnsupported));
  BOOST_TEST((code(MpOperation::kGetChunkSize, Fault::kSilent, 30) == ErrorCode::kTimeout));
  BOOST_TEST((code(MpOperation::kWaitPrefetchStatus, Fault::kSilent, 30) == ErrorCode::kTimeout));
  BOOST_TEST(
      (code(MpOperation::kWaitPrefetchStatus, Fault::kGarbage, 5000) == ErrorCode::kCorrupt));
  BOOST_TEST((code(MpOperation::kPrepareRetrieve, Fault::kGarbage, 5000) == ErrorCode::kCorrupt));
  BOOST_TEST(
      (code(MpOperation::kPrepareRetrieve, Fault::kSlotOutside, 5000) == ErrorCode::kCorrupt));
  BOOST_TEST(!make_remote_store({.url = "mp://127.0.0.1:1/path", .value_bytes = 1}).ok());
  BOOST_TEST(!make_remote_store({.url = "mp://127.0.0.1:1"}).ok());
}

}  // namespace
}  // namespace troupe::lmcache
