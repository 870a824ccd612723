#include "runtime/config/options.hpp"

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

#include "runtime/config/config_file.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/config/ec_manager_config.hpp"
#include "runtime/config/speculative_config.hpp"
#include "runtime/config/vllm_options.hpp"

namespace troupe {
namespace {

struct Loaded {
  Options options;
  OptionSet set;
  std::vector<ConfigEntry> caf_entries;
  Result<std::vector<std::string>> rest = std::vector<std::string>{};

  Loaded(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
    bind_options(set, options);
    rest = load_options(set, options, arguments, environment, caf_entries);
  }
};

/// A file that is gone when the test ends.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("troupe-options-test-" + std::to_string(getpid()) + ".conf")) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

BOOST_AUTO_TEST_CASE(a_variable_of_vllm_is_below_that_of_the_option) {
  const auto timeout_s = [](std::vector<std::string> environment) {
    Loaded loaded({}, std::move(environment));
    BOOST_REQUIRE(loaded.rest.ok());
    return loaded.options.media.image_fetch_timeout_s;
  };
  BOOST_TEST(timeout_s({}) == 5);
  BOOST_TEST(timeout_s({"VLLM_IMAGE_FETCH_TIMEOUT=0.5", "VLLM_OTHER=1", "=1"}) == 0.5);
  BOOST_TEST(timeout_s({"TROUPE_IMAGE_FETCH_TIMEOUT_S=7", "VLLM_IMAGE_FETCH_TIMEOUT=2"}) == 7);
  const auto keys = [](std::vector<std::string> environment) {
    return Loaded({}, std::move(environment)).options.server.api_key;
  };
  const Loaded others({}, {"VLLM_SERVER_DEV_MODE=1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
                           "VLLM_LOG_STATS_INTERVAL=2.5"});
  BOOST_REQUIRE(others.rest.ok());
  BOOST_TEST(
      (others.options.server.server_dev_mode && others.options.log.log_stats_interval_s == 2.5));
  BOOST_TEST(others.options.server.allow_runtime_lora_updating);
  BOOST_TEST((keys({"VLLM_API_KEY=k"}) == std::vector<std::string>{"k"}));
  BOOST_TEST(keys({"VLLM_API_KEY="}).empty());
  BOOST_TEST((keys({"TROUPE_API_KEY=a", "VLLM_API_KEY=b"}) == std::vector<std::string>{"a"}));
  const Loaded wrong({}, {"VLLM_IMAGE_FETCH_TIMEOUT=0"});
  BOOST_TEST(wrong.rest.error().message ==
             "VLLM_IMAGE_FETCH_TIMEOUT: image-fetch-timeout-s = '0': the smallest value allowed is "
             "0.001");
  BOOST_TEST(wrong.set.help().find("also the environment variable VLLM_IMAGE_FETCH_TIMEOUT") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(command_line_wins_over_environment_over_file) {
  const TemporaryFile file("[engine]\nmax-num-seqs=1\nblock-size=32\nwatermark=0.5\n");
  Loaded loaded({"--config-file", file.path(), "--max-num-seqs", "3", "model-folder"},
                {"TROUPE_MAX_NUM_SEQS=2", "TROUPE_BLOCK_SIZE=64", "HOME=/"});
  BOOST_REQUIRE(loaded.rest.ok());
  BOOST_TEST(loaded.rest->size() == 1u);
  BOOST_TEST(loaded.options.engine.max_num_seqs == 3);
  BOOST_TEST(loaded.options.engine.block_size == 64);
  BOOST_TEST(loaded.options.engine.watermark == 0.5);
  const std::string dump = loaded.set.dump();
  BOOST_TEST(dump.find("engine.watermark = 0.5") != std::string::npos);
  for (const OptionSet::Option& option : loaded.set.options()) {
    const bool given = option.name == "max-num-seqs" || option.name == "config-file";
    const OptionSource expected = given                         ? OptionSource::kCommandLine
                                  : option.name == "block-size" ? OptionSource::kEnvironment
                                  : option.name == "watermark"  ? OptionSource::kFile
                                                                : OptionSource::kDefault;
    BOOST_TEST((option.source == expected), option.name);
  }
}

BOOST_AUTO_TEST_CASE(some_options_have_a_short_form) {
  Loaded loaded({"-tp", "2", "-dp=3", "x", "--data_parallel_size", "4"});
  BOOST_REQUIRE(loaded.rest.ok());
  BOOST_TEST((*loaded.rest == std::vector<std::string>{"x"}));
  BOOST_TEST(loaded.options.engine.tensor_parallel_size == 2);
  BOOST_TEST(loaded.options.engine.data_parallel_size == 4);
  BOOST_TEST(Loaded({"-pp"}).rest.error().message == "--pipeline-parallel-size needs a value");
  BOOST_TEST(loaded.set.help().find("--data-parallel-size, -dp INT") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_unknown_key_is_an_error_that_names_it) {
  BOOST_TEST(
      Loaded({"--max-num-sequences", "3"}).rest.error().message.find("--max-num-sequences") !=
      std::string::npos);
  const TemporaryFile file("[engine]\n\nmax-seqs=1\n");
  const Error error = Loaded({"--config-file=" + file.path()}).rest.error();
  BOOST_TEST(error.message.find("engine.max-seqs") != std::string::npos);
  BOOST_TEST(error.message.find(":3:") != std::string::npos);
  const TemporaryFile misplaced("[server]\nmax-num-seqs=1\n");
  BOOST_TEST(Loaded({"--config-file", misplaced.path()})
                 .rest.error()
                 .message.find("engine.max-num-seqs") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(variables_that_name_no_option_are_noted_and_ignored) {
  // What Kubernetes sets for Services named troupe and troupe-supervisor, IPv6 included.
  Loaded loaded(
      {}, {"TROUPE_MAX_SEQS=2", "TROUPE_PORT=tcp://10.96.7.1:8000", "TROUPE_SERVICE_HOST=10.96.7.1",
           "TROUPE_SERVICE_PORT=8000", "TROUPE_SERVICE_PORT_HTTP=8000",
           "TROUPE_PORT_8000_TCP=tcp://10.96.7.1:8000", "TROUPE_PORT_8000_TCP_PROTO=tcp",
           "TROUPE_PORT_8000_TCP_PORT=8000", "TROUPE_PORT_8000_TCP_ADDR=10.96.7.1",
           "TROUPE_SUPERVISOR_PORT=udp://[fd00::1]:7700", "TROUPE_BLOCK_SIZE=32"});
  BOOST_REQUIRE(loaded.rest.ok());
  BOOST_TEST(loaded.options.server.port == 8000);
  BOOST_TEST(loaded.options.topology.supervisor_port == 0);
  BOOST_TEST(loaded.options.engine.block_size == 32);
  BOOST_REQUIRE(loaded.set.notes().size() == 2u);
  BOOST_TEST(loaded.set.notes()[0] ==
             "environment variable TROUPE_MAX_SEQS matches no option and is ignored, did you mean "
             "TROUPE_MAX_NUM_SEQS?");
  for (const char* name : {"TROUPE_PORT,", "TROUPE_SUPERVISOR_PORT", "TROUPE_SERVICE_PORT_HTTP",
                           "TROUPE_PORT_8000_TCP_ADDR", "enableServiceLinks"})
    BOOST_TEST(loaded.set.notes()[1].find(name) != std::string::npos, name);
  // Any other value is still what was configured.
  for (const char* variable : {"TROUPE_PORT=tcp", "TROUPE_PORT=", "TROUPE_MAX_NUM_SEQS=tcp://a:1"})
    BOOST_TEST(!Loaded({}, {variable}).rest.ok(), variable);
}

BOOST_AUTO_TEST_CASE(options_are_never_taken_for_values_or_models) {
  const auto message = [](std::vector<std::string> arguments) {
    const Loaded loaded(arguments);
    BOOST_REQUIRE(!loaded.rest.ok());
    return loaded.rest.error().message;
  };
  BOOST_TEST(message({"--api-key", "--port", "1"}) ==
             "--api-key needs a value, and '--port' looks like an option; if it is the value: "
             "--api-key=--port");
  BOOST_TEST(message({"--api-key", "--config-file", "f", "model"}).starts_with("--api-key needs"));
  BOOST_TEST(message({"--config-file", "--port"}).starts_with("--config-file needs a value"));
  BOOST_TEST(message({"--chat-template", "-v"}).starts_with("--chat-template needs a value"));
  BOOST_TEST(message({"-v"}).starts_with("unknown option '-v', did you mean --log-level debug"));
  BOOST_TEST(message({"-m", "path"}).starts_with("unknown option '-m', did you mean --model"));
  BOOST_TEST(message({"-x"}) == "unknown option '-x'");
  for (const char* odd : {"---", "--", "--=", "--=5", "-="}) {
    const Loaded loaded({odd});
    BOOST_TEST(loaded.rest.ok() == (std::string(odd) == "--"), odd);
  }
  Loaded loaded({"--api-key=--port", "--seed", "-5", "--", "-m"});
  BOOST_REQUIRE(loaded.rest.ok());
  BOOST_TEST((loaded.options.server.api_key == std::vector<std::string>{"--port"}));
  BOOST_TEST(loaded.options.model.seed == -5);
  BOOST_TEST((*loaded.rest == std::vector<std::string>{"-m"}));
}

BOOST_AUTO_TEST_CASE(adapters_are_named_in_several_words_or_several_times) {
  const std::vector<std::string> expected = {"a=/x", "{\"name\": \"b\"}", "c=/z"};
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"model", "--enable-lora", "--lora-modules", "a=/x",
                                 "{\"name\": \"b\"}", "c=/z", "--seed", "1"},
        {"--lora-modules", "a=/x", "{\"name\": \"b\"}", "--lora-modules=c=/z", "model"}}) {
    const Loaded loaded(arguments);
    BOOST_REQUIRE(loaded.rest.ok());
    BOOST_CHECK(loaded.options.engine.lora_modules == expected);
    BOOST_TEST((*loaded.rest == std::vector<std::string>{"model"}));
  }
}

BOOST_AUTO_TEST_CASE(an_unknown_option_gets_a_suggestion) {
  for (const auto& [written, meant] : std::vector<std::pair<std::string, std::string>>{
           {"--prot", "--port"},
           {"-port", "--port"},
           {"--max-seqs", "--max-num-seqs"},
           {"--max_num_sequences", "--max-num-seqs"},
           {"--max-modellen", "--max-model-len"},
           {"--no-prefix-caching", "--no-enable-prefix-caching"},
           {"--tensor-parallel", "--tensor-parallel-size"},
           {"--apikey", "--api-key"}}) {
    const Loaded loaded({written, "4"});
    BOOST_REQUIRE(!loaded.rest.ok());
    BOOST_TEST(loaded.rest.error().message ==
               "unknown option '" + written + "', did you mean " + meant + "?");
  }
  BOOST_TEST(Loaded({"--teapot"}).rest.error().message == "unknown option '--teapot'");
  const TemporaryFile file("[engine]\nmax-seqs=1\n");
  BOOST_TEST(
      Loaded({"--config-file=" + file.path()})
          .rest.error()
          .message.ends_with("unknown key 'engine.max-seqs', did you mean 'engine.max-num-seqs'?"));
}

BOOST_AUTO_TEST_CASE(options_of_vllm_without_a_meaning_here_are_noted_and_others_refused) {
  Loaded loaded({"--trust-remote-code", "model", "--swap-space", "4", "--enforce-eager",
                 "--no-enable-log-requests", "--tokenizer_mode=auto", "-O3", "-cc.mode", "3",
                 "--compilation-config", "{}"});
  BOOST_REQUIRE(loaded.rest.ok());
  BOOST_TEST((*loaded.rest == std::vector<std::string>{"model"}));
  BOOST_REQUIRE(loaded.set.notes().size() == 8u);
  BOOST_TEST(loaded.set.notes()[0] ==
             "--trust-remote-code has no effect: custom code is not supported");
  const auto refused = [](std::vector<std::string> arguments) {
    const Loaded refusing(arguments);
    return refusing.rest.ok() ? "" : refusing.rest.error().message;
  };
  // What would change answers, or what clients meet.
  BOOST_TEST(refused({"--tool-parser-plugin", "a.py"})
                 .starts_with("--tool-parser-plugin is a vLLM option"));
  BOOST_TEST(refused({"--tokenizer-mode", "mistral"})
                 .starts_with("--tokenizer-mode = 'mistral' is not supported"));
  BOOST_TEST(refused({"--swap-space"}) == "--swap-space needs a value");
  BOOST_TEST(refused({"--swap-space", "--port"}) == "--swap-space needs a value");
  for (const VllmOption& option : vllm_options()) {
    for (const OptionSet::Option& own : loaded.set.options())
      BOOST_TEST(own.name != option.name, "both tables have " << option.name);
  }
}

BOOST_AUTO_TEST_CASE(every_option_of_vllm_is_an_option_is_noted_or_is_refused_with_a_reason) {
  std::ifstream names(TROUPE_GOLDEN_DIR "/vllm_serve_options.txt");  // of vLLM 0.32
  std::size_t count = 0;
  const OptionSet own = Loaded({}).set;
  for (std::string name; std::getline(names, name); ++count) {
    const std::string_view bare = std::string_view(name).substr(2);
    const bool is_own = std::ranges::any_of(
        own.options(), [&](const OptionSet::Option& option) { return option.name == bare; });
    BOOST_TEST((is_own || find_vllm_option(bare) != nullptr || bare.starts_with("no-")), name);
  }
  BOOST_TEST(count > 300u);
  for (const char* given : {"-q=int8", "-sc={\"method\":\"ngram\"}", "-ep", "-tp=2"})
    BOOST_TEST(Loaded({given}).rest.ok(), given);
  // What is the same here is accepted, what is not is refused.
  const auto message = [](std::vector<std::string> arguments) {
    const Loaded loaded(arguments);
    return loaded.rest.ok() ? loaded.set.notes().at(0) : loaded.rest.error().message;
  };
  const std::string option = "--structured-outputs-config";
  BOOST_TEST(
      message({option, R"({"backend": "xgrammar"})"}).starts_with(option + " has no effect"));
  BOOST_TEST(message({option + ".backend", "guidance"}).starts_with(option + ".backend has no"));
  BOOST_TEST(message({option, R"({"enable_in_reasoning":true})"}).find("is not supported") !=
             std::string::npos);
  BOOST_TEST(message({option + ".disable_any_whitespace", "true"}).find("is not supported") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(options_of_vllm_that_take_several_values_take_all_that_follow) {
  for (const char* option :
       {"--cuda-graph-sizes", "--cudagraph-capture-sizes", "--ignore-patterns"}) {
    Loaded loaded({"model", option, "1", "2", "4", "--port", "1234"});
    BOOST_REQUIRE(loaded.rest.ok());
    BOOST_TEST((*loaded.rest == std::vector<std::string>{"model"}), option);
    BOOST_TEST(loaded.options.server.port == 1234);
    BOOST_TEST(loaded.set.notes().size() == 1u);
    BOOST_TEST(Loaded({option}).rest.error().message == std::string(option) + " needs a value");
    // What `=` joins is the whole of it, and `--` ends the values.
    const Loaded joined({std::string(option) + "=1", "model"});
    BOOST_TEST((*joined.rest == std::vector<std::string>{"model"}), option);
    const Loaded ended({option, "1", "2", "--", "model"});
    BOOST_TEST((*ended.rest == std::vector<std::string>{"model"}), option);
  }
  // An option of one value leaves the next word alone.
  BOOST_TEST((*Loaded({"--swap-space", "4", "model"}).rest == std::vector<std::string>{"model"}));
}

BOOST_AUTO_TEST_CASE(help_has_a_short_and_a_long_form) {
  Loaded loaded({});
  const std::string all = loaded.set.help(), usual = loaded.set.help(false);
  BOOST_TEST(std::count(usual.begin(), usual.end(), '\n') < 60);
  BOOST_TEST(usual.find("--max-model-len") != std::string::npos);
  BOOST_TEST(usual.find("--watermark") == std::string::npos);
  for (const OptionSet::Option& option : loaded.set.options())
    BOOST_TEST(all.find("  --" + option.name) != std::string::npos, option.name);
  for (std::size_t start = 0; start < all.size();) {
    const std::size_t end = all.find('\n', start);
    BOOST_TEST(end - start <= 100u, all.substr(start, end - start));
    start = end + 1;
  }
}

BOOST_AUTO_TEST_CASE(a_wrong_type_or_range_is_an_error_that_names_value_and_limit) {
  const auto message = [](std::vector<std::string> arguments) {
    return Loaded(arguments).rest.error().message;
  };
  BOOST_TEST(message({"--port", "eighty"}).find("'eighty': expected an integer") !=
             std::string::npos);
  BOOST_TEST(message({"--port", "65536"}).find("largest value allowed is 65535") !=
             std::string::npos);
  BOOST_TEST(message({"--dtype", "int3"}).find("auto, bfloat16, float16, float32") !=
             std::string::npos);
  BOOST_TEST(message({"--watermark", "nan"}).find("expected a number") != std::string::npos);
  BOOST_TEST(message({"--enable-prefix-caching=maybe"}).find("true or false") != std::string::npos);
  BOOST_TEST(message({"--port"}).find("needs a value") != std::string::npos);
  BOOST_TEST(message({"--max-body-bytes", "99999999999999999999"}).find("64 bits") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(numbers_may_carry_a_unit_and_flags_a_no) {
  Loaded loaded({"--max-model-len", "8k", "--max-body-bytes=2M", "--no-enable-prefix-caching",
                 "--api-key", "a", "--api-key", "b"},
                {"TROUPE_API_KEY=weaker"});
  BOOST_REQUIRE(loaded.rest.ok());
  BOOST_TEST(loaded.options.model.max_model_len == 8000);
  for (const char* text : {"auto", "-1"}) {
    const Loaded fitted({"--max-model-len", text});
    BOOST_TEST(fitted.rest.ok());
    BOOST_TEST(fitted.options.model.max_model_len == -1);
  }
  BOOST_TEST(loaded.options.server.max_body_bytes == 2 << 20);
  BOOST_TEST(!loaded.options.engine.enable_prefix_caching);
  BOOST_TEST((loaded.options.server.api_key == std::vector<std::string>{"a", "b"}));
}

BOOST_AUTO_TEST_CASE(caf_sections_are_handed_on) {
  const TemporaryFile file(
      "[scheduler]\npolicy='sharing' ; as measured\n[server]\napi-key=[\"k1\",\n \"k2\"]\n");
  Loaded loaded({"--config-file", file.path()});
  BOOST_REQUIRE(loaded.rest.ok());
  BOOST_REQUIRE(loaded.caf_entries.size() == 1u);
  BOOST_TEST(loaded.caf_entries[0].value == "sharing");
  BOOST_TEST((loaded.options.server.api_key == std::vector<std::string>{"k1", "k2"}));
}

BOOST_AUTO_TEST_CASE(syntax_errors_of_the_file_are_reported_with_their_line) {
  for (const char* text :
       {"key=1", "[engine", "[engine]\nblock-size", "[engine]\nblock-size=many",
        "[model]\nmodel=\"open", "[model]\nmodel=\"a\" b", "[server]\napi-key=[\"a\" \"b\"]"}) {
    const auto parsed = parse_config(text, "f.conf");
    BOOST_TEST(!parsed.ok(), text);
    if (!parsed.ok()) BOOST_TEST(parsed.error().message.starts_with("f.conf:"));
  }
}

BOOST_AUTO_TEST_CASE(options_that_contradict_each_other_are_refused) {
  Options options;
  options.engine.max_num_batched_tokens = 16;
  options.engine.max_num_seqs = 17;
  BOOST_TEST(validate(options).error().message ==
             "max-num-batched-tokens is 16, it must be at least max-num-seqs, 17");
  options = {};
  options.engine.enable_priority_preemption = true;
  BOOST_TEST(validate(options).error().message ==
             "enable-priority-preemption needs scheduling-policy priority, it is fcfs");
  options = {};
  options.server.api_key = {"one", ""};
  BOOST_TEST(validate(options).error().message ==
             "api-key is empty; a server without keys has no such option");
  options = {};
  options.engine.speculative_config = R"({"method":"ngram","num_speculative_tokens":2})";
  BOOST_TEST(validate(options).ok());
  options.engine.pipeline_parallel_size = options.engine.tensor_parallel_size = 2;
  BOOST_TEST(validate(options).ok());
  options.engine.speculative_config = R"({"model":"small","num_speculative_tokens":2})";
  BOOST_TEST(validate(options).ok());
  options.engine.max_num_seqs = options.engine.max_num_batched_tokens = 1;
  BOOST_TEST(validate(options).error().message ==
             "max-num-batched-tokens is 1, with a draft model it must be at least 2");
  options.engine.speculative_config =
      R"({"method":"eagle","model":"head","num_speculative_tokens":2})";
  BOOST_TEST(validate(options).ok());
}

BOOST_AUTO_TEST_CASE(speculative_config_has_the_defaults_of_vllm_and_refuses_the_rest_by_name) {
  const auto parse = [](const std::string& rest) {
    return parse_speculative_config(R"({"method":"ngram","num_speculative_tokens":4)" + rest + "}",
                                    2);
  };
  BOOST_TEST(parse_speculative_config("", 2).value().num_draft_tokens == 0);
  const auto lookup = [&](const std::string& rest) {
    const SpeculativeDecoding config = parse(rest).value();
    BOOST_TEST(config.num_draft_tokens == 4);
    return std::pair(config.prompt_lookup_min, config.prompt_lookup_max);
  };
  BOOST_TEST((lookup("") == std::pair(5, 5)));
  BOOST_TEST((lookup(R"(,"prompt_lookup_max":3)") == std::pair(3, 3)));
  BOOST_TEST((lookup(R"(,"prompt_lookup_min":2)") == std::pair(2, 2)));
  BOOST_TEST((lookup(R"(,"prompt_lookup_min":2,"prompt_lookup_max":4)") == std::pair(2, 4)));
  const auto refuses = [](const std::string& json, const std::string& with) {
    const auto parsed = parse_speculative_config(json, 2);
    BOOST_REQUIRE(!parsed.ok());
    BOOST_TEST(parsed.error().message.find(with) != std::string::npos, parsed.error().message);
  };
  refuses("[]", "not a JSON object");
  const auto drafted =
      parse_speculative_config(R"({"model":"small","num_speculative_tokens":3})", 2).value();
  BOOST_TEST(drafted.draft_model == "small");
  BOOST_TEST(drafted.num_draft_tokens == 3);
  BOOST_TEST(drafted.draft_quantization == "auto");
  const auto as_for_vllm =
      parse_speculative_config(
          R"({"model":"small","num_speculative_tokens":3,"draft_tensor_parallel_size":1,
              "quantization":"awq","max_model_len":4096,"enforce_eager":true,"revision":null})",
          2)
          .value();
  BOOST_TEST(as_for_vllm.draft_quantization == "awq");
  BOOST_TEST(as_for_vllm.draft_max_model_len == 4096);
  BOOST_TEST(parse(R"(,"draft_tensor_parallel_size":2)").ok());
  refuses(R"({"model":"small","num_speculative_tokens":4,"draft_tensor_parallel_size":4})",
          "draft_tensor_parallel_size must be 1 or tensor-parallel-size, 2, it is 4");
  refuses(R"({"model":"small","num_speculative_tokens":4,"max_model_len":0})",
          "max_model_len must");
  refuses(R"({"model":"small","num_speculative_tokens":4,"quantization":8})", "quantization must");
  refuses(R"({"model":"small","num_speculative_tokens":4,"enforce_eager":1})",
          "enforce_eager must");
  refuses(R"({"method":"ngram","num_speculative_tokens":4,"quantization":"awq"})",
          "quantization is valid for drafts of a model or a head only");
  refuses(R"({"num_speculative_tokens":4})", "method is missing");
  refuses(R"({"method":"draft_model","num_speculative_tokens":4})", "model is required by method");
  refuses(R"({"method":"ngram","model":"small","num_speculative_tokens":4})",
          "model is not valid for method");
  refuses(R"({"model":"small","num_speculative_tokens":4,"prompt_lookup_max":2})",
          "prompt_lookup_max is valid for method");
  refuses(R"({"method":"ngram"})", "num_speculative_tokens is missing");
  const auto suffix = parse_speculative_config(R"({"method":"suffix"})", 1).value();
  BOOST_TEST(suffix.num_draft_tokens == 24);
  BOOST_TEST(suffix.suffix_max_depth == 24);
  BOOST_TEST(suffix.suffix_max_cached_requests == 10000);
  BOOST_TEST(suffix.suffix_min_token_prob == 0.1);
  BOOST_TEST(suffix.adaptive);
  const auto deep = parse_speculative_config(
                        R"({"method":"suffix","num_speculative_tokens":8,"adaptive":false,
                            "suffix_decoding_max_tree_depth":64,
                            "suffix_decoding_max_cached_requests":0})",
                        1)
                        .value();
  BOOST_TEST(deep.num_draft_tokens == 8);
  BOOST_TEST(deep.suffix_max_depth == 64);
  BOOST_TEST(deep.suffix_max_cached_requests == 0);
  BOOST_TEST(!deep.adaptive);
  refuses(R"({"method":"suffix","suffix_decoding_min_token_prob":1.5})", "from 0 to 1, it is 1.5");
  refuses(R"({"method":"suffix","model":"small"})", "model is not valid for method \"suffix\"");
  refuses(R"({"method":"ngram","num_speculative_tokens":4,"suffix_decoding_max_tree_depth":3})",
          "is valid for method \"suffix\" only");
  refuses(R"({"method":"medusa","num_speculative_tokens":4})",
          "must be one of \"ngram\", \"suffix\", \"draft_model\", \"eagle\", \"eagle3\", \"mtp\", "
          "\"deepseek_mtp\", it is \"medusa\"");
  refuses(R"({"method":"ngram","num_speculative_tokens":129})", "from 1 to 128, it is 129");
  refuses(R"({"method":"ngram","num_speculative_tokens":4,"draft_size":1})",
          "draft_size is unknown");
  refuses(R"({"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":5,
              "prompt_lookup_max":4})",
          "must be at most prompt_lookup_max, 4");
}

BOOST_AUTO_TEST_CASE(draft_heads_are_named_by_their_method) {
  const auto head = parse_speculative_config(
                        R"({"method":"eagle","model":"head","num_speculative_tokens":4,
                            "draft_tensor_parallel_size":2,"adaptive":false})",
                        2)
                        .value();
  BOOST_TEST((head.draft_head == DraftHeadKind::kEagle));
  BOOST_TEST(head.draft_model == "head");
  BOOST_TEST(!head.adaptive);
  const auto third = parse_speculative_config(
      R"({"method":"eagle3","model":"head","num_speculative_tokens":4})", 1);
  BOOST_TEST((third.value().draft_head == DraftHeadKind::kEagle3));
  BOOST_TEST(third.value().adaptive);
  for (const char* method : {"mtp", "deepseek_mtp"}) {
    const auto mtp = parse_speculative_config(R"({"method":")" + std::string(method) + "\"}", 1);
    BOOST_TEST((mtp.value().draft_head == DraftHeadKind::kMtp));
    BOOST_TEST(mtp.value().num_draft_tokens == 1);
    BOOST_TEST(mtp.value().has_draft_layers());
  }
  const auto refuses = [](const std::string& json, const std::string& with) {
    const auto parsed = parse_speculative_config(json, 1);
    BOOST_REQUIRE(!parsed.ok());
    BOOST_TEST(parsed.error().message.find(with) != std::string::npos, parsed.error().message);
  };
  refuses(R"({"method":"eagle","num_speculative_tokens":4})",
          "model is required by method \"eagle\"");
  refuses(R"({"method":"eagle3","model":"head"})", "num_speculative_tokens is missing");
  refuses(R"({"method":"mtp","model":"head"})", "model is not valid for method \"mtp\"");
  refuses(R"({"method":"eagle","model":"head","num_speculative_tokens":4,"prompt_lookup_max":2})",
          "prompt_lookup_max is valid for method \"ngram\" only");
}

