// What an engine is configured with.
#include "actors/engine_settings.hpp"

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "actors/server_settings.hpp"

namespace troupe {
namespace {

struct Setup {
  Options options;
  SamplingDefaults sampling;
  ModelLoaded model{
      .dtype = "bfloat16", .cpu_isa = "avx2", .max_model_len = 2048, .canonical_shards = 4};

  Setup() {
    options.model.model = TROUPE_SOURCE_DIR "/tools/demo_model/model";
    options.server.resume = true;
  }
  [[nodiscard]] std::string engine_name() const {
    return server_config(options, sampling, {}, model, {}).value().service.engine_name;
  }
};

BOOST_AUTO_TEST_CASE(a_worker_computes_on_the_device_of_its_node_or_else_on_that_of_the_options) {
  Options options;
  options.engine.device = "cpu";
  const LoadModel load{worker_options(options, {}), {{}, {.device = "cuda"}}};
  BOOST_TEST(load.options_of(0).device == "cpu");
  BOOST_TEST(load.options_of(1).device == "cuda");
  BOOST_TEST(load.options_of(1).parallel.rank == 1);
}

BOOST_AUTO_TEST_CASE(an_engine_that_could_answer_otherwise_has_another_name) {
  const std::filesystem::path copy =
      std::filesystem::temp_directory_path() / "troupe-settings-template.jinja";
  std::ofstream(copy) << "{{ messages }}";
  const std::vector<std::function<void(Setup&)>> changes = {
      [](Setup&) {},
      [](Setup& s) { s.options.engine.kv_cache_dtype = "int8"; },
      [](Setup& s) { s.options.model.quantization = "int8"; },
      [&](Setup& s) { s.options.model.chat_template = copy; },
      [](Setup& s) { s.options.model.chat_template_content_format = "string"; },
      [](Setup& s) { s.options.server.response_role = "bot"; },
      [](Setup& s) { s.model.dtype = "float32"; },
      [](Setup& s) { s.model.device = "cuda"; },
      [](Setup& s) { s.model.cpu_isa = "amx"; },
      [](Setup& s) { s.model.max_model_len = 1024; },
      [](Setup& s) { s.model.canonical_shards = 2; },
      [](Setup& s) { s.sampling.temperature = 0.5f; },
      [](Setup& s) { s.sampling.top_p = 0.5f; },
      [](Setup& s) { s.sampling.top_k = 5; },
      [](Setup& s) { s.sampling.min_p = 0.5f; },
      [](Setup& s) { s.sampling.repetition_penalty = 0.5f; },
      [](Setup& s) { s.sampling.max_new_tokens = 5; },
  };
  std::set<std::string> names;
  for (const auto& change : changes) {
    Setup setup;
    change(setup);
    names.insert(setup.engine_name());
    BOOST_TEST(setup.engine_name() == setup.engine_name());
  }
  BOOST_TEST(names.size() == changes.size());
  std::filesystem::remove(copy);
}

BOOST_AUTO_TEST_CASE(options_that_affect_latency_only_do_not_change_the_name) {
  Setup setup;
  const std::string name = setup.engine_name();
  setup.options.engine.max_num_seqs = 7;
  setup.options.engine.block_size = 32;
  setup.options.engine.tensor_parallel_size = 2;
  BOOST_TEST(setup.engine_name() == name);
}

BOOST_AUTO_TEST_CASE(a_model_with_do_sample_false_is_greedy_by_default) {
  const auto temperature = [](std::optional<bool> do_sample, const std::string& override_json = "",
                              const std::string& source = "auto") {
    GenerationConfig generation;
    generation.do_sample = do_sample;
    generation.temperature = 0.6f;
    ModelOptions options;
    options.generation_config = source;
    options.override_generation_config = override_json;
    return sampling_defaults(generation, options).value().temperature.value_or(-1);
  };
  BOOST_TEST(temperature(false) == 0);
  BOOST_TEST(temperature(true) == 0.6f);
  BOOST_TEST(temperature({}) == 0.6f);
  BOOST_TEST(temperature(false, "", "vllm") == -1);
  BOOST_TEST(temperature(false, R"({"temperature":0.9})") == 0.9f);
  BOOST_TEST(temperature(false, R"({"do_sample":true})") == 0.6f);
  BOOST_TEST(temperature(true, R"({"do_sample":false})") == 0);
  BOOST_TEST(temperature(false, R"({"top_k":5})") == 0);
  const auto demo = load_generation_config(TROUPE_SOURCE_DIR "/tools/demo_model/model");
  BOOST_TEST(sampling_defaults(demo.value(), {}).value().temperature.value_or(1) == 0);
}

BOOST_AUTO_TEST_CASE(a_draft_model_needs_a_row_per_request_and_space_for_its_drafts) {
  const KVCacheConfig cache{.groups = {{.spec = {.block_size = 16}, .layers = {0}}}};
  const auto speculative_of = [&](const std::string& json) {
    Setup setup;
    setup.options.engine.speculative_config = json;
    return scheduler_config(setup.options.engine, setup.model, cache).speculative;
  };
  const SpeculativeConfig model = speculative_of(R"({"model":"small","num_speculative_tokens":3})");
  BOOST_TEST(model.num_draft_tokens == 3);
  BOOST_TEST(model.num_lookahead_tokens == 3);
  BOOST_TEST(model.draft_slots == 1);
  const SpeculativeConfig ngram =
      speculative_of(R"({"method":"ngram","num_speculative_tokens":3})");
  BOOST_TEST(ngram.num_draft_tokens == 3);
  BOOST_TEST(ngram.num_lookahead_tokens == 0);
  BOOST_TEST(ngram.draft_slots == 0);
  const SpeculativeConfig head =
      speculative_of(R"({"method":"eagle","model":"head","num_speculative_tokens":3})");
  BOOST_TEST(head.num_draft_tokens == 3);
  BOOST_TEST(head.num_lookahead_tokens == 3);
  BOOST_TEST(head.num_prefill_lookahead == 1);
  BOOST_TEST(head.draft_slots == 0);
}

BOOST_AUTO_TEST_CASE(groups_with_layers_of_a_draft_head_compute_their_last_block_again) {
  Setup setup;
  const TokenShape token{.num_kv_heads = 2, .head_dim = 16, .dtype = DType::kF32};
  const KVCacheSpec full{.kind = FullAttentionSpec{token}, .block_size = 16};
  const KVCacheSpec sliding{.kind = SlidingWindowSpec{token, {.num_tokens = 32}}, .block_size = 16};
  setup.model.max_model_len = 64;
  setup.model.kv_cache_specs = {{0, sliding}, {1, full}, {2, full}};
  setup.model.num_draft_layers = 1;
  setup.options.engine.kv_cache_memory_bytes = 1 << 20;
  for (const bool has_head : {false, true}) {
    if (has_head)
      setup.options.engine.speculative_config =
          R"({"method":"eagle","model":"head","num_speculative_tokens":3})";
    const KVCacheConfig cache = kv_cache_config(setup.options, setup.model).value();
    const KVCacheSettings settings = kv_cache_settings(setup.options.engine, setup.model, cache);
    BOOST_TEST(settings.eagle_block_drop == has_head);
    BOOST_TEST(settings.num_prefill_lookahead == (has_head ? 1 : 0));
    for (const KVCacheGroup& group : cache.groups)
      BOOST_TEST(group.eagle == (has_head && std::ranges::count(group.layers, 2) == 1));
  }
}

BOOST_AUTO_TEST_CASE(steps_overlap_unless_their_drafts_are_looked_up) {
  const KVCacheConfig cache{.groups = {{.spec = {.block_size = 16}, .layers = {0}}}};
  const auto overlaps = [&](const std::string& json, bool async = true) {
    Setup setup;
    setup.options.engine.speculative_config = json;
    setup.options.engine.async_scheduling = async;
    return scheduler_config(setup.options.engine, setup.model, cache).async_scheduling;
  };
  constexpr auto kModel = R"({"model":"small","num_speculative_tokens":3})";
  BOOST_TEST(overlaps(""));
  BOOST_TEST(overlaps(kModel));
  BOOST_TEST(!overlaps(kModel, false));
  BOOST_TEST(!overlaps(R"({"method":"ngram","num_speculative_tokens":3})"));
  BOOST_TEST(overlaps(R"({"method":"mtp"})"));
  BOOST_TEST(overlaps(R"({"method":"mtp","adaptive":false})"));
}

BOOST_AUTO_TEST_CASE(a_chat_template_that_is_not_there_is_named) {
  Setup setup;
  setup.options.model.chat_template = "no-such-template";
  const auto config = server_config(setup.options, setup.sampling, {}, setup.model, {});
  BOOST_REQUIRE(!config.ok());
  BOOST_TEST(config.error().message.find("no-such-template") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_help_names_every_format_of_tool_calls_and_of_reasoning) {
  Options options;
  OptionSet set;
  bind_options(set, options);
  const auto help_of = [&](const std::string& name) {
    for (const OptionSet::Option& option : set.options())
      if (option.name == name) return option.help + ",";
    return std::string();
  };
  const auto has = [](const std::string& help, std::string_view name) {
    return help.find(" " + std::string(name) + ",") != std::string::npos;
  };
  for (const ToolFormat& format : tool_formats())
    BOOST_TEST(has(help_of("tool-call-parser"), format.name), format.name);
  for (const ReasoningFormat& format : reasoning_formats())
    BOOST_TEST(has(help_of("reasoning-parser"), format.name), format.name);
}

BOOST_AUTO_TEST_CASE(an_unknown_format_of_answers_is_an_error_with_its_name) {
  Setup setup;
  setup.options.server.tool_call_parser = "hermse";
  BOOST_TEST(answer_defaults(setup.options).error().message ==
             "tool-call-parser hermse is unknown");
  setup.options.server.tool_call_parser = "auto";
  BOOST_TEST(answer_defaults(setup.options).value().tools->name == "hermes");  // the demo model's
  setup.options.server.tool_strict_level = "parameter";
  BOOST_TEST((answer_defaults(setup.options).value().strict_level == ToolStrictLevel::kParameter));
  setup.options.server.tool_strict_level = "strict";
  BOOST_TEST(answer_defaults(setup.options).error().message ==
             "tool-strict-level strict is none of auto, function, parameter");
  setup.options.server.tool_strict_level = "function";
  setup.options.server.tool_call_parser = "functiongemma";
  BOOST_TEST(answer_defaults(setup.options).error().message ==
             "tool-strict-level function cannot be held with calls in the format functiongemma");
  setup.options.server.tool_call_parser = "none";
  BOOST_TEST(answer_defaults(setup.options).error().message ==
             "tool-strict-level function cannot be held with a model whose calls are not parsed");
  setup.options.server.tool_strict_level = "auto";
  setup.options.server.enable_auto_tool_choice = false;
  BOOST_TEST((answer_defaults(setup.options).value().tools == nullptr));
}

BOOST_AUTO_TEST_CASE(the_end_of_a_thinking_budget_must_end_the_reasoning) {
  Setup setup;
  const auto error = [&](const char* config) {
    setup.options.server.reasoning_config = config;
    return answer_defaults(setup.options).error().message;
  };
  const char* const good = R"({"reasoning_end_str":"Enough.</think>"})";
  BOOST_TEST(error(good) ==
             "reasoning-config: the model's reasoning is not parsed (reasoning-parser)");
  setup.options.server.reasoning_parser = "deepseek_r1";
  BOOST_TEST(answer_defaults(setup.options).value().budget_end == "Enough.</think>");
  BOOST_TEST(error(R"({"reasoning_end_str":"Enough."})") ==
             "reasoning-config: reasoning_end_str must have </think>, which ends the reasoning");
  BOOST_TEST(error(R"({"end":"x"})") ==
             "reasoning-config: end is not known, only reasoning_start_str and reasoning_end_str");
}

}  // namespace
}  // namespace troupe
