// troupe bench serve: a client that puts load on any OpenAI server.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "runtime/base/ordered_json.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tools/bench.hpp"
#include "tools/bench/openai_client.hpp"
#include "tools/bench/report.hpp"
#include "tools/progress.hpp"

namespace troupe::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBenchServeUsage =
    "usage: troupe bench serve [options]\n\n"
    "Sends streaming requests to an OpenAI server and prints TTFT, TPOT, ITL and throughput.\n"
    "Prompts are read from a dataset, a file of lines {\"prompt\": \"text\", \"output_tokens\": "
    "64}, or\n"
    "random: token ids if --tokenizer names the model's folder, else words of about one token.\n"
    "Without --api-key, the key is read from OPENAI_API_KEY.\n";

constexpr std::string_view kCompletionsPath = "/v1/completions";
constexpr std::string_view kChatPath = "/v1/chat/completions";
constexpr double kModelsTimeoutS = 30;

struct ServeOptions {
  std::string base_url, host = "127.0.0.1", endpoint{kCompletionsPath}, model, tokenizer, api_key;
  std::int64_t port = 8000;
  RandomPromptOptions random;
  std::string dataset;
  std::string request_rate = "inf";
  double burstiness = 1;
  std::int64_t max_concurrency = 0;
  bool ignore_eos = false;
  double temperature = 0;
  std::int64_t seed = 0;
  std::string percentile_metrics = "ttft,tpot,itl", metric_percentiles = "99";
  std::vector<std::string> goodput;
  std::string output_json;
};

void bind(OptionSet& set, ServeOptions& options) {
  RandomPromptOptions& random = options.random;
  set.section("server")
      .add("base-url", options.base_url, "http[s]://host:port/path; default: from host and port")
      .add("host", options.host, "host name or address of the server")
      .add("port", options.port, "port", 1, 65535)
      .add("endpoint", options.endpoint, "path of the API",
           {std::string(kCompletionsPath), std::string(kChatPath)})
      .add("model", options.model,
           "model name in the API; default: the first that the server lists")
      .add("api-key", options.api_key, "API key, sent as a bearer token");
  set.section("load")
      .add("num-prompts", random.num_prompts,
           "number of requests; with a dataset, its first prompts", 1, 1 << 24)
      .add("request-rate", options.request_rate, "requests per second; inf: all at once")
      .add("burstiness", options.burstiness,
           "shape of the inter-arrival times; 1: Poisson, smaller: bursts", 1e-3, 1e6)
      .add("max-concurrency", options.max_concurrency,
           "maximum number of concurrent requests; 0: no limit", 0, 1 << 20)
      .add("dataset", options.dataset, "JSON lines file with prompts; default: random prompts")
      .add("tokenizer", options.tokenizer, "the model's folder, for random prompts of exact length")
      .add("random-input-len", random.input_len, "tokens of a random prompt", 1, 1 << 20)
      .add("random-output-len", random.output_len, "maximum tokens of a response", 1, 1 << 20)
      .add("random-prefix-len", random.prefix_len,
           "length of a common prefix of all prompts, in addition", 0, 1 << 20)
      .add("random-range-ratio", random.range_ratio, "relative variation of random lengths", 0,
           0.999)
      .add("ignore-eos", options.ignore_eos, "generate the full output length (vLLM, Troupe)")
      .add("temperature", options.temperature, "sampling temperature", 0, 100)
      .add("seed", options.seed, "seed of prompts and arrival times", 0);
  set.section("report")
      .add("percentile-metrics", options.percentile_metrics,
           "metrics to report: ttft, tpot, itl, e2el")
      .add("metric-percentiles", options.metric_percentiles,
           "percentiles to report, as in 50,90,99")
      .add("goodput", options.goodput, "service level in ms for goodput: ttft:200, tpot:50")
      .add("output-json", options.output_json, "file for the result as JSON");
}

