// What LMCache's controller and its lookup clients see of an engine, against ones that do what the
// test says. The bytes are those of LMCache 0.5.6's own messages.

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <zmq.hpp>

#include "messages/msgpack.hpp"
#include "messages/msgpack_reader.hpp"
#include "runtime/cache_server/cache_server.hpp"
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
  const ControllerOrder move = parse_controller_order(golden.at("move")).value();
  BOOST_TEST(move.location == "LocalCPUBackend");
  BOOST_TEST(move.new_location == "LocalCPUBackend");
  BOOST_TEST(move.target == "h:1");
  BOOST_TEST((controller_moved(512) == golden.at("moved")));

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
    const std::string address = "tcp://127.0.0.1:" + std::to_string(port);
    orders_.connect(address);
    orders_.send(zmq::buffer(bytes), zmq::send_flags::none);
    zmq::message_t part;
    BOOST_REQUIRE(orders_.recv(part));
    orders_.disconnect(address);
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
  BOOST_REQUIRE(ControllerLink::of_group(options, 1).ok());
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
  BOOST_TEST(ControllerLink::of_group(good, 2)->instance_id == "a");
  const auto refuses = [](const ControllerOptions& options, const std::string& part) {
    const auto checked = ControllerLink::of_group(options, 2);
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
  bad.worker_ids = {1};
  BOOST_TEST(ControllerLink::of_group(bad, 2).ok());
  bad.moves_chunks = true;
  refuses(bad, "lmcache_worker_ids leaves out ranks");
}

