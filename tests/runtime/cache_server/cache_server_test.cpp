// The cache server: what it keeps and drops, what survives, and what clients get.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "runtime/cache_server/cache_server.hpp"
#include "runtime/kv_transfer/lmcache/remote_store.hpp"
#include "tests/runtime/kv_transfer/temporary_folder.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using lmcache::TensorInfo;

std::vector<fs::path> files_of(const BlockFolder& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
    if (entry.path().extension() == ".lm") found.push_back(entry.path());
  return found;
}

constexpr TensorInfo kInfo{
    lmcache::MemoryFormat::kKv2Ltd, lmcache::TensorDtype::kBfloat16, {2, 2, 4, 2}};

std::string key_text(int number, const std::string& tenant = {}) {
  return "m@1@0@" + std::to_string(number) + "@bfloat16" +
         (tenant.empty() ? "" : "@tenant%" + tenant);
}

std::string value_text(int number, std::size_t size) {
  std::string text(size, '\0');
  std::minstd_rand random(static_cast<unsigned>(number) + 1);
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

bool put(CacheStore& store, const CacheKey& key, const std::string& text) {
  auto reservation = store.reserve(kInfo, static_cast<std::int64_t>(text.size()));
  if (!reservation.granted()) return false;
  std::copy(text.begin(), text.end(), reservation.bytes().begin());
  store.put(key, std::move(reservation));
  return true;
}

std::optional<std::string> get(CacheStore& store, const CacheKey& key) {
  CacheStore::Found found = store.get(key);
  if (found.on_disk) {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    store.load(key, [&](CacheValuePtr value) {
      const std::lock_guard lock(mutex);
      found.value = std::move(value);
      done = true;
      changed.notify_all();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
  }
  if (found.value == nullptr) return std::nullopt;
  BOOST_TEST((found.value->info() == kInfo));
  return std::string(found.value->bytes().data(), found.value->size());
}

struct StoreWithFolder {
  explicit StoreWithFolder(const BlockFolder& folder, CacheStoreConfig config = {})
      : store(std::move(config), CacheFolder::open(folder.path().string()).value(), registry) {}
  Registry registry;
  CacheStore store;
};

BOOST_AUTO_TEST_CASE(memory_is_bounded_and_what_was_used_last_stays) {
  Registry registry;
  CacheStore store({.total = {8 * 1512, 0}}, nullptr, registry);
  for (int i = 0; i < 8; ++i) BOOST_TEST(put(store, {"", key_text(i)}, value_text(i, 1000)));
  BOOST_TEST((get(store, {"", key_text(0)}) == value_text(0, 1000)));
  BOOST_TEST(store.has({"", key_text(1)}));
  for (int i = 8; i < 14; ++i) BOOST_TEST(put(store, {"", key_text(i)}, value_text(i, 1000)));
  BOOST_TEST(store.usage().memory_bytes <= 8 * 1512);
  for (const int kept : {0, 1, 8, 13}) BOOST_TEST(store.has({"", key_text(kept)}), kept);
  for (const int dropped : {2, 3, 7}) BOOST_TEST(!store.has({"", key_text(dropped)}), dropped);
  // What is being received counts, and is given back.
  {
    auto first = store.reserve(kInfo, 9000);
    BOOST_TEST(first.granted());
    BOOST_TEST(!store.reserve(kInfo, 9000).granted());
  }
  BOOST_TEST(store.reserve(kInfo, 9000).granted());
  BOOST_TEST(!store.reserve(kInfo, 20000).granted());
  // A new value replaces the old one.
  BOOST_TEST(put(store, {"", "k"}, "old"));
  BOOST_TEST(put(store, {"", "k"}, "new one"));
  BOOST_TEST((get(store, {"", "k"}) == "new one"));
}

BOOST_AUTO_TEST_CASE(a_tenant_over_its_quota_evicts_its_own) {
  const BlockFolder folder;
  StoreWithFolder with({folder}, {.total = {1 << 20, 1 << 20},
                                  .tenant = {3 * 1512, 4000},
                                  .tenants = {{"big", {8 * 1512, 0}}}});
  CacheStore& store = with.store;
  BOOST_TEST(put(store, {"", key_text(99, "other")}, value_text(99, 1000)));
  for (int i = 0; i < 10; ++i) {
    BOOST_TEST(put(store, {"", key_text(i, "small")}, value_text(i, 1000)));
    BOOST_TEST(put(store, {"", key_text(i, "big")}, value_text(i, 1000)));
    BOOST_TEST(store.usage("small").memory_bytes <= 3 * 1512);
    BOOST_TEST(store.usage("small").disk_bytes <= 4000);
    BOOST_TEST(store.usage("big").memory_bytes <= 8 * 1512);
  }
  BOOST_TEST(store.has({"", key_text(99, "other")}));
  BOOST_TEST(store.usage("big").num_values == 10u);  // on disk it has no limit
  BOOST_TEST(store.usage("nobody").num_values == 0u);
  // Larger than the quota: it is not kept.
  BOOST_TEST(put(store, {"", key_text(50, "small")}, value_text(50, 6000)));
  BOOST_TEST(!store.has({"", key_text(50, "small")}));
  // Owners of tokens do not see each other's.
  BOOST_TEST(put(store, {"a", "k"}, "of a"));
  BOOST_TEST(!get(store, {"b", "k"}).has_value());
  BOOST_TEST((get(store, {"a", "k"}) == "of a"));
}

BOOST_AUTO_TEST_CASE(what_is_on_disk_survives_and_is_bounded) {
  const BlockFolder folder;
  const CacheStoreConfig config{.total = {3 * 1512, 6000}};
  {
    StoreWithFolder with(folder, config);
    BOOST_TEST(!CacheFolder::open(folder.path().string()).ok());  // it has one owner
    for (int i = 0; i < 10; ++i)
      BOOST_TEST(put(with.store, {"t", key_text(i)}, value_text(i, 1000)));
    BOOST_TEST(with.store.usage().disk_bytes <= 6000);
  }
  BOOST_TEST(files_of(folder).size() == 5u);
  std::ofstream(files_of(folder)[0].string() + ".new") << "unfinished";
  {
    StoreWithFolder with(folder, config);
    BOOST_TEST(with.store.usage().num_values == 5u);
    for (int i = 5; i < 10; ++i)
      BOOST_TEST((get(with.store, {"t", key_text(i)}) == value_text(i, 1000)), i);
    for (int i = 0; i < 5; ++i) BOOST_TEST(!with.store.has({"t", key_text(i)}), i);
    BOOST_TEST(with.store.usage().memory_bytes <= 3 * 1512);
  }
  // With less room the next start drops what was used first.
  StoreWithFolder with(folder, {.total = {3 * 1512, 2500}});
  BOOST_TEST(with.store.usage().num_values == 2u);
}

BOOST_AUTO_TEST_CASE(files_that_were_cut_or_changed_are_misses) {
  const BlockFolder folder;
  {
    StoreWithFolder with(folder);
    for (int i = 0; i < 9; ++i) BOOST_TEST(put(with.store, {"", key_text(i)}, value_text(i, 500)));
  }
  const auto files = files_of(folder);
  BOOST_REQUIRE(files.size() == 9u);
  std::size_t num_changed = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (i % 3 == 0) fs::resize_file(files[i], fs::file_size(files[i]) - 1 - i * 10);
    if (i % 3 == 1) {
      std::fstream file(files[i], std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(i * 60));
      file.put('\x5a');
    }
    if (i % 3 != 2) ++num_changed;
  }
  StoreWithFolder with(folder);
  std::size_t num_found = 0;
  for (int i = 0; i < 9; ++i) {
    const auto value = get(with.store, {"", key_text(i)});
    if (!value) continue;
    ++num_found;
    BOOST_TEST((*value == value_text(i, 500)));
  }
  BOOST_TEST(num_found == 9 - num_changed);
  BOOST_TEST(with.store.usage().num_values == num_found);
}

BOOST_AUTO_TEST_CASE(random_operations_keep_the_limits_and_never_give_a_wrong_value) {
  const BlockFolder folder;
  constexpr std::int64_t kMemory = 40'000;
  constexpr std::int64_t kDisk = 90'000;
  std::mt19937 random(7);
  const std::array<std::string, 3> tenants = {"", "a", "b"};
  std::unordered_map<std::string, std::string> last;
  for (int round = 0; round < 4; ++round) {
    StoreWithFolder with(folder, {.total = {kMemory, kDisk}, .tenants = {{"a", {9000, 20'000}}}});
    for (int i = 0; i < 5000; ++i) {
      const CacheKey key{"", key_text(static_cast<int>(random() % 60), tenants[random() % 3])};
      if (random() % 3 == 0) {
        std::string value = value_text(static_cast<int>(random() % 1000), random() % 3000);
        if (put(with.store, key, value)) last[key.key] = std::move(value);
      } else if (const auto value = get(with.store, key)) {
        BOOST_REQUIRE((*value == last[key.key]));
      }
      const CacheStore::Usage usage = with.store.usage();
      BOOST_REQUIRE((usage.memory_bytes <= kMemory && usage.disk_bytes <= kDisk));
      const CacheStore::Usage tenant = with.store.usage("a");
      BOOST_REQUIRE((tenant.memory_bytes <= 9000 && tenant.disk_bytes <= 20'000));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_process_that_is_killed_while_it_writes_leaves_whole_values) {
  const BlockFolder folder;
  std::mt19937 random(3);
  for (int round = 0; round < 5; ++round) {
    std::array<int, 2> pipe_ends;
    BOOST_REQUIRE(pipe(pipe_ends.data()) == 0);
    const pid_t child = fork();
    if (child == 0) {
      StoreWithFolder with(folder, {.total = {1 << 20, 4 << 20}});
      for (int i = 0;; ++i) {
        put(with.store, {"", key_text(i % 200)}, value_text(i % 200, 30'000));
        static_cast<void>(write(pipe_ends[1], "x", 1));
      }
    }
    char done = 0;
    for (auto left = 20 + random() % 200; left > 0; --left)
      BOOST_REQUIRE(read(pipe_ends[0], &done, 1) == 1);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    StoreWithFolder with(folder, {.total = {1 << 20, 4 << 20}});
    const std::size_t num_values = with.store.usage().num_values;
    std::size_t num_found = 0;
    for (int i = 0; i < 200; ++i) {
      const auto value = get(with.store, {"", key_text(i)});
      if (!value) continue;
      ++num_found;
      BOOST_TEST((*value == value_text(i, 30'000)));
    }
    BOOST_TEST(num_found == num_values);
  }
}

// ---- over sockets -------------------------------------------------------------------------------

std::unique_ptr<CacheServer> start_server(CacheServerConfig config = {}) {
  config.port = 0;
  config.http_port = 0;
  return CacheServer::start(std::move(config)).value();
}

std::unique_ptr<lmcache::RemoteStore> connect(const CacheServer& server,
                                              lmcache::RemoteOptions options = {},
                                              const std::string& scheme = "lm") {
  options.url = scheme + "://127.0.0.1:" + std::to_string(server.port());
  return lmcache::make_remote_store(options).value();
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void check_client(lmcache::RemoteStore& client) {
  const std::string value = value_text(1, 3'000'000);
  const std::vector<std::string> keys = {"a", "b", "c"};
  BOOST_TEST(client.count_leading(keys).value() == 0u);
  BOOST_TEST((client.get("a", 5).value() == std::nullopt));
  BOOST_TEST(client.put("a", kInfo, bytes_of(value)).ok());
  BOOST_TEST(client.put("b", kInfo, {}).ok());
  BOOST_TEST(client.count_leading(keys).value() == 2u);
  const auto got = client.get("a", value.size());
  BOOST_REQUIRE(got.ok());
  BOOST_TEST((std::ranges::equal(**got, bytes_of(value))));
  BOOST_TEST(client.get("b", 0).value()->empty());
}

int tcp_connect(std::uint16_t port) {
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  BOOST_REQUIRE(::connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  return connection;
}

std::string http_get(std::uint16_t port, const std::string& target) {
  const int connection = tcp_connect(port);
  const std::string request = "GET " + target + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  static_cast<void>(write(connection, request.data(), request.size()));
  std::string answer;
  std::array<char, 4096> part;
  for (ssize_t count = 0; (count = read(connection, part.data(), part.size())) > 0;)
    answer.append(part.data(), static_cast<std::size_t>(count));
  close(connection);
  return answer;
}

BOOST_AUTO_TEST_CASE(a_client_gets_what_it_put_and_what_was_on_disk) {
  const BlockFolder folder;
  CacheServerConfig config{.directory = folder.path().string()};
  {
    const auto server = start_server(config);
    check_client(*connect(*server));
    const std::string metrics = http_get(server->http_port(), "/metrics");
    BOOST_TEST(metrics.find("troupe_cache_requests_total{command=\"get\",result=\"hit\"} 2") !=
               std::string::npos);
    BOOST_TEST(http_get(server->http_port(), "/health").starts_with("HTTP/1.1 200"));
    BOOST_TEST(http_get(server->http_port(), "/other").starts_with("HTTP/1.1 404"));
    BOOST_TEST(!CacheServer::start({.port = 0, .directory = folder.path().string()}).ok());
    const auto taken = CacheServer::start({.port = server->port()});
    BOOST_REQUIRE(!taken.ok());
    BOOST_TEST(taken.error().message.find(std::to_string(server->port())) != std::string::npos);
  }
  const auto server = start_server(config);
  const std::string value = value_text(1, 3'000'000);
  const auto got = connect(*server)->get("a", value.size());
  BOOST_REQUIRE(got.ok());
  BOOST_TEST((std::ranges::equal(**got, bytes_of(value))));
}

BOOST_AUTO_TEST_CASE(requests_that_come_at_once_are_answered_in_their_order) {
  const BlockFolder folder;
  CacheServerConfig config{.directory = folder.path().string()};
  config.store.total.max_memory_bytes = 10'000;  // most values are read from disk
  const auto server = start_server(config);
  std::string requests, replies;
  const auto ask = [&](lmcache::LmCommand command, int number, std::string_view value = {}) {
    const auto head = lmcache::pack_lm_request({.command = command,
                                                .length = static_cast<std::int32_t>(value.size()),
                                                .info = kInfo,
                                                .key = key_text(number)});
    requests.append(head.data(), head.size()).append(value);
  };
  const auto expect = [&](bool found, std::string_view value = {}) {
    lmcache::LmReply reply{.code = found ? lmcache::LmCode::kSuccess : lmcache::LmCode::kFail};
    if (!value.empty()) reply.length = static_cast<std::int32_t>(value.size());
    if (!value.empty()) reply.info = kInfo;
    const auto head = lmcache::pack_lm_reply(reply);
    replies.append(head.data(), head.size()).append(value);
  };
  for (int i = 0; i < 40; ++i) {
    ask(lmcache::LmCommand::kPut, i, value_text(i, 1 + 97 * static_cast<std::size_t>(i)));
    ask(lmcache::LmCommand::kExist, i);
    expect(true);
  }
  for (int i = 0; i < 300; ++i) {
    const int number = i * 7 % 60;
    const bool found = number < 40;
    ask(i % 3 == 0 ? lmcache::LmCommand::kGet : lmcache::LmCommand::kExist, number);
    expect(found, found && i % 3 == 0
                      ? value_text(number, 1 + 97 * static_cast<std::size_t>(number))
                      : "");
  }
  requests.append(lmcache::kLmRequestBytes, 'x');  // what came before it is answered
  const int connection = tcp_connect(server->port());
  std::thread sender([&] {
    for (std::size_t done = 0; done < requests.size();) {
      const ssize_t count =
          send(connection, requests.data() + done, requests.size() - done, MSG_NOSIGNAL);
      if (count <= 0) break;
      done += static_cast<std::size_t>(count);
    }
  });
  std::string received;
  std::array<char, 4096> part;
  for (ssize_t count = 0; (count = read(connection, part.data(), part.size())) > 0;)
    received.append(part.data(), static_cast<std::size_t>(count));
  sender.join();
  close(connection);
  BOOST_TEST(received.size() == replies.size());
  BOOST_TEST((received == replies));
}

BOOST_AUTO_TEST_CASE(many_clients_at_once_get_their_own_values) {
  CacheServerConfig config;
  config.store.total.max_memory_bytes = 64 << 20;
  const auto server = start_server(config);
  std::vector<int> idle;
  for (int i = 0; i < 500; ++i) idle.push_back(tcp_connect(server->port()));
  std::vector<std::thread> threads;
  std::atomic<int> num_wrong = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const auto client = connect(*server);
      for (int i = 0; i < 40; ++i) {
        const std::string value = value_text(t * 100 + i, 50'000);
        const std::string key = key_text(t * 100 + i);
        if (!client->put(key, kInfo, bytes_of(value)).ok()) ++num_wrong;
        const auto got = client->get(key, value.size());
        if (!got.ok() || !*got || !std::ranges::equal(**got, bytes_of(value))) ++num_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(num_wrong == 0);
  for (const int connection : idle) close(connection);
}

BOOST_AUTO_TEST_CASE(without_its_token_a_client_gets_nothing) {
  const BlockFolder folder;
  const std::string file = folder.path().string() + "/tokens";
  std::ofstream(file) << "# tokens\nsecret-a name=a max-memory-bytes=100000\nsecret-b\n";
  std::ofstream(folder.path().string() + "/a") << "secret-a\n";
  std::ofstream(folder.path().string() + "/b") << "secret-b\n";
  std::ofstream(folder.path().string() + "/c") << "secret-c\n";
  CacheServerConfig config;
  config.tokens = ClientTokens::read(file).value();
  const auto server = start_server(config);
  const auto a = connect(*server, {.token_file = folder.path().string() + "/a"});
  const auto b = connect(*server, {.token_file = folder.path().string() + "/b"});
  const auto none = connect(*server);
  const std::vector<std::string> keys = {"k"};
  BOOST_TEST(a->put("k", kInfo, bytes_of("of a")).ok());
  BOOST_TEST(a->count_leading(keys).value() == 1u);
  BOOST_TEST(b->count_leading(keys).value() == 0u);
  BOOST_TEST(none->put("k", kInfo, bytes_of("of nobody")).ok());
  BOOST_TEST(none->count_leading(keys).value() == 0u);
  BOOST_TEST(a->get("k", 4).value().has_value());
  const auto refused =
      connect(*server, {.token_file = folder.path().string() + "/c"})->count_leading(keys);
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST((refused.error().code == ErrorCode::kUnauthorized));
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"a name=x\nb name=x\n", "line 2: the name x is there twice"},
           {"a max-memory-bytes=lots\n", "max-memory-bytes is 'lots'"},
           {"a color=red\n", "'color=red' is unknown"},
           {"#\n", "has no token"}}) {
    std::ofstream(file) << text;
    const auto tokens = ClientTokens::read(file);
    BOOST_REQUIRE(!tokens.ok());
    BOOST_TEST(tokens.error().message.find(part) != std::string::npos, tokens.error().message);
  }
}

BOOST_AUTO_TEST_CASE(over_tls_the_same) {
  const BlockFolder folder;
  const std::string path = folder.path().string();
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj "
      "/CN=cache -addext subjectAltName=IP:127.0.0.1 -keyout " +
      path + "/key.pem -out " + path + "/cert.pem 2>/dev/null";
  BOOST_REQUIRE(std::system(command.c_str()) == 0);
  CacheServerConfig config;
  config.tls =
      TlsSource::open({path + "/cert.pem", path + "/key.pem", ""}, [](const TlsFiles& files) {
        return TlsContext::load_for_http(files, {});
      }).value();
  const auto server = start_server(config);
  check_client(*connect(*server, {.ca_file = path + "/cert.pem"}, "lms"));
  // Nobody vouches for it.
  const std::vector<std::string> keys = {"a"};
  BOOST_TEST(!connect(*server, {}, "lms")->count_leading(keys).ok());
  BOOST_TEST(
      !connect(*server, {.timeout = std::chrono::milliseconds(300)})->count_leading(keys).ok());
}

BOOST_AUTO_TEST_CASE(who_sends_no_request_or_does_not_finish_one_is_disconnected) {
  CacheServerConfig config{.timeout_s = 0.2};
  const auto server = start_server(config);
  std::array<char, 8> answer;
  for (const std::string& bytes : {std::string(200, 'x'), std::string("\1\0\0\0", 4)}) {
    const int connection = tcp_connect(server->port());
    BOOST_TEST(write(connection, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    BOOST_TEST(read(connection, answer.data(), answer.size()) <= 0);
    close(connection);
  }
  BOOST_TEST(server->store().usage().num_values == 0);
}

}  // namespace
}  // namespace troupe