/// Reads the command line into `options`, which are bound; words after `--goodput ttft:200` are
/// further service levels.
Result<void> read_options(OptionSet& set, ServeOptions& options, Arguments arguments) {
  ASSIGN_OR_RETURN(const OptionSet::CommandLineArguments given, set.parse_command_line(arguments));
  RETURN_IF_ERROR(set.apply(given.assignments));
  for (const std::string& note : set.notes()) log_warning(note);
  for (const std::string& word : given.positionals) {
    if (options.goodput.empty() || word.find(':') == std::string::npos) {
      return invalid_argument("unexpected argument '" + word + "'");
    }
    options.goodput.push_back(word);
  }
  options.random.seed = static_cast<std::uint64_t>(options.seed);
  if (options.api_key.empty()) {
    if (const char* key = std::getenv("OPENAI_API_KEY")) options.api_key = key;
  }
  return {};
}

Result<ServingSetup> make_setup(const ServeOptions& options) {
  ServingSetup setup;
  ASSIGN_OR_RETURN(setup.shown, parse_metrics(options.percentile_metrics));
  ASSIGN_OR_RETURN(setup.percents, parse_percents(options.metric_percentiles));
  for (const std::string& text : options.goodput) {
    ASSIGN_OR_RETURN(const ServiceLevel level, parse_service_level(text));
    setup.service_levels.push_back(level);
  }
  if (options.request_rate != "inf") {
    const std::string& text = options.request_rate;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, setup.request_rate);
    if (error != std::errc() || stop != end || !(setup.request_rate > 0)) {
      return invalid_argument("request-rate = '" + text + "': expected a number above 0, or inf");
    }
  }
  if (options.max_concurrency > 0) setup.max_concurrency = options.max_concurrency;
  return setup;
}

ClientHeaders make_headers(const ServeOptions& options) {
  if (options.api_key.empty()) return {};
  return {{"Authorization", "Bearer " + options.api_key}};
}

/// The model name for requests.
Result<std::string> find_model(const ServeOptions& options, const ServerAddress& server) {
  if (!options.model.empty()) return options.model;
  ASSIGN_OR_RETURN(const std::string body,
                   http_get(server, "/v1/models", make_headers(options), kModelsTimeoutS));
  const Json models = Json::parse(body, nullptr, false);
  const Json id = models.is_object() ? models.value("/data/0/id"_json_pointer, Json()) : Json();
  if (!id.is_string()) {
    return Error{ErrorCode::kCorrupt, "/v1/models lists no model; set --model"};
  }
  return id.get<std::string>();
}

/// The tokens of ordinary text, since random prompts must not contain control tokens.
std::vector<TokenId> text_tokens(const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < static_cast<TokenId>(tokenizer.id_limit()); ++id) {
    if (tokenizer.id_to_token(id) && !tokenizer.is_added(id)) ids.push_back(id);
  }
  return ids;
}

Result<std::vector<BenchPrompt>> make_prompts(const ServeOptions& options) {
  const auto num_prompts = static_cast<std::size_t>(options.random.num_prompts);
  if (!options.dataset.empty()) {
    ASSIGN_OR_RETURN(auto prompts, read_dataset(options.dataset, options.random.output_len));
    prompts.resize(std::min(prompts.size(), num_prompts));
    return prompts;
  }
  if (options.tokenizer.empty()) return random_word_prompts(options.random);
  ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::load(options.tokenizer));
  const std::vector<TokenId> vocabulary = text_tokens(*tokenizer);
  if (vocabulary.empty()) return Error{ErrorCode::kCorrupt, "the tokenizer has no text tokens"};
  std::vector<BenchPrompt> prompts = random_token_prompts(options.random, vocabulary);
  if (options.endpoint == kCompletionsPath) return prompts;
  for (BenchPrompt& prompt : prompts) {
    const auto& ids = std::get<TokensPrompt>(prompt.prompt).token_ids;
    prompt.prompt = TextPrompt{.text = tokenizer->decode(ids, true)};
  }
  return prompts;
}