BOOST_AUTO_TEST_CASE(ec_transfer_config_has_the_keys_of_vllm_and_refuses_the_rest_by_name) {
  BOOST_TEST(!parse_connector_config(ConnectorKind::kEC, "").value().is_enabled());
  const ConnectorConfig usual =
      parse_connector_config(ConnectorKind::kEC, R"({"ec_connector":"C","ec_role":"ec_both"})")
          .value();
  BOOST_TEST(usual.is_enabled());
  BOOST_TEST((usual.is_producer() && usual.is_consumer()));
  BOOST_TEST(usual.buffer_size == 1'000'000'000);
  BOOST_TEST(usual.port == 14579);
  BOOST_TEST(usual.extra_config == "{}");
  const ConnectorConfig all =
      parse_connector_config(ConnectorKind::kEC,
                             R"({"ec_connector":"C","engine_id":"e","ec_role":"ec_producer",
              "ec_buffer_device":"cuda","ec_buffer_size":1e6,"ec_rank":1,"ec_parallel_size":2,
              "ec_ip":"10.0.0.1","ec_port":15000,"ec_connector_extra_config":{"pool":"p"},
              "ec_connector_module_path":"x.so"})")
          .value();
  BOOST_TEST((all.is_producer() && !all.is_consumer()));
  BOOST_TEST(all.engine_id == "e");
  BOOST_TEST(all.buffer_device == "cuda");
  BOOST_TEST(all.buffer_size == 1'000'000);
  BOOST_TEST(all.rank == 1);
  BOOST_TEST(all.parallel_size == 2);
  BOOST_TEST(all.ip == "10.0.0.1");
  BOOST_TEST(all.port == 15000);
  BOOST_TEST(all.extra_config == R"({"pool":"p"})");
  BOOST_TEST(all.module_path == "x.so");
  const auto refuses = [](const std::string& rest, const std::string& with) {
    Options options;
    options.engine.ec_transfer_config =
        R"({"ec_connector":"C","ec_role":"ec_consumer")" + rest + "}";
    const auto valid = validate(options);
    BOOST_REQUIRE(!valid.ok());
    BOOST_TEST(valid.error().message == "ec-transfer-config: " + with);
  };
  refuses(R"(,"ec_size":1)", "ec_size is unknown");
  refuses(R"(,"ec_role":"kv_both")",
          "ec_role must be \"ec_producer\", \"ec_consumer\" or \"ec_both\", it is \"kv_both\"");
  refuses(R"(,"ec_buffer_size":0)",
          "ec_buffer_size must be an integer from 1 to 1125899906842624, it is 0");
  refuses(R"(,"ec_buffer_size":1.5)",
          "ec_buffer_size must be an integer from 1 to 1125899906842624, it is 1.5");
  refuses(R"(,"ec_port":70000)", "ec_port must be an integer from 1 to 65535, it is 70000");
  refuses(R"(,"ec_buffer_device":"tpu")",
          "ec_buffer_device must be \"cpu\" or \"cuda\", it is \"tpu\"");
  refuses(R"(,"ec_connector_extra_config":"x")",
          "ec_connector_extra_config must be a JSON object, it is \"x\"");
  refuses(R"(,"ec_ip":"")", "ec_ip must be a string that is not empty, it is \"\"");
  refuses(R"(,"ec_rank":1)", "ec_rank is 1, it must be less than ec_parallel_size, 1");
  refuses(R"(,"ec_connector":null)", "ec_connector is missing");
  refuses(R"(,"ec_role":null)",
          "ec_role is missing, expected \"ec_producer\", \"ec_consumer\" or \"ec_both\"");
  BOOST_TEST(!parse_connector_config(ConnectorKind::kEC, "[1]").ok());
}