BOOST_AUTO_TEST_CASE(data_parallel_groups_are_instances_with_ports_of_their_own) {
  const std::vector<std::int32_t> ports = free_ports(4);
  const ControllerOptions options{.is_enabled = true,
                                  .instance_id = "troupe",
                                  .pull_url = "127.0.0.1:" + std::to_string(ports[0]),
                                  .reply_url = "127.0.0.1:" + std::to_string(ports[1]),
                                  .worker_ports = {ports[2], ports[3]}};
  const auto refused = ControllerLink::of_group(options, 2, 0, 2);
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST(refused.error().message.find("has 2 ports, there are 4 ranks that need one, in 2") !=
             std::string::npos);
  ControllerOptions two_ids = options;
  two_ids.worker_ids = {1};
  BOOST_TEST((ControllerLink::of_group(two_ids, 2, 1, 2)->worker_ports == std::vector{ports[3]}));

  // Both register at once, and each answers at its port.
  const std::map<std::string, std::string> golden = golden_messages();
  FakeController controller(ports[0], ports[1]);
  std::vector<std::unique_ptr<ChunkBoard>> boards;
  std::vector<std::unique_ptr<ControllerLink>> links;
  for (std::int32_t group = 0; group < 2; ++group) {
    boards.push_back(std::make_unique<ChunkBoard>(ChunkHasher(ChunkHashAlgorithm::kBuiltin, {}, 2),
                                                  /*signed_hashes=*/true));
    links.push_back(std::make_unique<ControllerLink>(
        ControllerLink::of_group(options, 1, group, 2).value(), 1, *boards.back()));
    const ControlledWorker worker{.instance = "troupe_dp" + std::to_string(group),
                                  .worker = 0,
                                  .ip = "127.0.0.1",
                                  .port = ports[2 + static_cast<std::size_t>(group)]};
    BOOST_TEST((controller.serve(golden.at("registered")) == controller_register(worker)));
  }
  for (std::size_t group = 0; group < 2; ++group)
    BOOST_TEST((controller.order(ports[2 + group], golden.at("health")) == golden.at("healthy")));
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
  const std::string path = lookup_socket_path(LookupSocket::kRank, folder, "engine", 5, 1).value();
  BOOST_TEST(path == folder + "/engine_engine_service_lookup_lmcache_rpc_port_6");
  BOOST_TEST(lookup_socket_path(LookupSocket::kRank, "/tmp/vllm_rpc", std::string(90, 'e'), 0, 0)
                 .value() == "/tmp/vllm_rpc/lmcache_rpc_32804b1265659b41");
  BOOST_TEST(!lookup_socket_path(LookupSocket::kRank, std::string(100, 'f'), "e", 0, 0).ok());
  const auto server = LookupServer::open(std::vector{path}, {}, board);
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

std::string move_order(const std::string& target, const std::vector<std::int64_t>& tokens,
                       bool copy, const std::string& location = "LocalDiskBackend") {
  std::string out;
  msgspec::Writer writer(out);
  writer.put_map(6);
  writer.put("type"), writer.put("MoveWorkerMsg");
  writer.put("worker_event_id"), writer.put("MoveWorker0e");
  writer.put("old_position"), writer.put(location);
  writer.put("new_position"), writer.put(std::vector<std::string>{target, "LocalCPUBackend"});
  writer.put("tokens"), writer.put(tokens);
  writer.put("copy"), writer.put(copy);
  return out;
}

BOOST_AUTO_TEST_CASE(chunks_are_moved_between_the_stores_of_instances) {
  const auto own = CacheServer::start({.port = 0}).value();
  const auto other = CacheServer::start({.port = 0}).value();
  const auto url_of = [](const CacheServer& server) {
    return "lm://127.0.0.1:" + std::to_string(server.port());
  };
  const ChunkSource source{.store = {.url = url_of(*own), .timeout = std::chrono::seconds(20)},
                           .chunk_bytes = 16,
                           .key_of = [](const ChunkId& id, std::int32_t rank) {
                             return std::to_string(rank) + "@" + std::to_string(id.hash);
                           }};
  const std::vector<std::int64_t> tokens = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<PythonInt> keys = keys_of(tokens);
  ChunkBoard board = small_board();
  const auto store = make_remote_store(source.store).value();
  const auto value_of = [](std::size_t chunk, std::int32_t rank) {
    return std::vector(16, static_cast<std::byte>(10 * rank + static_cast<int>(chunk)));
  };
  // All three full chunks are on disk; the store has lost the last one.
  for (std::size_t i = 0; i < keys.size(); ++i) {
    board.admit(Location::kDisk, id_of(keys[i]));
    for (std::int32_t rank = 0; rank < 2 && i < 2; ++rank)
      BOOST_REQUIRE(
          store->put(source.key_of(id_of(keys[i]), rank), bytes_info(16), value_of(i, rank)).ok());
  }
  BOOST_REQUIRE(store->count_leading(std::vector{source.key_of(id_of(keys[1]), 1)}).value() == 1);

  const std::map<std::string, std::string> golden = golden_messages();
  const std::vector<std::int32_t> ports = free_ports(4);
  FakeController controller(ports[0], ports[1]);
  const ControllerOptions options{.is_enabled = true,
                                  .instance_id = "troupe",
                                  .pull_url = "127.0.0.1:" + std::to_string(ports[0]),
                                  .reply_url = "127.0.0.1:" + std::to_string(ports[1]),
                                  .worker_ports = {ports[2], ports[3]},
                                  .moves_chunks = true,
                                  .store_url = url_of(*own)};
  ControllerLink link(ControllerLink::of_group(options, 2).value(), 2, board, source);
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    // The controller tells the others where its chunks are moved.
    const ControlledWorker worker{.instance = "troupe",
                                  .worker = rank,
                                  .ip = "127.0.0.1",
                                  .port = ports[2 + static_cast<std::size_t>(rank)],
                                  .store_url = url_of(*own)};
    BOOST_TEST((controller.serve(golden.at("registered")) == controller_register(worker)));
    BOOST_TEST(controller_register(worker).ends_with(url_of(*own)));
  }
  const auto moved = controller_moved(4);
  BOOST_TEST((controller.order(ports[2], move_order(url_of(*other), tokens, true)) == moved));
  const auto elsewhere = make_remote_store({.url = url_of(*other)}).value();
  for (std::size_t i = 0; i < 2; ++i)
    BOOST_TEST((elsewhere->get(source.key_of(id_of(keys[i]), 0), 16).value() == value_of(i, 0)));
  BOOST_TEST(other->store().usage().num_values == 2u);
  BOOST_TEST(board.count_leading(keys) == 3u);
  // Without a copy they go when both ranks are done.
  for (const std::size_t rank : {1U, 0U}) {
    BOOST_TEST(board.count_leading(keys) == 3u);
    BOOST_TEST(
        (controller.order(ports[2 + rank], move_order(url_of(*other), tokens, false)) == moved));
  }
  BOOST_TEST(other->store().usage().num_values == 4u);
  BOOST_TEST(board.leading(Location::kDisk, tokens).empty());
  BOOST_TEST((board.keys(Location::kDisk) == std::vector{keys[2]}));
  const std::vector<ChunkBoard::Order> orders = board.take_orders();
  BOOST_REQUIRE(orders.size() == 1u);
  BOOST_TEST((orders[0].kind == ChunkBoard::Order::Kind::kRemove));
  BOOST_TEST((orders[0].chunks == std::vector{id_of(keys[0]), id_of(keys[1])}));
  // What is not there is no failure.
  BOOST_TEST((controller.order(ports[2], move_order(url_of(*other), tokens, true)) ==
              controller_moved(0)));

  // An instance of LMCache, a store that is not there, another place: errors that say so.
  board.admit(Location::kDisk, id_of(keys[0]));
  const auto refuses = [&](const std::string& order, const std::string& part) {
    const std::string reply = controller.order(ports[3], order);
    BOOST_TEST(type_of(reply) == "ErrorMsg");
    BOOST_TEST(reply.find(part) != std::string::npos, reply);
  };
  refuses(move_order("10.0.0.7:8200", tokens, true), "(NIXL) is not offered");
  refuses(move_order("redis://127.0.0.1:1", tokens, true), "redis://127.0.0.1:1");
  refuses(move_order("lm://127.0.0.1:1", tokens, true), "127.0.0.1:1: Connection refused");
  refuses(move_order(url_of(*other), tokens, true, "RemoteBackend"), "from RemoteBackend to");
  BOOST_TEST((controller.order(ports[3], golden.at("health")) == golden.at("healthy")));
}

