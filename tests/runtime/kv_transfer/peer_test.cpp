// Prefill apart from decode: one engine computes prompts, another one loads their KV. Tokens and
// log-probabilities are the same, bit for bit, as on one engine.

#include <boost/test/unit_test.hpp>

#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/kv_transfer/peer_connector.hpp"
#include "tests/runtime/kv_transfer/transfer_engine.hpp"
#include "tests/support/test_device.hpp"

namespace troupe {
namespace {

using namespace testing;
using Params = std::map<std::size_t, std::string>;

std::string peer(const std::string& extra = "{}", const std::string& more = "") {
  return R"({"kv_connector":"PeerConnector","kv_role":"kv_both","kv_connector_extra_config":)" +
         extra + more + "}";
}

const char* const kPrefill = R"({"do_remote_decode":true,"do_remote_prefill":false})";

/// What the prompts leave behind.
Params prefill(TransferEngine& engine, const std::vector<std::vector<TokenId>>& prompts) {
  Params wanted;
  for (std::size_t i = 0; i < prompts.size(); ++i) wanted[i] = kPrefill;
  const std::vector<Answer> answers = engine.run(prompts, /*together=*/true, {}, wanted);
  Params params;
  for (std::size_t i = 0; i < prompts.size(); ++i) params[i] = answers[i].transfer_params;
  return params;
}

std::vector<Answer> whole_answers(EngineSetup setup) {
  setup.num_blocks = 200;
  setup.tensor_parallel_size = 1;
  return TransferEngine(setup).run(some_prompts());
}

std::uint64_t num_prompt_tokens() {
  std::uint64_t count = 0;
  for (const auto& prompt : some_prompts()) count += prompt.size();
  return count;
}

void wait_until_idle(TransferEngine& engine) {
  for (int i = 0; engine.has_requests(); ++i) {
    BOOST_REQUIRE(i < 20000);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    engine.step();
  }
}

void check_transfer(EngineSetup from, EngineSetup to) {
  const std::vector<Answer> expected = whole_answers(to);
  from.num_blocks = to.num_blocks = 200;
  from.transfer = to.transfer = peer();
  TransferEngine prefiller(from);
  TransferEngine decoder(to);
  const std::int32_t num_free = prefiller.num_free_blocks();
  const Params params = prefill(prefiller, some_prompts());
  const auto shown = nlohmann::json::parse(params.at(0));
  BOOST_TEST(shown["do_remote_prefill"] == true);
  BOOST_TEST(shown["remote_num_tokens"] == 17);
  BOOST_TEST(shown["tp_size"] == from.tensor_parallel_size);
  BOOST_TEST(prefiller.num_free_blocks() < num_free);
  BOOST_TEST((decoder.run(some_prompts(), /*together=*/true, {}, params) == expected));
  // All but the last token of each prompt; the first two share what one of them has loaded.
  BOOST_TEST(decoder.num_external_hits() >= num_prompt_tokens() - 5 - 12);
  BOOST_TEST(decoder.num_failed() == 0u);
  wait_until_idle(prefiller);
  BOOST_TEST(prefiller.num_free_blocks() == num_free);
  BOOST_TEST(prefiller.connector<PeerKVConnector>().num_open() == 0u);
  BOOST_TEST(decoder.connector<PeerKVConnector>().num_open() == 0u);
}

BOOST_AUTO_TEST_CASE(a_prompt_of_another_engine_goes_on_with_the_same_bits) {
  check_transfer({}, {});
}
BOOST_AUTO_TEST_CASE(so_it_does_with_steps_planned_ahead) {
  check_transfer({.async_scheduling = true}, {.async_scheduling = true});
}
BOOST_AUTO_TEST_CASE(so_it_does_with_sliding_windows) {
  check_transfer({.model = "gemma3_text"}, {.model = "gemma3_text"});
}
BOOST_AUTO_TEST_CASE(so_it_does_with_caches_of_8_bits) {
  check_transfer({.kv_cache_dtype = "int8"}, {.kv_cache_dtype = "int8"});
}
BOOST_AUTO_TEST_CASE(so_it_does_between_other_numbers_of_ranks) {
  check_transfer({.tensor_parallel_size = 2}, {});
  check_transfer({}, {.tensor_parallel_size = 2});
  check_transfer({.tensor_parallel_size = 2}, {.tensor_parallel_size = 2});
}
BOOST_AUTO_TEST_CASE(so_it_does_between_blocks_of_other_sizes) {
  check_transfer({.block_size = 16}, {.block_size = 32});
  check_transfer({.block_size = 32}, {.block_size = 16});
}

BOOST_AUTO_TEST_CASE(so_it_does_between_devices_other_than_the_cpu) {
  const EngineSetup setup{.device = test_device()};
  check_transfer(setup, setup);
}

/// The decoder computes everything itself.
void check_recomputed(TransferEngine& decoder, const Params& params,
                      const std::vector<Answer>& expected, std::size_t num_failed) {
  BOOST_TEST((decoder.run(some_prompts(), /*together=*/false, {}, params) == expected));
  BOOST_TEST(decoder.num_failed() == num_failed);
  BOOST_TEST(decoder.connector<PeerKVConnector>().num_open() == 0u);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_loaded_is_computed) {
  const std::vector<Answer> expected = whole_answers({});
  const EngineSetup setup{.num_blocks = 200, .transfer = peer()};
  {
    std::optional<TransferEngine> prefiller(setup);
    const Params params = prefill(*prefiller, some_prompts());
    prefiller.reset();  // gone, with all that it held
    TransferEngine decoder(setup);
    check_recomputed(decoder, params, expected, 5);
  }
  TransferEngine prefiller(setup);
  Params params = prefill(prefiller, some_prompts());
  for (auto& [i, text] : params) {
    auto object = nlohmann::json::parse(text);
    if (i == 0) object["remote_request_id"] = "1-unknown";
    if (i == 1) object["remote_num_tokens"] = 20;  // of another prompt, for all that is known
    if (i == 2) object["remote_endpoints"] = {"nobody-here|"};
    if (i == 3) object["remote_num_tokens"] = "many";
    if (i == 4) object["remote_endpoints"] = nlohmann::json::array();
    text = object.dump();
  }
  TransferEngine decoder(setup);
  check_recomputed(decoder, params, expected, 3);
}

BOOST_AUTO_TEST_CASE(an_engine_of_another_type_of_cache_is_refused) {
  TransferEngine prefiller({.kv_cache_dtype = "int8", .num_blocks = 200, .transfer = peer()});
  const Params params = prefill(prefiller, some_prompts());
  TransferEngine decoder({.num_blocks = 200, .transfer = peer()});
  check_recomputed(decoder, params, whole_answers({}), 5);
}

BOOST_AUTO_TEST_CASE(blocks_that_nobody_reads_are_free_when_their_lease_ends) {
  TransferEngine prefiller({.num_blocks = 200, .transfer = peer(R"({"lease_s": 0.05})")});
  const std::int32_t num_free = prefiller.num_free_blocks();
  static_cast<void>(prefill(prefiller, some_prompts()));
  BOOST_TEST(prefiller.has_requests());
  wait_until_idle(prefiller);
  BOOST_TEST(prefiller.num_free_blocks() == num_free);
}

// ---- prompts that are read while they are computed ----------------------------------------------

const char* const kEarly =
    R"({"do_remote_decode":true,"do_remote_prefill":false,"begin_early":true})";

/// Of seven steps, and three parts of a load.
std::vector<TokenId> long_prompt(std::int32_t num_tokens = 300) {
  std::vector<TokenId> prompt;
  for (std::int32_t t = 0; t < num_tokens; ++t) prompt.push_back(3 + (t * 7 + t * t % 11) % 90);
  return prompt;
}

/// The prompt's first step is done.
std::string begin_prompt(TransferEngine& prefiller, RequestId& id,
                         const std::vector<TokenId>& prompt = long_prompt()) {
  // The first result of all tells where the ranks are.
  prefiller.run({{5, 6, 7}});
  id = prefiller.add(prompt, kEarly);
  const EngineCoreOutputs outputs = prefiller.step();
  BOOST_REQUIRE(outputs.outputs.size() == 1u);
  BOOST_TEST((outputs.outputs[0].id == id));
  BOOST_TEST(outputs.outputs[0].new_token_ids.empty());
  BOOST_TEST(!outputs.outputs[0].finish_reason.has_value());
  return outputs.outputs[0].kv_transfer_params;
}

void step_often(TransferEngine& engine) {
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    engine.step();
  }
}

void check_stream(EngineSetup from, EngineSetup to,
                  const std::vector<TokenId>& tokens = long_prompt()) {
  from.num_blocks = to.num_blocks = 200;
  const Answer expected = TransferEngine(to).run({tokens})[0];
  from.transfer = to.transfer = peer();
  TransferEngine prefiller(from);
  TransferEngine decoder(to);
  const std::int32_t num_free = prefiller.num_free_blocks();
  RequestId prompt{};
  const std::string params = begin_prompt(prefiller, prompt, tokens);
  const RequestId id = decoder.add(tokens, params);
  // Each goes on a little while the other one is where it was.
  for (std::int64_t left = std::ssize(tokens) - kMaxStepTokens; left > 0; left -= kMaxStepTokens) {
    step_often(decoder);
    prefiller.step();
  }
  BOOST_TEST((decoder.finish(id) == expected));
  BOOST_TEST(decoder.num_external_hits() == tokens.size() - 1);
  BOOST_TEST(decoder.num_failed() == 0u);
  wait_until_idle(prefiller);
  BOOST_TEST(prefiller.num_free_blocks() == num_free);
  BOOST_TEST(prefiller.connector<PeerKVConnector>().num_open() == 0u);
  BOOST_TEST(decoder.connector<PeerKVConnector>().num_open() == 0u);
}

BOOST_AUTO_TEST_CASE(a_prompt_is_loaded_while_it_is_computed) { check_stream({}, {}); }
BOOST_AUTO_TEST_CASE(so_is_one_with_sliding_windows_and_of_other_ranks) {
  check_stream({.model = "gemma3_text"}, {.model = "gemma3_text"});
  check_stream({.tensor_parallel_size = 2, .block_size = 32}, {.block_size = 16});
}

BOOST_AUTO_TEST_CASE(so_is_one_on_devices_other_than_the_cpu) {
  const EngineSetup setup{.device = test_device()};
  check_stream(setup, setup, long_prompt(130));
}

BOOST_AUTO_TEST_CASE(a_prompt_that_is_given_up_is_computed_by_its_reader) {
  const EngineSetup setup{.num_blocks = 200, .transfer = peer()};
  const Answer expected = TransferEngine({.num_blocks = 200}).run({long_prompt()})[0];
  for (const char* reason : {"aborted", "failed", "gone"}) {
    BOOST_TEST_CONTEXT(reason) {
      std::optional<TransferEngine> prefiller(setup);
      const std::int32_t num_free = prefiller->num_free_blocks();
      TransferEngine decoder(setup);
      RequestId prompt{};
      const std::string params = begin_prompt(*prefiller, prompt);
      const RequestId id = decoder.add(long_prompt(), params);
      prefiller->step();
      step_often(decoder);
      if (reason == std::string("aborted")) {
        prefiller->abort(prompt);
        prefiller->run({{5, 6, 7}});
      } else if (reason == std::string("failed")) {
        // What was planned before the step failed may be in other places now.
        prefiller->lose_steps(1);
        static_cast<void>(prefiller->finish(prompt));
      } else {
        prefiller.reset();
      }
      BOOST_TEST((decoder.finish(id) == expected));
      BOOST_TEST(decoder.num_failed() == 1u);
      BOOST_TEST(decoder.connector<PeerKVConnector>().num_open() == 0u);
      if (!prefiller) continue;
      wait_until_idle(*prefiller);
      BOOST_TEST(prefiller->num_free_blocks() == num_free);
      BOOST_TEST(prefiller->connector<PeerKVConnector>().num_open() == 0u);
    }
  }
}

/// The step after that of the prompt may take seconds, for other prompts.
void check_readable_at_once(std::size_t num_tokens, int num_steps) {
  const EngineSetup setup{.num_blocks = 200, .transfer = peer()};
  std::vector<TokenId> prompt = long_prompt();
  prompt.resize(num_tokens);
  const Answer expected = TransferEngine({.num_blocks = 200}).run({prompt})[0];
  TransferEngine prefiller(setup);
  TransferEngine decoder(setup);
  const std::int32_t num_free = prefiller.num_free_blocks();
  prefiller.run({{5, 6, 7}});
  prefiller.add(prompt, kPrefill);
  EngineCoreOutputs outputs;
  for (int i = 0; i < num_steps; ++i) outputs = prefiller.step();
  BOOST_REQUIRE(outputs.outputs.size() == 1u);
  BOOST_REQUIRE(outputs.outputs[0].finish_reason.has_value());
  BOOST_TEST((decoder.run({prompt}, false, {}, {{0, outputs.outputs[0].kv_transfer_params}})[0] ==
              expected));
  BOOST_TEST(decoder.num_external_hits() == num_tokens - 1);
  BOOST_TEST(decoder.num_failed() == 0u);
  wait_until_idle(prefiller);
  BOOST_TEST(prefiller.num_free_blocks() == num_free);
  BOOST_TEST(prefiller.connector<PeerKVConnector>().num_open() == 0u);
}

BOOST_AUTO_TEST_CASE(a_prompt_is_read_before_the_next_step_of_its_engine) {
  check_readable_at_once(40, 1);
  check_readable_at_once(300, 7);
}

BOOST_AUTO_TEST_CASE(what_the_next_step_may_tell_of_is_waited_for_as_long_as_a_step_takes) {
  const auto server = PeerServer::open({}, {}).value();
  const auto deadline = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(30); };
  const auto link =
      PeerLink::connect(server->endpoint(), nullptr, -1, std::chrono::seconds(30)).value();
  BOOST_REQUIRE(link->send({PeerHello{kPeerVersion, {}, false}}, deadline()).ok());
  const auto receive = [&] { return link->receive(deadline(), std::chrono::seconds(30)).value(); };
  BOOST_REQUIRE(std::get<PeerWelcome>(receive().body).error.empty());
  const auto read = [&] {
    BOOST_REQUIRE(link->send({PeerRead{.key = "a"}}, deadline()).ok());
    return std::get<PeerData>(receive().body);
  };
  server->begin_step();
  BOOST_TEST(read().pending);
  server->finish_step();
  BOOST_TEST(read().error == "the blocks of a are not held");
  server->hold({.key = "a"});
  BOOST_TEST((read() == PeerData{.checksum = xxh3_128(std::string_view())}));
  BOOST_REQUIRE(link->send({PeerRelease{"a"}}, deadline()).ok());
  // Its answer comes after the release has been read.
  BOOST_TEST(read().error.empty());
  BOOST_TEST(server->take_finished().size() == 1u);
  server->begin_step();
  BOOST_TEST(read().error == "the blocks of a are not held any more");
}

BOOST_AUTO_TEST_CASE(endpoints_come_back_as_they_were_written) {
  for (const PeerEndpoint& endpoint :
       {PeerEndpoint{.local = "a-b"}, PeerEndpoint{.local = "x", .host = "10.0.0.1", .port = 7},
        PeerEndpoint{.host = "::1", .port = 65535}})
    BOOST_TEST((parse_peer_endpoint(to_text(endpoint)).value() == endpoint));
  for (const char* text : {"", "|", "a|b", "a|:5", "a|b:0", "a|b:65536", "a|b:5x"})
    BOOST_TEST(!parse_peer_endpoint(text).ok(), text);
}

}  // namespace
}  // namespace troupe