BOOST_AUTO_TEST_CASE(ec_manager_config_has_the_keys_of_vllm_and_refuses_the_rest_by_name) {
  BOOST_TEST(parse_ec_manager_config("").value().empty());
  BOOST_TEST(parse_ec_manager_config("{}").value().empty());
  BOOST_TEST(parse_ec_manager_config(R"({"encoder_cache_manager_cls":null})").value().empty());
  BOOST_TEST(parse_ec_manager_config(R"({"encoder_cache_manager_cls":"A.B","manager_config":{}})")
                 .value() == "A.B");
  BOOST_TEST(
      parse_ec_manager_config(
          R"({"encoder_cache_manager_cls":"vllm.v1.core.encoder_cache_manager.EncoderCacheManager"})")
          .value() == "EncoderCacheManager");
  for (const auto& [text, with] :
       {std::pair("[]", "it must be a JSON object, it is []"),
        std::pair(R"({"encoder_cache_manager_cls":1})",
                  "encoder_cache_manager_cls must be a name, it is 1"),
        std::pair(R"({"manager":"a"})",
                  "manager is not known, it has encoder_cache_manager_cls and manager_config"),
        std::pair(R"({"manager_config":[]})", "manager_config must be a JSON object, it is []"),
        std::pair(R"({"manager_config":{"watermark":0.2}})",
                  "manager_config.watermark is not known, no manager has fields of its own")}) {
    Options options;
    options.model.model = "m";
    options.engine.ec_manager_config = text;
    const auto valid = validate(options);
    BOOST_REQUIRE(!valid.ok());
    BOOST_TEST(valid.error().message == std::string("ec-manager-config: ") + with);
  }
}

