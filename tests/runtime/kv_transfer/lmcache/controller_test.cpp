// What LMCache's controller and its lookup clients see of an engine, against ones that do what the
// test says. The bytes are those of LMCache 0.5.6's own messages.

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <map>
#include <zmq.hpp>

#include "messages/msgpack.hpp"
#include "messages/msgpack_reader.hpp"
#include "runtime/kv_transfer/lmcache/controller_link.hpp"
#include "runtime/kv_transfer/lmcache/controller_messages.hpp"
#include "runtime/kv_transfer/lmcache/lookup_server.hpp"

namespace troupe::lmcache {
namespace {

using Clock = ChunkBoard::Clock;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::map<std::string, std::string> golden_messages() {
  std::map<std::string, std::string> messages;
  std::ifstream file(TROUPE_GOLDEN_DIR "/lmcache_controller.txt");
  std::string name;
  for (std::string hex; file >> name >> hex;) messages[name] = from_hex(hex);
  return messages;
}

/// Chunks of two tokens, hashed as Python does.
ChunkBoard small_board() {
  return {ChunkHasher(ChunkHashAlgorithm::kBuiltin, {}, 2), /*signed_hashes=*/true};
}
ChunkId id_of(PythonInt key) { return {key.negative ? 0 - key.magnitude : key.magnitude, {}}; }
std::vector<PythonInt> keys_of(const std::vector<std::int64_t>& tokens) {
  std::vector<PythonInt> keys;
  for (const Chunk& chunk : ChunkHasher(ChunkHashAlgorithm::kBuiltin, {}, 2).chunks(tokens, false))
    keys.push_back(chunk.hash);
  return keys;
}

BOOST_AUTO_TEST_CASE(messages_to_the_controller_are_lmcaches_bytes) {
  const std::map<std::string, std::string> golden = golden_messages();
  const ControlledWorker worker{.instance = "troupe", .worker = 1, .ip = "10.0.0.7", .port = 8500};
  BOOST_TEST((controller_register(worker) == golden.at("register")));
  BOOST_TEST((controller_deregister(worker) == golden.at("deregister")));
  BOOST_TEST((controller_heartbeat(worker) == golden.at("heartbeat")));
  const PythonInt large{~std::uint64_t{2}, false};
  const PythonInt negative = PythonInt::of(-5);
  BOOST_TEST(
      (controller_operations(worker, Location::kCpu,
                             std::vector<ChunkBoard::Change>{{Location::kCpu, true, large},
                                                             {Location::kCpu, false, negative}},
                             7) == golden.at("ops")));
  std::vector<ChunkBoard::Change> many;
  for (std::int64_t i = 0; i < 20; ++i) many.push_back({Location::kDisk, true, PythonInt::of(i)});
  BOOST_TEST((controller_operations(worker, Location::kDisk, many, 0) == golden.at("ops20")));
  const FullSync sync{.location = Location::kCpu, .id = "s", .num_keys = 2, .num_batches = 1};
  BOOST_TEST((controller_sync_start(worker, sync) == golden.at("start")));
  BOOST_TEST(
      (controller_sync_batch(worker, sync, 0, std::vector{large, negative}) == golden.at("batch")));
  BOOST_TEST((controller_sync_end(worker, sync) == golden.at("end")));
  BOOST_TEST((controller_sync_status(worker, sync) == golden.at("status")));
}

BOOST_AUTO_TEST_CASE(replies_of_the_controller_are_read) {
  const std::map<std::string, std::string> golden = golden_messages();
  const auto reply = [&](const char* name) {
    return parse_controller_reply(golden.at(name)).value();
  };
  BOOST_TEST(reply("registered").type == "RegisterRetMsg");
  BOOST_TEST(reply("registered").heartbeat_url == "127.0.0.1:8082");
  BOOST_TEST(!reply("beat").wants_sync);
  BOOST_TEST(reply("beat_sync").wants_sync);
  BOOST_TEST(reply("accepted").accepted);
  BOOST_TEST(!reply("refused").accepted);
  BOOST_TEST(reply("refused").error == "busy");
  BOOST_TEST(reply("complete").is_complete);
  BOOST_TEST(!reply("missing").is_complete);
  BOOST_TEST(reply("error").error == "bad");
  for (const auto& [name, bytes] : golden) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      BOOST_TEST(!parse_controller_reply(bytes.substr(0, size)).ok());
      BOOST_TEST(!parse_controller_order(bytes.substr(0, size)).ok());
    }
  }
}