BOOST_AUTO_TEST_CASE(an_asynchronous_lookup_client_gets_an_answer_of_each_rank) {
  const std::map<std::string, std::string> golden = golden_messages();
  ChunkBoard board = small_board();
  // Of the three chunks the first two are there; a hash counts in either sign.
  board.admit(Location::kCpu, id_of(PythonInt::of(-5)));
  board.admit(Location::kDisk, id_of(PythonInt{~std::uint64_t{2}, false}));
  std::string hits = golden.at("lookup_hits");  // 70000
  hits.replace(hits.size() - 5, 5, "\4");
  for (const char* const name : {"lookup", "lookup_configs"})
    BOOST_TEST((answer_async_lookup(golden.at(name), board).value() == hits));
  BOOST_TEST(answer_async_lookup(golden.at("lookup_cleanup"), board)->empty());
  for (const std::string& bytes :
       {golden.at("lookup_hits"), golden.at("lookup") + "x", std::string()})
    BOOST_TEST(!answer_async_lookup(bytes, board).ok());
  for (std::size_t size = 0; size < golden.at("lookup").size(); ++size)
    BOOST_TEST(!answer_async_lookup(golden.at("lookup").substr(0, size), board).ok());

  const std::string folder = "/tmp/troupe-async-lookup-" + std::to_string(getpid());
  std::vector<std::string> paths;
  for (std::int32_t rank = 0; rank < 2; ++rank)
    paths.push_back(lookup_socket_path(LookupSocket::kAsyncRank, folder, "e", 5, rank).value());
  BOOST_TEST(paths[1] == folder + "/engine_e_service_lookup_worker_lmcache_rpc_port_6");
  const std::string answers = lookup_socket_path(LookupSocket::kAnswers, folder, "e", 5, 0).value();
  BOOST_TEST(answers == folder + "/engine_e_service_lookup_scheduler_lmcache_rpc_port_5");
  // The engine may be there before its client is.
  const auto server = LookupServer::open(paths, answers, board);
  BOOST_REQUIRE(server.ok());
  zmq::context_t context(1);
  zmq::socket_t pull(context, zmq::socket_type::pull);
  pull.set(zmq::sockopt::rcvtimeo, 60'000);
  pull.bind("ipc://" + answers);
  std::vector<zmq::socket_t> ranks;
  for (const std::string& path : paths) {
    zmq::socket_t& rank = ranks.emplace_back(context, zmq::socket_type::push);
    rank.set(zmq::sockopt::linger, 0);
    rank.connect("ipc://" + path);
    for (const std::string& bytes :
         {golden.at("lookup_cleanup"), std::string("no message"), golden.at("lookup")})
      rank.send(zmq::buffer(bytes), zmq::send_flags::none);
  }
  for (int rank = 0; rank < 2; ++rank) {
    zmq::message_t reply;
    BOOST_REQUIRE(pull.recv(reply));
    BOOST_TEST((reply.to_string() == hits));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace troupe::lmcache
