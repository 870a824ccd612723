#include <boost/test/unit_test.hpp>
#include <future>
#include <random>
#include <sstream>
#include <thread>

#include "tests/runtime/http/server_fixture.hpp"

namespace troupe {
namespace {

/// What a Mersenne Twister had in its state for this output.
std::uint64_t untempered(std::uint64_t y) {
  y ^= y >> 43;
  y ^= y << 37 & 0xFFF7EEE000000000;
  std::uint64_t x = y;
  for (int i = 0; i < 4; ++i) x = y ^ (x << 17 & 0x71D67FFFEDA60000);
  y = x;
  for (int i = 0; i < 3; ++i) x = y ^ (x >> 29 & 0x5555555555555555);
  return x;
}

BOOST_FIXTURE_TEST_SUITE(servers, ServerFixture)

BOOST_AUTO_TEST_CASE(ids_cannot_be_predicted_from_earlier_ones) {
  Client client(server().port());
  const auto next_id = [&] {
    client.get("/v1/models");
    const std::string answer = client.read_until("}]}]}");
    const std::size_t begin = answer.find("modelperm-") + 10;
    return answer.substr(begin, answer.find('"', begin) - begin);
  };
  const auto bits_of = [](const std::string& id) {  // the lowest digit first
    return std::stoull(std::string(id.rend() - 16, id.rend()), nullptr, 16);
  };
  std::ostringstream state;
  for (std::size_t i = 0; i < std::mt19937_64::state_size; ++i)
    state << untempered(bits_of(next_id())) << ' ';
  state << std::mt19937_64::state_size;
  std::mt19937_64 copy;
  std::istringstream(state.str()) >> copy;
  const std::string id = next_id();
  BOOST_TEST(bits_of(id) != copy());
  BOOST_TEST(id.size() == 32u);
  BOOST_TEST(id.find_first_not_of("0123456789abcdef") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_connection_serves_one_request_after_another) {
  Client client(server().port());
  answer_with(1);
  for (int i = 0; i < 3; ++i) {
    client.get("/version");
    BOOST_TEST(client.read_until("{\"version\":\"\"}").starts_with("HTTP/1.1 200 OK\r\n"));
    client.post("/v1/completions", R"({"prompt":"a"})");
    BOOST_TEST(client.read_until("\"metrics\":null}").find(R"("text":"t")") != std::string::npos);
    client.post("/tokenize", R"({"prompt":"a"})");
    BOOST_TEST(client.read_until("\"token_strs\":null}").find("[97]") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(a_disconnect_aborts_rendering) {
  config.service.api_keys = {{"k1"}, {"k2"}};
  engine.hold_renders();
  Client client(server().port());
  const std::string body = R"({"prompt":"a"})";
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer k2\r\n"
      "Content-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::vector<RenderRequest> renders = engine.wait_renders(1);
  BOOST_REQUIRE(renders.size() == 1u);
  BOOST_TEST(renders[0].tenant == 2u);
  client.hang_up();
  BOOST_TEST((engine.wait_aborted(1) == std::vector<RequestId>{renders[0].id}));
}

BOOST_AUTO_TEST_CASE(streams_of_many_clients_on_several_threads_do_not_mix) {
  config.num_io_threads = 3;
  server();
  engine.react([this](const GenerateRequest& request) {
    const std::string text = std::get<TextPrompt>(request.prompt).text;
    for (int i = 0; i < 20; ++i) server_->deliver(step(text_output(request.id, text, {i})));
    server_->deliver(step(text_output(request.id, "", {20}, FinishReason::kStop)));
  });
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<Client>(server().port()));
    clients.back()->post("/v1/completions",
                         R"({"stream":true,"prompt":"<)" + std::to_string(i) + R"(>"})");
  }
  for (int i = 0; i < 40; ++i) {
    const std::string stream =
        clients[static_cast<std::size_t>(i)]->read_until("[DONE]\n\n\r\n0\r\n\r\n");
    BOOST_TEST(stream.ends_with("[DONE]\n\n\r\n0\r\n\r\n"));
    const std::string own = "<" + std::to_string(i) + ">";
    std::size_t count = 0, others = 0;
    for (std::size_t at = 0; (at = stream.find('<', at)) != std::string::npos; ++at) {
      stream.compare(at, own.size(), own) == 0 ? ++count : ++others;
    }
    BOOST_TEST(count == 20u);
    BOOST_TEST(others == 0u);
  }
}

BOOST_AUTO_TEST_CASE(a_client_that_hangs_up_aborts_its_request) {
  for (const char* body : {R"({"prompt":"a","stream":true})", R"({"prompt":"a"})"}) {
    const std::size_t before = engine.wait_aborted(0).size();
    Client client(server().port());
    client.post("/v1/completions", body);
    const RequestId id = engine.wait_submitted(before + 1).back().id;
    client.hang_up();
    const auto aborted = engine.wait_aborted(before + 1);
    BOOST_REQUIRE(aborted.size() == before + 1);
    BOOST_TEST(value(aborted.back()) == value(id));
  }
}

BOOST_AUTO_TEST_CASE(a_client_that_does_not_read_costs_no_memory_and_is_cut_off) {
  config.options.write_timeout_s = 0.1;
  Client client(server().port(), 4096);
  client.post("/v1/completions", R"({"prompt":"a","stream":true,"max_tokens":100000})");
  const RequestId id = engine.wait_submitted(1).front().id;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  const std::string text(100000, 'x');
  std::size_t num_delivered = 0;
  while (engine.wait_aborted(0).empty() && std::chrono::steady_clock::now() < deadline) {
    // No more than the sockets hold: what follows waits in one merged output.
    if (num_delivered < 100) server().deliver(step(text_output(id, text, {1})));
    ++num_delivered;
    std::this_thread::yield();
  }
  BOOST_TEST((engine.wait_aborted(1) == std::vector<RequestId>{id}));
}

BOOST_AUTO_TEST_CASE(idle_and_dripping_connections_are_closed) {
  config.options.idle_timeout_s = 0.1;
  Client idle(server().port());
  BOOST_TEST(idle.at_end());
  std::string answer;
  while (answer.empty()) {  // it was closed before its first byte
    Client dripping(server().port());
    dripping.send("GET /health HTT");
    answer = dripping.read_until("408}}");
    BOOST_TEST(dripping.at_end());
  }
  BOOST_TEST(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), answer);
}

BOOST_AUTO_TEST_CASE(connections_over_the_limit_get_an_error) {
  config.options.max_connections = 2;
  Client first(server().port()), second(server().port());
  first.get("/version");
  first.read_until("\"}");
  second.get("/version");
  second.read_until("\"}");
  Client third(server().port());
  third.get("/version");
  const std::string refused = third.read_until("503}}");
  BOOST_TEST(refused.starts_with("HTTP/1.1 503 "));
  BOOST_TEST(refused.find("too many connections") != std::string::npos);
  first.get("/version");
  BOOST_TEST(first.read_until("\"}").starts_with("HTTP/1.1 200 "));
}

BOOST_AUTO_TEST_CASE(a_large_body_is_refused_and_the_answer_arrives) {
  config.options.max_body_bytes = 1 << 20;
  Client client(server().port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
      "Content-Length: 4000000\r\n\r\n");
  client.send(std::string(100000, ' '));
  BOOST_TEST(client.read_until("413}}").starts_with("HTTP/1.1 413 "));
  BOOST_TEST(client.at_end());
}

BOOST_AUTO_TEST_CASE(draining_lets_running_requests_finish_and_refuses_new_ones) {
  Client running(server().port());
  running.post("/v1/completions", R"({"prompt":"a","stream":true})");
  const RequestId id = engine.wait_submitted(1).front().id;
  std::promise<void> drained;
  server().drain([&] { drained.set_value(); });
  Client late(server().port());
  late.post("/v1/completions", R"({"prompt":"b"})");
  const std::string refused = late.read_until("503}}");
  BOOST_TEST(refused.starts_with("HTTP/1.1 503 "));
  BOOST_TEST(refused.find("Retry-After: ") != std::string::npos);
  auto done = drained.get_future();
  BOOST_TEST((done.wait_for(std::chrono::seconds(0)) == std::future_status::timeout));
  server().deliver(step(text_output(id, "end", {1}, FinishReason::kStop)));
  BOOST_TEST(running.read_until("[DONE]\n\n").find("\"text\":\"end\"") != std::string::npos);
  BOOST_TEST((done.wait_for(std::chrono::seconds(120)) == std::future_status::ready));
}

BOOST_AUTO_TEST_CASE(an_idle_server_is_drained_at_once_and_stopping_aborts_the_rest) {
  std::promise<void> drained;
  server().drain([&] { drained.set_value(); });
  BOOST_TEST(
      (drained.get_future().wait_for(std::chrono::seconds(120)) == std::future_status::ready));
  server_.reset();
  Client client(server().port());
  client.post("/v1/completions", R"({"prompt":"a","stream":true})");
  const RequestId id = engine.wait_submitted(1).front().id;
  server().stop();
  BOOST_TEST((engine.wait_aborted(1) == std::vector<RequestId>{id}));
  BOOST_TEST(client.at_end());
}

BOOST_AUTO_TEST_CASE(a_server_that_is_replaced_serves_its_connections_and_refuses_none) {
  answer_with(1);
  Client kept(server().port()), idle(server().port()), running(server().port());
  const auto is_answered = [](Client& client) {
    client.get("/version");
    return client.read_until("}");
  };
  BOOST_TEST(is_answered(kept).starts_with("HTTP/1.1 200 "));
  BOOST_TEST(is_answered(idle).find("Connection: close") == std::string::npos);
  engine.react([](const GenerateRequest&) {});
  const std::size_t before = engine.wait_submitted(0).size();
  running.post("/v1/completions", R"({"prompt":"a","stream":true})");
  const RequestId id = engine.wait_submitted(before + 1).back().id;
  kept.post("/v1/completions", R"({"prompt":"b"})");
  const RequestId kept_id = engine.wait_submitted(before + 2).back().id;

  ServerConfig other = config;
  other.options.port = server().port();
  BOOST_TEST(!Server::start(other, engine, metrics).ok());  // it is not asked to take over
  other.takes_over = true;
  FakeEngine next_engine;
  EngineMetrics next_metrics{"m", 100};
  const auto next = Server::start(other, next_engine, next_metrics).value();
  BOOST_TEST(next->port() == server().port());
  std::promise<void> retired;
  server().retire([&] { retired.set_value(); });
  auto done = retired.get_future();
  server().deliver(step(text_output(kept_id, "kept", {1}, FinishReason::kStop)));
  BOOST_TEST(kept.read_until("}").find("Connection: close") != std::string::npos);
  BOOST_TEST(kept.at_end());
  BOOST_TEST(idle.at_end());
  for (int i = 0; i < 20; ++i) {
    Client client(next->port());
    BOOST_TEST(is_answered(client).find("Connection: close") == std::string::npos);
  }
  BOOST_TEST((done.wait_for(std::chrono::seconds(0)) == std::future_status::timeout));
  server().deliver(step(text_output(id, "end", {1}, FinishReason::kStop)));
  BOOST_TEST(running.read_until("[DONE]\n\n").find("\"text\":\"end\"") != std::string::npos);
  BOOST_TEST((done.wait_for(std::chrono::seconds(120)) == std::future_status::ready));
}

BOOST_AUTO_TEST_CASE(a_server_without_a_predecessor_opens_its_port) {
  config.options.port = server().port();
  server_.reset();
  config.takes_over = true;
  Client client(server().port());
  client.get("/version");
  BOOST_TEST(client.read_until("}").starts_with("HTTP/1.1 200 "));
  std::promise<void> retired;
  server().retire([&] { retired.set_value(); });
  client.hang_up();
  BOOST_TEST(
      (retired.get_future().wait_for(std::chrono::seconds(120)) == std::future_status::ready));
}

BOOST_AUTO_TEST_CASE(a_port_that_is_taken_is_an_error_that_names_it) {
  config.options.port = server().port();
  const auto second = Server::start(config, engine, metrics);
  BOOST_REQUIRE(!second.ok());
  BOOST_TEST((second.error().code == ErrorCode::kIo));
  BOOST_TEST(second.error().message.find(std::to_string(server().port())) != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