BOOST_AUTO_TEST_CASE(kv_transfer_config_has_the_keys_of_vllm_and_refuses_the_rest_by_name) {
  BOOST_TEST(!parse_connector_config(ConnectorKind::kKV, "").value().is_enabled());
  const ConnectorConfig usual =
      parse_connector_config(ConnectorKind::kKV, R"({"kv_connector":"C","kv_role":"kv_both"})")
          .value();
  BOOST_TEST(usual.is_enabled());
  BOOST_TEST((usual.is_producer() && usual.is_consumer() && usual.recompute_failed_loads));
  BOOST_TEST(usual.buffer_size == 1'000'000'000);
  BOOST_TEST(usual.port == 14579);
  BOOST_TEST(usual.extra_config == "{}");
  const ConnectorConfig all =
      parse_connector_config(ConnectorKind::kKV,
                             R"({"kv_connector":"C","engine_id":"e","kv_role":"kv_producer",
              "kv_buffer_device":"cuda","kv_buffer_size":1e6,"kv_rank":1,"kv_parallel_size":2,
              "kv_ip":"10.0.0.1","kv_port":15000,"kv_connector_extra_config":{"pool":"p"},
              "kv_load_failure_policy":"fail","enable_permute_local_kv":false,
              "kv_connector_module_path":"x.so"})")
          .value();
  BOOST_TEST((all.is_producer() && !all.is_consumer() && !all.recompute_failed_loads));
  BOOST_TEST(all.engine_id == "e");
  BOOST_TEST(all.buffer_device == "cuda");
  BOOST_TEST(all.buffer_size == 1'000'000);
  BOOST_TEST(all.rank == 1);
  BOOST_TEST(all.parallel_size == 2);
  BOOST_TEST(all.ip == "10.0.0.1");
  BOOST_TEST(all.port == 15000);
  BOOST_TEST(all.extra_config == R"({"pool":"p"})");
  BOOST_TEST(all.module_path == "x.so");
  const auto refuses = [](const std::string& rest, const std::string& with) {
    Options options;
    options.engine.kv_transfer_config =
        R"({"kv_connector":"C","kv_role":"kv_consumer")" + rest + "}";
    const auto valid = validate(options);
    BOOST_REQUIRE(!valid.ok());
    BOOST_TEST(valid.error().message == "kv-transfer-config: " + with);
  };
  refuses(R"(,"kv_size":1)", "kv_size is unknown");
  refuses(R"(,"kv_role":"ec_both")",
          "kv_role must be \"kv_producer\", \"kv_consumer\" or \"kv_both\", it is \"ec_both\"");
  refuses(R"(,"kv_load_failure_policy":"retry")",
          "kv_load_failure_policy must be \"recompute\" or \"fail\", it is \"retry\"");
  refuses(R"(,"kv_buffer_size":0)",
          "kv_buffer_size must be an integer from 1 to 1125899906842624, it is 0");
  refuses(R"(,"kv_port":70000)", "kv_port must be an integer from 1 to 65535, it is 70000");
  refuses(R"(,"kv_buffer_device":"tpu")",
          "kv_buffer_device must be \"cpu\" or \"cuda\", it is \"tpu\"");
  refuses(R"(,"enable_permute_local_kv":true)",
          "enable_permute_local_kv must be false, it is true");
  refuses(R"(,"kv_connector_extra_config":"x")",
          "kv_connector_extra_config must be a JSON object, it is \"x\"");
  refuses(R"(,"kv_ip":"")", "kv_ip must be a string that is not empty, it is \"\"");
  refuses(R"(,"kv_rank":1)", "kv_rank is 1, it must be less than kv_parallel_size, 1");
  refuses(R"(,"kv_connector":null)", "kv_connector is missing");
  refuses(R"(,"kv_role":null)",
          "kv_role is missing, expected \"kv_producer\", \"kv_consumer\" or \"kv_both\"");
  BOOST_TEST(!parse_connector_config(ConnectorKind::kKV, "[1]").ok());
  Options uncached;
  uncached.engine.enable_prefix_caching = false;
  uncached.engine.kv_transfer_config = R"({"kv_connector":"C","kv_role":"kv_both"})";
  BOOST_TEST(!validate(uncached).ok());
}

}  // namespace
}  // namespace troupe