std::string make_body(const ServeOptions& options, const std::string& model,
                      const BenchPrompt& prompt) {
  Json body = {{"model", model}};
  const auto* const text = std::get_if<TextPrompt>(&prompt.prompt);
  if (options.endpoint == kChatPath) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", text->text}}});
    body["max_completion_tokens"] = prompt.num_output_tokens;
  } else {
    body["prompt"] =
        text != nullptr ? Json(text->text) : Json(std::get<TokensPrompt>(prompt.prompt).token_ids);
    body["max_tokens"] = prompt.num_output_tokens;
  }
  body["temperature"] = options.temperature;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (options.ignore_eos) body["ignore_eos"] = true;
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Finds the model and creates the prompts.
Result<Load> make_load(const ServeOptions& options, const ServingSetup& setup) {
  Load load;
  const std::string host =
      options.host.find(':') == std::string::npos ? options.host : "[" + options.host + "]";
  const std::string url = options.base_url.empty()
                              ? "http://" + host + ":" + std::to_string(options.port)
                              : options.base_url;
  ASSIGN_OR_RETURN(load.server, parse_url(url));
  ASSIGN_OR_RETURN(const std::string model, find_model(options, load.server));
  ASSIGN_OR_RETURN(const std::vector<BenchPrompt> prompts, make_prompts(options));
  load.path = options.endpoint;
  load.headers = make_headers(options);
  for (const BenchPrompt& prompt : prompts) {
    load.bodies.push_back(make_body(options, model, prompt));
  }
  load.send_times = arrival_times(static_cast<std::int64_t>(prompts.size()), setup.request_rate,
                                  options.burstiness, options.random.seed);
  load.max_concurrency = setup.max_concurrency;
  return load;
}

/// Sends one request first, to fail early if the server does not work.
Result<void> try_one(const Load& load) {
  Load single = load;
  single.bodies.resize(1);
  single.send_times = {0};
  const LoadResult result = run_load(single);
  if (result.records[0].success) return {};
  return Error{ErrorCode::kUnavailable, "the first request failed: " + result.records[0].error};
}

void print_errors(std::span<const RequestRecord> records) {
  const auto failed = std::find_if(records.begin(), records.end(),
                                   [](const RequestRecord& record) { return !record.success; });
  if (failed == records.end()) return;
  std::fprintf(stderr, "troupe: first error: %s\n", failed->error.c_str());
}

}  // namespace

int bench_serve(Arguments arguments) {
  OptionSet set;
  ServeOptions options;
  bind(set, options);
  if (help_request(arguments)) {
    std::printf("%s%s\n", kBenchServeUsage, set.help().c_str());
    return kExitOk;
  }
  if (const auto read = read_options(set, options, arguments); !read.ok())
    return fail(read.error());
  const auto setup = make_setup(options);
  if (!setup.ok()) return fail(setup.error());
  auto load = make_load(options, *setup);
  if (!load.ok()) return fail(load.error());
  if (const auto tried = try_one(*load); !tried.ok()) return fail(tried.error());

  ProgressBar bar("measuring");
  const std::size_t total = load->bodies.size();
  load->on_progress = [&](std::int64_t num_done) {
    bar.show(static_cast<double>(num_done) / static_cast<double>(total),
             std::to_string(num_done) + " of " + std::to_string(total) + " answered");
  };
  const LoadResult result = run_load(*load);
  bar.finish();
  const ServingReport report = summarize(result.records, result.duration, *setup);
  std::fputs(serving_table(report, *setup).c_str(), stdout);
  print_errors(result.records);
  const auto written =
      write_result(options.output_json, serving_json(report, *setup, result.records));
  if (!written.ok()) return fail(written.error());
  return report.num_failed == 0 ? kExitOk : kExitFailure;
}

}  // namespace troupe::tools