BOOST_AUTO_TEST_CASE(orders_of_the_controller_are_carried_out) {
  const std::map<std::string, std::string> golden = golden_messages();
  ChunkBoard board = small_board();
  const Clock::time_point now{};
  LastClear last_clear;
  const auto carry_out = [&](const ControllerOrder& order, Clock::time_point when) {
    return answer_controller_order(order, 0, board, last_clear, when, std::chrono::seconds(10));
  };
  const auto answer = [&](const char* name, Clock::time_point when) {
    return carry_out(parse_controller_order(golden.at(name)).value(), when);
  };
  BOOST_TEST((answer("health", now) == golden.at("healthy")));
  BOOST_TEST((answer("check", now) == golden.at("not")));
  for (const char* const other : {"move", "compress"})
    BOOST_TEST(answer(other, now).find("is not offered here") != std::string::npos);

  // Of the tokens 1, 2, 3, 70000 both chunks are on disk, and one of a tenant.
  const std::vector<PythonInt> keys = keys_of({1, 2, 3, 70000});
  for (const PythonInt key : keys) board.admit(Location::kDisk, id_of(key));
  board.admit(Location::kDisk, {7, "@salt%a"});
  board.admit(Location::kCpu, id_of(keys[1]));
  BOOST_TEST(board.count_leading(keys) == 2u);
  const auto with_tokens = [&](const char* name, char num_tokens) {
    const std::string& bytes = golden.at(name);
    return bytes.substr(0, bytes.size() - 3) + num_tokens;
  };
  BOOST_TEST((answer("pin", now) == with_tokens("pinned", 4)));
  // What is pinned stays until then.
  BOOST_TEST(board.clear(Location::kDisk, now) == 2);  // the tenant's
  BOOST_TEST((answer("clear", now) == with_tokens("cleared", 2)));
  // The same order for another rank has the same answer, a new one has not.
  BOOST_TEST((answer_controller_order({"ClearWorkerMsg", "Worker12e", "LocalCPUBackend", {}}, 12,
                                      board, last_clear, now,
                                      std::chrono::seconds(1)) == with_tokens("cleared", 2)));
  BOOST_TEST((carry_out({"ClearWorkerMsg", "Worker0f", "LocalCPUBackend", {}}, now) ==
              with_tokens("cleared", 0)));
  BOOST_TEST(board.count_leading(keys) == 2u);
  BOOST_TEST(board.clear(Location::kDisk, now + std::chrono::seconds(10)) == 4);
  BOOST_TEST(board.count_leading(keys) == 0u);
  using Kind = ChunkBoard::Order::Kind;
  std::vector<Kind> kinds;
  for (const ChunkBoard::Order& order : board.take_orders()) kinds.push_back(order.kind);
  // Of several of one kind after the other, the connector needs one.
  BOOST_TEST((kinds == std::vector{Kind::kPin, Kind::kClear, Kind::kClear, Kind::kClear}));
  BOOST_TEST(carry_out({"PinWorkerMsg", "e", "RemoteBackend", {1}}, now)
                 .find("RemoteBackend, it must be") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(pinned_chunks_stay_in_their_tier) {
  TierIndex index(30, CachePolicy::kLru);
  std::vector<ChunkId> removed;
  for (std::uint64_t i = 1; i <= 3; ++i) BOOST_TEST(index.add({i, {}}, 10, removed));
  BOOST_TEST(index.pin({1, {}}));
  BOOST_TEST(index.pin({1, {}}));
  BOOST_TEST(!index.pin({9, {}}));
  BOOST_TEST(index.touch({1, {}}));
  BOOST_TEST(!index.add({4, {}}, 21, removed));  // what is pinned leaves 20
  BOOST_TEST(removed.empty());
  BOOST_TEST(index.add({4, {}}, 20, removed));
  BOOST_TEST((removed == std::vector<ChunkId>{{2, {}}, {3, {}}}));
  index.unpin({1, {}});
  BOOST_TEST((index.clear_unpinned() == std::vector<ChunkId>{{4, {}}}));
  index.unpin({1, {}});
  BOOST_TEST((index.clear_unpinned() == std::vector<ChunkId>{{1, {}}}));
  BOOST_TEST(index.num_bytes() == 0);
}

// ---- over sockets -------------------------------------------------------------------------------

/// Answers as `lmcache_controller` does; driven by the test.
class FakeController {
 public:
  FakeController(std::int32_t pull_port, std::int32_t reply_port) {
    for (zmq::socket_t* socket : {&pull_, &router_, &orders_}) {
      socket->set(zmq::sockopt::linger, 0);
      socket->set(zmq::sockopt::rcvtimeo, 60'000);
    }
    pull_.bind("tcp://127.0.0.1:" + std::to_string(pull_port));
    router_.bind("tcp://127.0.0.1:" + std::to_string(reply_port));
  }
  /// The next request, answered with these bytes.
  std::string serve(const std::string& reply) {
    zmq::message_t identity;
    zmq::message_t part;
    BOOST_REQUIRE(router_.recv(identity));
    BOOST_REQUIRE(router_.recv(part));
    BOOST_REQUIRE(router_.recv(part));
    router_.send(identity, zmq::send_flags::sndmore);
    router_.send(zmq::message_t(), zmq::send_flags::sndmore);
    router_.send(zmq::buffer(reply), zmq::send_flags::none);
    return part.to_string();
  }
  std::string next_report() {
    zmq::message_t part;
    BOOST_REQUIRE(pull_.recv(part));
    return part.to_string();
  }
  std::string order(std::int32_t port, const std::string& bytes) {
    orders_.connect("tcp://127.0.0.1:" + std::to_string(port));
    orders_.send(zmq::buffer(bytes), zmq::send_flags::none);
    zmq::message_t part;
    BOOST_REQUIRE(orders_.recv(part));
    return part.to_string();
  }

 private:
  zmq::context_t context_{1};
  zmq::socket_t pull_{context_, zmq::socket_type::pull};
  zmq::socket_t router_{context_, zmq::socket_type::router};
  zmq::socket_t orders_{context_, zmq::socket_type::req};
};

std::vector<std::int32_t> free_ports(std::size_t count) {
  zmq::context_t context(1);
  std::vector<zmq::socket_t> sockets;
  std::vector<std::int32_t> ports;
  while (sockets.size() < count) {
    sockets.emplace_back(context, zmq::socket_type::rep).bind("tcp://127.0.0.1:*");
    const std::string endpoint = sockets.back().get(zmq::sockopt::last_endpoint);
    ports.push_back(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  }
  return ports;
}

std::string type_of(const std::string& message) {
  msgspec::Reader reader(message);
  reader.map();
  BOOST_REQUIRE(reader.text() == "type");
  return reader.text();
}

BOOST_AUTO_TEST_CASE(a_controller_that_is_killed_and_started_again_knows_all_chunks) {
  const std::map<std::string, std::string> golden = golden_messages();
  // It names no address for heartbeats.
  std::string registered = golden.at("registered");
  registered.resize(registered.find("extra_config") + std::string("extra_config").size());
  registered += '\x80';
  const std::vector<std::int32_t> ports = free_ports(3);
  ChunkBoard board = small_board();
  const PythonInt key = PythonInt::of(-5);
  board.admit(Location::kCpu, id_of(key));
  const ControlledWorker worker{
      .instance = "troupe", .worker = 0, .ip = "127.0.0.1", .port = ports[2]};
  const ControllerOptions options{
      .is_enabled = true,
      .instance_id = "troupe",
      .pull_url = "127.0.0.1:" + std::to_string(ports[0]),
      .reply_url = "127.0.0.1:" + std::to_string(ports[1]),
      .worker_ports = {ports[2]},
      .heartbeat_delay = std::chrono::seconds(0),
      .heartbeat_time = std::chrono::seconds(3600),
  };
  BOOST_REQUIRE(ControllerLink::check(options, 1).ok());
  const auto admits = [&](PythonInt which, Location location, std::uint64_t number) {
    return controller_operations(worker, location,
                                 std::vector<ChunkBoard::Change>{{location, true, which}}, number);
  };
  auto controller = std::make_unique<FakeController>(ports[0], ports[1]);
  {
    // Where another program has its port, a rank does not register; nobody waits for that.
    zmq::context_t context(1);
    zmq::socket_t other(context, zmq::socket_type::rep);
    other.bind("tcp://127.0.0.1:" + std::to_string(ports[2]));
    const ControllerLink refused(options, 1, board);
  }
  std::optional<ControllerLink> link(std::in_place, options, 1, board);
  BOOST_TEST((controller->serve(registered) == controller_register(worker)));
  BOOST_TEST((controller->next_report() == admits(key, Location::kCpu, 0)));
  board.admit(Location::kDisk, id_of(PythonInt::of(7)));
  BOOST_TEST((controller->next_report() == admits(PythonInt::of(7), Location::kDisk, 0)));
  BOOST_TEST((controller->order(ports[2], golden.at("health")) == golden.at("healthy")));

  // A heartbeat's answer asks for all keys: of the memory, then of the disk.
  BOOST_TEST((controller->serve(golden.at("beat_sync")) == controller_heartbeat(worker)));
  for (int location = 0; location < 2; ++location) {
    BOOST_TEST(type_of(controller->serve(golden.at("accepted"))) == "FullSyncStartMsg");
    BOOST_TEST(type_of(controller->next_report()) == "FullSyncBatchMsg");
    BOOST_TEST(type_of(controller->next_report()) == "FullSyncEndMsg");
    BOOST_TEST(type_of(controller->serve(golden.at("missing"))) == "FullSyncStatusMsg");
    BOOST_TEST(type_of(controller->serve(golden.at("complete"))) == "FullSyncStatusMsg");
  }

  controller.reset();
  board.evict(Location::kDisk, id_of(PythonInt::of(7)));
  controller = std::make_unique<FakeController>(ports[0], ports[1]);
  BOOST_TEST((controller->serve(registered) == controller_register(worker)));
  // It may get what was sent before the end of the connection was noticed: of a worker that is not
  // registered.
  std::string report = controller->next_report();
  if (report.find("evict") != std::string::npos) report = controller->next_report();
  BOOST_TEST((report == admits(key, Location::kCpu, 0)));
  link.reset();
  BOOST_TEST((controller->next_report() == controller_deregister(worker)));
}

BOOST_AUTO_TEST_CASE(settings_of_the_controller_that_do_not_fit_are_named) {
  const ControllerOptions good{.is_enabled = true,
                               .instance_id = "a",
                               .pull_url = "h:1",
                               .reply_url = "h:2",
                               .worker_ports = {1, 2}};
  BOOST_TEST(ControllerLink::check(good, 2).ok());
  const auto refuses = [](const ControllerOptions& options, const std::string& part) {
    const auto checked = ControllerLink::check(options, 2);
    BOOST_TEST_INFO(part);
    BOOST_REQUIRE(!checked.ok());
    BOOST_TEST(checked.error().message.find(part) != std::string::npos, checked.error().message);
  };
  ControllerOptions bad = good;
  bad.instance_id.clear();
  refuses(bad, "lmcache_instance_id");
  bad = good;
  bad.pull_url = "tcp://h:1";
  refuses(bad, "controller_pull_url is 'tcp://h:1'");
  bad = good;
  bad.worker_ports.pop_back();
  refuses(bad, "lmcache_worker_ports has 1 ports, there are 2 ranks");
  bad = good;
  bad.worker_ids = {2};
  refuses(bad, "lmcache_worker_ids has 2");
}

BOOST_AUTO_TEST_CASE(a_lookup_client_is_told_how_many_tokens_are_there) {
  ChunkBoard board = small_board();
  const std::vector<PythonInt> keys = keys_of({1, 2, 3, 4, 5, 6});
  board.admit(Location::kCpu, id_of(keys[0]));
  board.admit(Location::kDisk, id_of(keys[1]));
  std::vector<std::int64_t> hashes;
  for (const PythonInt key : keys)
    hashes.push_back(static_cast<std::int64_t>(key.negative ? 0 - key.magnitude : key.magnitude));
  const std::vector<std::string> question = {
      msgspec::encode(hashes), msgspec::encode(std::vector<std::int64_t>{2, 2, 2}),
      msgspec::encode(std::string("request-1")), msgspec::encode(std::string())};
  using namespace std::string_literals;
  BOOST_TEST((answer_lookup(question, board).value() == "\0\0\0\4"s));
  for (std::size_t frame = 0; frame < 2; ++frame) {
    std::vector<std::string> bad = question;
    bad[frame].pop_back();
    BOOST_TEST(!answer_lookup(bad, board).ok());
  }
  BOOST_TEST(!answer_lookup({}, board).ok());

  const std::string folder = "/tmp/troupe-lookup-" + std::to_string(getpid());
  const std::string path = lookup_socket_path(folder, "engine", 5, 1).value();
  BOOST_TEST(path == folder + "/engine_engine_service_lookup_lmcache_rpc_port_6");
  BOOST_TEST(lookup_socket_path("/tmp/vllm_rpc", std::string(90, 'e'), 0, 0).value() ==
             "/tmp/vllm_rpc/lmcache_rpc_32804b1265659b41");
  BOOST_TEST(!lookup_socket_path(std::string(100, 'f'), "e", 0, 0).ok());
  const auto server = LookupServer::open(std::vector{path}, board);
  BOOST_REQUIRE(server.ok());
  zmq::context_t context(1);
  zmq::socket_t client(context, zmq::socket_type::req);
  client.set(zmq::sockopt::linger, 0);
  client.set(zmq::sockopt::rcvtimeo, 60'000);
  client.connect("ipc://" + path);
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < question.size(); ++i)
      client.send(zmq::buffer(question[i]),
                  i + 1 < question.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    zmq::message_t reply;
    BOOST_REQUIRE(client.recv(reply));
    BOOST_TEST((reply.to_string() == "\0\0\0\4"s));
  }
  ::rmdir(folder.c_str());
}

}  // namespace
}  // namespace troupe::lmcache
