// The publisher over real sockets, against frames captured from vLLM's.
#include "runtime/kv_events/publisher.hpp"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <zmq.hpp>

#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/kv_events/event_log.hpp"
#include "tests/runtime/kv_events/event_testing.hpp"

namespace troupe {
namespace {

using nlohmann::json;
using Frames = std::vector<std::string>;

std::string hex(const std::string& bytes) {
  return to_hex(std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
}

struct Fixture {
  KVEventsConfig config{.enable_kv_cache_events = true,
                        .endpoint = "tcp://127.0.0.1:*",
                        .replay_endpoint = "tcp://127.0.0.1:*",
                        .topic = "kv-events"};
  std::unique_ptr<KVEventPublisher> publisher;
  zmq::context_t context;

  KVEventPublisher& start() {
    auto started = KVEventPublisher::start(config, {});
    BOOST_REQUIRE_MESSAGE(started.ok(), (started.ok() ? "" : started.error().message));
    publisher = std::move(started).value();
    return *publisher;
  }

  zmq::socket_t client(zmq::socket_type type, const std::string& endpoint) {
    zmq::socket_t socket(context, type);
    socket.set(zmq::sockopt::rcvtimeo, 10'000);
    socket.set(zmq::sockopt::linger, 0);
    if (type == zmq::socket_type::sub) socket.set(zmq::sockopt::subscribe, "");
    socket.connect(endpoint);
    return socket;
  }

  /// Batch i has time i and clears the cache.
  void publish(int first, int last) {
    for (int i = first; i < last; ++i) publisher->publish({double(i), {AllBlocksCleared{}}});
  }

  /// A subscriber does not receive what was published before it connected: publishes until the
  /// first batch arrives.
  void hear(zmq::socket_t& subscriber) {
    subscriber.set(zmq::sockopt::rcvtimeo, 20);
    while (receive(subscriber).empty()) publish(0, 1);
    subscriber.set(zmq::sockopt::rcvtimeo, 10'000);
  }

  static void send(zmq::socket_t& socket, const Frames& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      socket.send(zmq::buffer(frames[i]),
                  i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
  /// Empty if nothing comes.
  static Frames receive(zmq::socket_t& socket) {
    Frames frames;
    zmq::message_t frame;
    do {
      if (!socket.recv(frame)) return {};
      frames.push_back(frame.to_string());
    } while (frame.more());
    return frames;
  }
  /// All messages up to the end of a replay, which is left out.
  static std::vector<Frames> receive_answer(zmq::socket_t& socket) {
    std::vector<Frames> answer;
    for (;;) {
      Frames frames = receive(socket);
      BOOST_REQUIRE_EQUAL(frames.size(), 4u);
      if (frames[2] == sequence_bytes(kEndOfReplay)) return answer;
      answer.push_back(std::move(frames));
    }
  }
  static Frames request(std::uint64_t start) { return {"", sequence_bytes(start)}; }
};

Frames hex_frames(const Frames& frames) {
  Frames result;
  for (const std::string& frame : frames) result.push_back(hex(frame));
  return result;
}

BOOST_FIXTURE_TEST_SUITE(publishers, Fixture)

BOOST_AUTO_TEST_CASE(frames_are_those_of_the_reference) {
  std::ifstream file(TROUPE_GOLDEN_DIR "/oracle/wire/golden_kv_events.json");
  const json golden = json::parse(file)["zmq"];
  config.buffer_steps = 4;
  start();
  zmq::socket_t subscriber = client(zmq::socket_type::sub, publisher->endpoint());
  zmq::socket_t dealer = client(zmq::socket_type::dealer, publisher->replay_endpoint());
  hear(subscriber);
  publish(0, 6);
  Frames last;
  for (int i = 0; i < 6;) {
    const Frames frames = receive(subscriber);
    BOOST_REQUIRE_EQUAL(frames.size(), 3u);
    const Frames expected = golden["pub_frames"][static_cast<std::size_t>(i)];
    if (hex(frames[2]) != expected[2]) continue;  // published while it connected
    BOOST_TEST(hex(frames[0]) == expected[0]);
    last = frames;
    ++i;
  }
  // Sequences are relative to the last one here.
  const std::string& bytes = last[1];
  std::uint64_t sequence = 0;
  for (const char byte : bytes) sequence = sequence << 8 | static_cast<unsigned char>(byte);
  send(dealer, request(sequence - 2));
  std::vector<Frames> answer = receive_answer(dealer);
  BOOST_REQUIRE_EQUAL(answer.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const Frames expected = golden["replay_reply_frames_seen_by_dealer"][i];
    BOOST_TEST(answer[i][2] == sequence_bytes(sequence - 2 + i));
    const Frames seen = hex_frames(answer[i]);
    BOOST_TEST(seen[0] == expected[0]);
    BOOST_TEST(seen[1] == expected[1]);
    BOOST_TEST(seen[3] == expected[3]);
  }
  // The end, as it is.
  send(dealer, request(sequence + 1));
  const Frames end = hex_frames(receive(dealer));
  BOOST_TEST(end == golden["replay_reply_frames_seen_by_dealer"][3].get<Frames>(),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_req_socket_reads_the_first_batch_asked_for) {
  start();
  publish(0, 3);
  zmq::socket_t requester = client(zmq::socket_type::req, publisher->replay_endpoint());
  // Publishing is on its way: ask until it is there.
  Frames answer;
  do {
    send(requester, {sequence_bytes(2)});
    answer = receive(requester);
    BOOST_REQUIRE_EQUAL(answer.size(), 3u);
  } while (answer[1] == sequence_bytes(kEndOfReplay));
  BOOST_TEST(answer[0] == "kv-events");
  BOOST_TEST(answer[1] == sequence_bytes(2));
}

BOOST_AUTO_TEST_CASE(invalid_requests_are_ignored) {
  start();
  zmq::socket_t dealer = client(zmq::socket_type::dealer, publisher->replay_endpoint());
  send(dealer, {""});
  send(dealer, {"", ""});
  send(dealer, {"", "short"});
  send(dealer, {"snapshot"});
  send(dealer, Frames(1000, "x"));
  send(dealer, {"", std::string(8, '\xff'), "more"});
  publish(0, 1);
  send(dealer, request(99));
  BOOST_TEST(receive_answer(dealer).empty());
  zmq::socket_t oversized = client(zmq::socket_type::dealer, publisher->replay_endpoint());
  send(oversized, {"", std::string(1 << 20, 'x')});
  send(dealer, request(99));
  BOOST_TEST(receive_answer(dealer).empty());
}

BOOST_AUTO_TEST_CASE(a_snapshot_is_answered_like_a_replay) {
  start();
  zmq::socket_t dealer = client(zmq::socket_type::dealer, publisher->replay_endpoint());
  send(dealer, {"", std::string(kSnapshotRequest)});
  BOOST_TEST(receive_answer(dealer).empty());
  const auto row = testing::stored({1, 2, 3});
  publisher->publish({1.0, {row}});
  publisher->publish({2.0, {BlockRemoved{testing::hash_of(3), 0}}});
  const std::vector<KVCacheEvent> expected = {AllBlocksCleared{}, testing::stored({1, 2})};
  std::vector<Frames> answer;
  do {
    send(dealer, {"", std::string(kSnapshotRequest)});
    answer = receive_answer(dealer);
  } while (answer.empty() || answer[0][2] != sequence_bytes(1));
  BOOST_REQUIRE_EQUAL(answer.size(), 1u);
  BOOST_TEST(answer[0][3] == encode_kv_event_batch(2.0, expected, {}));
}

BOOST_AUTO_TEST_CASE(a_replay_longer_than_the_socket_holds_arrives_whole) {
  start();
  constexpr int kBatches = 5000;
  publish(0, kBatches);
  zmq::socket_t dealer = client(zmq::socket_type::dealer, publisher->replay_endpoint());
  zmq::socket_t idle = client(zmq::socket_type::dealer, publisher->replay_endpoint());
  send(idle, request(0));  // and never reads
  std::vector<Frames> answer;
  do {
    send(dealer, request(0));
    answer = receive_answer(dealer);
  } while (answer.size() < kBatches);
  BOOST_REQUIRE_EQUAL(answer.size(), std::size_t{kBatches});
  for (std::size_t i = 0; i < answer.size(); ++i) BOOST_REQUIRE(answer[i][2] == sequence_bytes(i));
}

BOOST_AUTO_TEST_CASE(a_full_queue_joins_batches_and_loses_none) {
  config.max_queue_size = 1;
  start();
  for (int i = 0; i < 2000; ++i) publisher->publish({0, {testing::stored({i})}});
  zmq::socket_t dealer = client(zmq::socket_type::dealer, publisher->replay_endpoint());
  // 2000 rows of one block: 32 frames of 64 events, the first of which clears.
  std::vector<Frames> answer;
  do {
    send(dealer, {"", std::string(kSnapshotRequest)});
    answer = receive_answer(dealer);
  } while (answer.size() < 32);
  BOOST_TEST(answer.size() == 32u);
}

BOOST_AUTO_TEST_CASE(what_is_queued_at_the_end_is_still_published) {
  start();
  zmq::socket_t subscriber = client(zmq::socket_type::sub, publisher->endpoint());
  hear(subscriber);
  publish(77, 78);
  publisher.reset();
  const std::vector<KVCacheEvent> cleared = {AllBlocksCleared{}};
  const std::string expected = encode_kv_event_batch(77, cleared, {});
  Frames frames;
  do {
    frames = receive(subscriber);
    BOOST_REQUIRE_EQUAL(frames.size(), 3u);
  } while (frames[2] != expected);
}

BOOST_AUTO_TEST_CASE(an_endpoint_that_cannot_be_had_is_an_error) {
  start();
  KVEventsConfig second = config;
  // A bound PUB endpoint has a star: the same port again, on all addresses.
  second.endpoint = "tcp://*:" + publisher->endpoint().substr(publisher->endpoint().rfind(':') + 1);
  auto taken = KVEventPublisher::start(second, {});
  BOOST_REQUIRE(!taken.ok());
  BOOST_TEST((taken.error().code == ErrorCode::kIo));
  BOOST_TEST(taken.error().message ==
             "cannot open the KV events endpoint " + second.endpoint + ": Address already in use");
  second.endpoint = "tcp://*:*";
  second.replay_endpoint = publisher->replay_endpoint();
  taken = KVEventPublisher::start(second, {});
  BOOST_REQUIRE(!taken.ok());
  BOOST_TEST(taken.error().message.find("replay endpoint " + second.replay_endpoint) !=
             std::string::npos);
  second.endpoint = "carrier-pigeon://*";
  taken = KVEventPublisher::start(second, {});
  BOOST_REQUIRE(!taken.ok());
  BOOST_TEST((taken.error().code == ErrorCode::kInvalidArgument));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
