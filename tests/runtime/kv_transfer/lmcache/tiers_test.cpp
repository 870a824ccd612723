// What goes first, what configures it, and the remote stores.

#include <hiredis/hiredis.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/kv_transfer/lmcache/lmcache_config.hpp"
#include "runtime/kv_transfer/lmcache/remote_metadata.hpp"
#include "runtime/kv_transfer/lmcache/remote_threads.hpp"
#include "runtime/kv_transfer/lmcache/tier_index.hpp"
#include "tests/runtime/kv_transfer/temporary_folder.hpp"
#include "tests/support/free_port.hpp"

namespace troupe::lmcache {
namespace {

namespace fs = std::filesystem;

ChunkId id_of(std::uint64_t number) { return {number, {}}; }

/// Adds 1 to 3, uses 1 three times, 2 twice, 3 once, and adds 4: which one was evicted.
std::vector<std::uint64_t> evicted(CachePolicy policy) {
  TierIndex index(30, policy);
  std::vector<ChunkId> removed;
  for (std::uint64_t i = 1; i <= 3; ++i) BOOST_TEST(index.add(id_of(i), 10, removed));
  for (const std::uint64_t used : {2, 1, 1, 1, 2, 3}) BOOST_TEST(index.touch(id_of(used)));
  BOOST_TEST(removed.empty());
  BOOST_TEST(index.add(id_of(4), 15, removed));
  BOOST_TEST(index.num_bytes() == 25);
  BOOST_TEST(!index.add(id_of(5), 31, removed));
  std::vector<std::uint64_t> numbers;
  for (const ChunkId& id : removed) {
    BOOST_TEST(!index.has(id));
    numbers.push_back(id.hash);
  }
  return numbers;
}

BOOST_AUTO_TEST_CASE(each_policy_removes_what_it_says) {
  using Numbers = std::vector<std::uint64_t>;
  BOOST_TEST((evicted(CachePolicy::kLru) == Numbers{1, 2}));
  BOOST_TEST((evicted(CachePolicy::kLfu) == Numbers{3, 2}));
  BOOST_TEST((evicted(CachePolicy::kFifo) == Numbers{1, 2}));
  BOOST_TEST((evicted(CachePolicy::kMru) == Numbers{3, 2}));
  BOOST_TEST((parse_cache_policy("LFU").value() == CachePolicy::kLfu));
  BOOST_TEST(!parse_cache_policy("lru").ok());
}

BOOST_AUTO_TEST_CASE(tags_tell_chunks_of_the_same_tokens_apart) {
  TierIndex index(0, CachePolicy::kFifo);
  std::vector<ChunkId> removed;
  BOOST_TEST(index.add({1, "@tenant%a"}, 1 << 30, removed));
  BOOST_TEST(!index.has({1, ""}));
  BOOST_TEST(index.touch({1, "@tenant%a"}));
  BOOST_TEST(!index.touch({1, "@tenant%b"}));
  BOOST_TEST(index.remove({1, "@tenant%a"}));
  BOOST_TEST(index.size() == 0u);
}

// ---- configuration ------------------------------------------------------------------------------

using Environment = std::vector<std::string>;

BOOST_AUTO_TEST_CASE(a_file_then_variables_then_the_extra_configuration_count) {
  const BlockFolder folder;
  const std::string file = (folder.path() / "lmcache.yaml").string();
  std::ofstream(file) << "# LMCache\nchunk_size: 128\nlocal_cpu: False\nmax_local_cpu_size: 2\n"
                         "local_disk: \"file:///data/a/,/data/b\"\nmax_local_disk_size: 10.5\n"
                         "remote_url: \"lm://localhost:65432\"\nremote_serde: naive\n"
                         "enable_blending: false\nextra_config: {remote_ttl_s: 60}\n";
  const auto config = read_lmcache_config(
      Environment{"PATH=/bin", "LMCACHE_CONFIG_FILE=" + file, "LMCACHE_CHUNK_SIZE=64",
                  "LMCACHE_CACHE_POLICY=LFU", "LMCACHE_LOG_LEVEL=INFO",
                  R"(LMCACHE_EXTRA_CONFIG={"troupe_token_file": "/token"})"},
      R"({"lmcache.chunk_size": 32, "lmcache_rpc_port": "0", "skip_last_n_tokens": 2,)"
      R"( "lmcache.save_decode_cache": true, "lmcache.priority_limit": -1})");
  BOOST_REQUIRE_MESSAGE(config.ok(), (config.ok() ? "" : config.error().message));
  BOOST_TEST(config->chunk_size == 32);
  BOOST_TEST(!config->local_cpu);
  BOOST_TEST((config->local_disk == std::vector<std::string>{"/data/a", "/data/b"}));
  BOOST_TEST(config->max_local_disk_size == 10.5);
  BOOST_TEST(config->remote.url == "lm://localhost:65432");
  BOOST_TEST(config->remote.ttl_s == 60);
  BOOST_TEST(config->remote.token_file == "/token");
  BOOST_TEST((config->cache_policy == CachePolicy::kLfu));
  BOOST_TEST((config->save_decode_cache && config->priority_limit == -1));
  BOOST_TEST(config->skip_last_n_tokens == 2);
  const auto plain = read_lmcache_config(Environment{}, "{}");
  BOOST_REQUIRE(plain.ok());
  BOOST_TEST(plain->chunk_size == 256);
  BOOST_TEST(plain->none_hash.magnitude == 11230124004819357437u);
  const auto seeded = read_lmcache_config(
      Environment{"PYTHONHASHSEED=123", "LMCACHE_PRE_CACHING_HASH_ALGORITHM=builtin"}, "{}");
  BOOST_REQUIRE(seeded.ok());
  BOOST_TEST((seeded->none_hash == PythonInt::of(-6197052367682486848)));
}

BOOST_AUTO_TEST_CASE(what_is_not_understood_or_not_offered_is_named) {
  const BlockFolder folder;
  const std::string file = (folder.path() / "lmcache.yaml").string();
  const auto refuses = [&](const Environment& environment, const std::string& extra,
                           const std::string& part) {
    const auto config = read_lmcache_config(environment, extra);
    BOOST_REQUIRE_MESSAGE(!config.ok(), part);
    BOOST_TEST(config.error().message.find(part) != std::string::npos, config.error().message);
  };
  refuses({"LMCACHE_CHUNK_SIZ=1"}, "{}", "LMCACHE_CHUNK_SIZ is unknown");
  refuses({"LMCACHE_CHUNK_SIZE=0"}, "{}", "LMCACHE_CHUNK_SIZE is '0'");
  refuses({"LMCACHE_LOCAL_CPU=maybe"}, "{}", "LMCACHE_LOCAL_CPU is 'maybe'");
  refuses({"LMCACHE_ENABLE_PD=true"}, "{}", "LMCACHE_ENABLE_PD is 'true': this is not offered");
  refuses({"LMCACHE_REMOTE_SERDE=cachegen"}, "{}", "LMCACHE_REMOTE_SERDE is 'cachegen'");
  refuses({}, R"({"lmcache.cache_policy": "ARC"})", "it must be LRU, LFU, FIFO or MRU");
  refuses({}, R"({"chunk_size": 1})", "chunk_size is unknown");
  refuses({"LMCACHE_PRE_CACHING_HASH_ALGORITHM=builtin"}, "{}", "needs PYTHONHASHSEED");
  refuses({"LMCACHE_LOCAL_CPU=false"}, "{}", "nowhere to store");
  refuses({"LMCACHE_LOCAL_DISK=/tmp/x"}, "{}", "local_disk needs max_local_disk_size");
  refuses({"LMCACHE_REMOTE_URL=resp://h:1", "LMCACHE_SAVE_UNFULL_CHUNK=1"}, "{}", "full chunks");
  refuses({"LMCACHE_ENABLE_P2P=1", "LMCACHE_REMOTE_URL=lm://h:1"}, "{}", "needs enable_controller");
  refuses({"LMCACHE_ENABLE_P2P=1", "LMCACHE_ENABLE_CONTROLLER=1", "LMCACHE_REMOTE_URL=redis://h:1"},
          "{}", "an lm:// or lms:// remote_url");
  const auto moving = read_lmcache_config(
      Environment{"LMCACHE_ENABLE_P2P=1", "LMCACHE_ENABLE_CONTROLLER=1",
                  "LMCACHE_REMOTE_URL=lms://h:1", "LMCACHE_ENABLE_ASYNC_LOADING=1"},
      "{}");
  BOOST_REQUIRE(moving.ok());
  BOOST_TEST(moving->controller.store_url == "lms://h:1");
  BOOST_TEST(moving->async_lookups);
  BOOST_TEST(read_lmcache_config(Environment{"LMCACHE_REMOTE_URL=lm://h:1"}, "{}")
                 ->controller.store_url.empty());
  refuses({"LMCACHE_CONFIG_FILE=/nowhere"}, "{}", "/nowhere");
  std::ofstream(file) << "chunk_size: [1\n";
  refuses({"LMCACHE_CONFIG_FILE=" + file}, "{}", file);
  std::ofstream(file) << "chunk_sizes: 256\n";
  refuses({"LMCACHE_CONFIG_FILE=" + file}, "{}", "chunk_sizes is unknown");
  std::ofstream(file) << "extra_config:\n  save_chunk_metas: true\n";
  refuses({"LMCACHE_CONFIG_FILE=" + file}, "{}", "save_chunk_metas is unknown");
  refuses({R"(LMCACHE_EXTRA_CONFIG={"foo": 1})"}, "{}", "LMCACHE_EXTRA_CONFIG.foo is unknown");
  refuses({"LMCACHE_MARU_PATH=/m"}, "{}", "LMCACHE_MARU_PATH is '/m': this is not offered");
  // Parameters of what is off have no effect.
  BOOST_TEST(read_lmcache_config(Environment{"LMCACHE_ENABLE_PD=False", "LMCACHE_PD_ROLE=sender",
                                             "LMCACHE_BLEND_MIN_TOKENS=256", "LMCACHE_MARU_PATH="},
                                 "{}")
                 .ok());
}

BOOST_AUTO_TEST_CASE(quotes_around_a_variable_are_not_part_of_it) {
  const auto config = read_lmcache_config(
      Environment{R"(LMCACHE_REMOTE_URL="lm://h:1")", "LMCACHE_CHUNK_SIZE='64'"}, "{}");
  BOOST_REQUIRE_MESSAGE(config.ok(), (config.ok() ? "" : config.error().message));
  BOOST_TEST(config->remote.url == "lm://h:1");
  BOOST_TEST(config->chunk_size == 64);
}

// ---- remote stores ------------------------------------------------------------------------------

constexpr TensorInfo kBytes = bytes_info(5);

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

void check_store(RemoteStore& store) {
  const std::vector<std::string> keys = {"m/x@1@0@1@half", "m/x@1@0@2@half", "m/x@1@0@3@half"};
  BOOST_TEST(store.count_leading(keys).value() == 0u);
  BOOST_TEST(!store.get(keys[0], 5).value().has_value());
  for (const std::size_t i : {0u, 1u})
    BOOST_TEST(store.put(keys[i], kBytes, bytes_of("hell" + std::to_string(i))).ok());
  BOOST_TEST(store.count_leading(keys).value() == 2u);
  BOOST_TEST((*store.get(keys[1], 5).value() == bytes_of("hell1")));
  const auto other = store.get(keys[1], 6);
  BOOST_REQUIRE(!other.ok());
  BOOST_TEST((other.error().code == ErrorCode::kTooLarge));
}

BOOST_AUTO_TEST_CASE(folders_hold_files_of_metadata_and_bytes) {
  const BlockFolder folder;
  const auto store =
      make_remote_store({.url = "fs://localhost:0" + folder.path().string()}).value();
  check_store(*store);
  const fs::path file = folder.path() / "m-SEP-x@1@0@1@half.data";
  BOOST_TEST(fs::file_size(file) == 28u + 5);
  std::ifstream stream(file, std::ios::binary);
  std::string head(28, '\0');
  stream.read(head.data(), 28);
  BOOST_TEST(parse_remote_metadata(head).value().length == 5);
  const std::string two = folder.path().string() + "/a," + folder.path().string() + "/b";
  const auto several = make_remote_store({.url = "fs://localhost:0" + two}).value();
  check_store(*several);
  BOOST_TEST(fs::exists(folder.path() / "b" / "m-SEP-x@1@0@1@half.data"));
  BOOST_TEST(fs::exists(folder.path() / "a" / "m-SEP-x@1@0@2@half.data"));
}

BOOST_AUTO_TEST_CASE(a_url_that_is_none_is_refused_without_its_password) {
  for (const std::string url : {"nothing", "s3://bucket", "redis://u:secret@h:x", "lm://", "fs://h",
                                "redis://u:secret@h:1/zero", "lm://h:1/path"}) {
    const auto store = make_remote_store({.url = url});
    BOOST_REQUIRE_MESSAGE(!store.ok(), url);
    if (url.find("/zero") != std::string::npos)
      BOOST_TEST(store.error().message.find("secret") == std::string::npos);
  }
  const RemoteUrl url = parse_remote_url("redis://me:secret@host:12/3").value();
  BOOST_TEST(url.user + url.password + url.host + url.path == "mesecrethost/3");
  BOOST_TEST(url.port == 12);
}

/// Debian's redis-server, on a socket and a port of its own.
class RedisServer {
 public:
  RedisServer() : socket_((folder_.path() / "redis").string()), port_(testing::free_port()) {
    if (::access(kProgram, X_OK) != 0) return;
    process_ = fork();
    if (process_ != 0) return;
    execl(kProgram, kProgram, "--port", std::to_string(port_).c_str(), "--bind", "127.0.0.1",
          "--unixsocket", socket_.c_str(), "--save", "", "--dir", folder_.path().c_str(),
          "--logfile", "/dev/null", nullptr);
    _exit(1);
  }
  ~RedisServer() {
    if (process_ <= 0) return;
    kill(process_, SIGTERM);
    waitpid(process_, nullptr, 0);
  }
  [[nodiscard]] bool exists() const { return process_ > 0; }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// Once it listens: its socket exists before that.
  [[nodiscard]] std::string url() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!accepts() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return "unix://" + socket_;
  }
  /// A command whose reply is a number; 0 otherwise.
  long long ask(const char* command, int database = 0) const {
    static_cast<void>(url());
    redisContext* const context = redisConnectUnix(socket_.c_str());
    BOOST_REQUIRE((context != nullptr && context->err == 0));
    freeReplyObject(redisCommand(context, "SELECT %d", database));
    auto* const reply = static_cast<redisReply*>(redisCommand(context, command));
    BOOST_REQUIRE(reply != nullptr);
    const long long number = reply->integer;
    freeReplyObject(reply);
    redisFree(context);
    return number;
  }

 private:
  [[nodiscard]] bool accepts() const {
    redisContext* const context = redisConnectUnix(socket_.c_str());
    const bool is_connected = context != nullptr && context->err == 0;
    if (context != nullptr) redisFree(context);
    return is_connected;
  }

  static constexpr const char* kProgram = "/usr/bin/redis-server";
  BlockFolder folder_;
  std::string socket_;
  std::uint16_t port_;
  pid_t process_ = 0;
};

BOOST_AUTO_TEST_CASE(a_redis_server_holds_metadata_and_bytes_under_two_keys) {
  RedisServer server;
  if (!server.exists()) {
    BOOST_TEST_MESSAGE("there is no redis-server");
    return;
  }
  const auto store = make_remote_store({.url = server.url(), .ttl_s = 100}).value();
  check_store(*store);
  BOOST_TEST(store->put("k", kBytes, bytes_of(std::string(3'000'000, 'x'))).ok());
  BOOST_TEST(store->get("k", 3'000'000).value()->size() == 3'000'000u);
  // The two keys go by themselves; without the bytes the other one is of no use.
  BOOST_TEST(server.ask("TTL kmetadata") > 90);
  BOOST_TEST(server.ask("TTL kkv_bytes") > 90);
  BOOST_TEST(server.ask("DEL kkv_bytes") == 1);
  BOOST_TEST(!store->get("k", 3'000'000).value().has_value());
  BOOST_TEST(server.ask("EXISTS kmetadata") == 0);
}

BOOST_AUTO_TEST_CASE(a_redis_server_holds_bytes_alone_under_the_key_itself) {
  RedisServer server;
  if (!server.exists()) {
    BOOST_TEST_MESSAGE("there is no redis-server");
    return;
  }
  const auto store =
      make_remote_store({.url = "resp://127.0.0.1:" + std::to_string(server.port()) + "/3"})
          .value();
  server.ask("PING");
  check_store(*store);
  BOOST_TEST(server.ask("DBSIZE", 3) == 2);
  BOOST_TEST(server.ask("STRLEN m/x@1@0@1@half", 3) == 5);
}

BOOST_AUTO_TEST_CASE(a_store_that_is_not_there_is_not_tried_all_the_time) {
  const auto store =
      make_remote_store({.url = "lm://127.0.0.1:1", .timeout = std::chrono::milliseconds(500)})
          .value();
  const std::vector<std::string> keys = {"k"};
  BOOST_TEST(!store->count_leading(keys).ok());
  std::string said;
  while (said.find("a moment ago") == std::string::npos) {  // unless more than that has passed
    const auto again = store->count_leading(keys);
    BOOST_REQUIRE(!again.ok());
    said = again.error().message;
  }
}

// ---- threads ------------------------------------------------------------------------------------

/// Answers when the test allows it.
class SlowStore final : public RemoteStore {
 public:
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    std::vector<std::string> put_keys;
  };
  explicit SlowStore(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  Result<std::size_t> count_leading(std::span<const std::string> keys) override {
    wait();
    return keys.size() - 1;
  }
  Result<std::optional<std::vector<std::byte>>> get(const std::string&, std::size_t) override {
    return std::optional<std::vector<std::byte>>();
  }
  Result<void> put(const std::string& key, const TensorInfo&, std::span<const std::byte>) override {
    wait();
    const std::lock_guard lock(gate_->mutex);
    gate_->put_keys.push_back(key);
    return {};
  }

 private:
  void wait() {
    std::unique_lock lock(gate_->mutex);
    gate_->changed.wait(lock, [this] { return gate_->open; });
  }
  std::shared_ptr<Gate> gate_;
};

void open(SlowStore::Gate& gate) {
  const std::lock_guard lock(gate.mutex);
  gate.open = true;
  gate.changed.notify_all();
}

BOOST_AUTO_TEST_CASE(a_lookup_is_asked_once_and_never_waited_for) {
  const auto gate = std::make_shared<SlowStore::Gate>();
  RemoteLookup lookup(std::make_unique<SlowStore>(gate), std::chrono::hours(1));
  BOOST_TEST(!lookup.count(1, {"a", "b", "c"}).has_value());
  BOOST_TEST(!lookup.count(1, {"a", "b", "c"}).has_value());
  BOOST_TEST(!lookup.count(2, {"d"}).has_value());
  lookup.forget(2);
  open(*gate);
  std::optional<std::size_t> count;
  while (!(count = lookup.count(1, {}))) std::this_thread::yield();
  BOOST_TEST(*count == 2u);
}

BOOST_AUTO_TEST_CASE(a_lookup_that_takes_too_long_found_nothing) {
  const auto gate = std::make_shared<SlowStore::Gate>();
  RemoteLookup lookup(std::make_unique<SlowStore>(gate), std::chrono::milliseconds(0));
  BOOST_TEST(lookup.count(1, {"a", "b"}).value() == 0u);
  open(*gate);
}

BOOST_AUTO_TEST_CASE(values_that_wait_for_a_remote_store_are_put_before_the_end) {
  const auto gate = std::make_shared<SlowStore::Gate>();
  {
    RemoteWriter writer(std::make_unique<SlowStore>(gate));
    const auto large =
        std::make_shared<const std::vector<std::byte>>(RemoteWriter::kMaxWaitingBytes / 2);
    for (const std::string key : {"a", "b", "c", "d"}) writer.put(key, large);
    open(*gate);
  }
  // The first may have been on its way when the others came.
  BOOST_TEST(gate->put_keys.size() >= 2u);
  BOOST_TEST(gate->put_keys.size() <= 3u);
  BOOST_TEST(gate->put_keys[0] == "a");
}

}  // namespace
}  // namespace troupe::lmcache
