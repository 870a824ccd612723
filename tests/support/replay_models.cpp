// models/<name> with goldens/<name>: greedy tokens, logits, log-probabilities and texts of every
// model whose architecture is supported, in float32; and bfloat16 along the reference's own path.
// float32 with each instruction set of this CPU, all else with the best one.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>

#include "messages/encoder_input.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/multimodal/audio_decoder.hpp"
#include "runtime/multimodal/speech_inputs.hpp"
#include "runtime/tokenizer/incremental_decoder.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/support/replay.hpp"
#include "tests/support/replay_models_driver.hpp"
#include "tests/support/replay_vision.hpp"

namespace troupe {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr float kLogitTolerance = 1e-3f;
constexpr float kFeatureTolerance = 1e-4f;
constexpr float kSpeechBf16Tolerance = 0.2f;  // of a prompt's logits
constexpr double kBf16Slack = 1.5;            // times the reference's own bfloat16 error
// Mean of D(exact || quantised) over all rows, in nats. Random weights have sharp distributions
// that feel every error; llama.cpp's Q8_0 and Q4_0 with exact activations are at 0.002 and 0.15 to
// 0.47.
constexpr double kInt8Divergence = 0.01;
constexpr double kInt4Divergence = 0.6;
constexpr double kInt8CacheDivergence = 0.002;
constexpr double kFp8CacheDivergence = 0.03;
constexpr float kClearGap = 0.5f;          // bfloat16 must not change the best token of such a row
constexpr double kMaxOtherExperts = 0.03;  // of such rows, where there are experts
constexpr std::int32_t kNumTop = 5;

json read_json(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return json::parse(file);
}

SafetensorsFile open_arrays(const fs::path& path) {
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file.ok()) throw std::runtime_error(file.error().message);
  return std::move(file).value();
}

template <class T>
std::span<const T> elements(const SafetensorsFile& file, const std::string& name) {
  const TensorView* array = file.find(name);
  if (array == nullptr) throw std::runtime_error("no array " + name);
  return array->elements<T>();
}

/// Greedy, with log-probabilities of the best tokens.
DriverJob greedy_job(std::vector<TokenId> prompt, std::size_t num_outputs, std::int32_t num_top) {
  DriverJob job{.prompt = std::move(prompt),
                .params = {},
                .num_outputs = static_cast<std::int32_t>(num_outputs)};
  job.params.temperature = 0;
  job.params.ignore_eos = true;
  job.params.logprobs = num_top;
  return job;
}

void log_softmax(std::vector<float>& row) {
  const double largest = *std::ranges::max_element(row);
  double sum = 0;
  for (const float x : row) sum += std::exp(x - largest);
  for (float& x : row) x = static_cast<float>(x - largest - std::log(sum));
}

/// The whole rows of a result that asked for all log-probabilities, by token id.
std::vector<std::vector<float>> full_rows(const LogprobRows& rows, std::size_t vocab_size) {
  std::vector<std::vector<float>> full;
  std::size_t entry = 0;
  for (const std::int32_t size : rows.row_sizes) {
    full.emplace_back(vocab_size, 0.0f);
    for (std::int32_t i = 0; i < size; ++i, ++entry)
      full.back()[static_cast<std::size_t>(rows.token_ids[entry])] = rows.logprobs[entry];
  }
  return full;
}

float largest_difference(std::span<const float> a, std::span<const float> b) {
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN counts
  }
  return largest;
}

std::string first_difference(std::span<const TokenId> found, std::span<const TokenId> expected) {
  if (std::ranges::equal(found, expected)) return {};
  const auto at = std::ranges::mismatch(found, expected).in1 - found.begin();
  const auto index = static_cast<std::size_t>(at);
  return "token " + std::to_string(at) + " is " +
         (index < found.size() ? std::to_string(found[index]) : "missing") + ", expected " +
         (index < expected.size() ? std::to_string(expected[index]) : "the end");
}

/// One model's folders, and where its results go.
class ModelReplay {
 public:
  ModelReplay(fs::path model, const fs::path& golden, bool has_experts, bool is_quantized,
              ReplayReport& report)
      : model_(std::move(model)),
        golden_folder_(golden),
        has_experts_(has_experts),
        is_quantized_(is_quantized),
        golden_(read_json(golden / "golden.json")),
        arrays_(open_arrays(golden / "golden.safetensors")),
        report_(report) {}

  /// As replay_on_device says.
  void run_on(const std::string& device) {
    constexpr std::size_t kMaxPrompt = 33;
    constexpr std::size_t kMaxOutputs = 6;
    std::printf("%s on %s\n", name().c_str(), device.c_str());
    DrivenRunner exact = load({.dtype = "float32", .device = device, .num_blocks = 64});
    check_greedy(exact, kMaxPrompt, kMaxOutputs);
  }

  void run(const std::vector<std::string>& isas) {
    std::printf("%s\n", name().c_str());
    load_tokenizer();
    if (golden_.contains("greedy")) {
      for (const std::string& isa : isas) {
        isa_ = isa;
        check_numbers();
      }
      isa_ = "auto";
      check_bfloat16();
      check_widths();
    }
    if (golden_.contains("clips")) {
      for (const std::string& isa : isas) {
        isa_ = isa;
        std::printf("  %s\n", isa_.c_str());
        check_clips({.dtype = "float32"}, kLogitTolerance);
      }
      isa_ = "auto";
      check_clips({.dtype = "bfloat16"}, kSpeechBf16Tolerance);
      return;
    }
    DrivenRunner exact = load({.dtype = "float32"});
    for (const char* kind : {"text_prompts", "chats"})
      for (const json& entry : golden_.value(kind, json::array())) check_text(exact, entry, kind);
    if (!golden_.contains("cases")) return;
    // Of a model that also sees: texts of the cases without images, and all from files to tokens.
    for (const json& entry : golden_["cases"])
      if (entry.at("images").empty()) check_text(exact, entry, entry.at("name"));
    replay_vision(model_, golden_folder_, report_);
  }

 private:
  void check_numbers() {
    std::printf("  %s\n", isa_.c_str());
    DrivenRunner exact = load({.dtype = "float32"});
    check_greedy(exact, SIZE_MAX, SIZE_MAX);
    check_logits(exact);
  }

  /// Whole numbers are added to the same bits by every instruction set.
  void check_widths() {
    if (!is_quantized_) {
      check_divergence("int8", {.quantization = "int8"}, kInt8Divergence);
      check_divergence("int4", {.quantization = "int4"}, kInt4Divergence);
    }
    check_divergence("KV cache in int8", {.kv_cache_dtype = "int8"}, kInt8CacheDivergence);
    check_divergence("KV cache in fp8", {.kv_cache_dtype = "fp8"}, kFp8CacheDivergence);
  }

  [[nodiscard]] std::string name() const { return model_.filename().string(); }

  /// The model, with the instruction set whose turn it is.
  [[nodiscard]] DrivenRunner load(DriverModelOptions options) const {
    options.folder = model_.string();
    options.isa = isa_;
    return load_driven_runner(options);
  }

  void add(const std::string& what, const std::string& difference) {
    report_.add(difference.empty() ? "" : name() + ", " + isa_ + ": " + what + ": " + difference);
  }

  void load_tokenizer() {
    Result<std::shared_ptr<const Tokenizer>> loaded = Tokenizer::load(model_);
    if (!loaded.ok()) throw std::runtime_error(name() + ": " + loaded.error().message);
    tokenizer_ = std::move(loaded).value();
  }

  [[nodiscard]] std::string prompt_name(std::size_t i) const {
    return "prompt of " + std::to_string(golden_.at("prompts")[i].size()) + " tokens";
  }

  /// Prompts of so many tokens at most; they come in ascending order.
  void check_greedy(DrivenRunner& runner, std::size_t max_prompt, std::size_t max_outputs) {
    std::vector<DriverJob> jobs;
    for (std::size_t i = 0; i < golden_.at("prompts").size(); ++i)
      if (golden_["prompts"][i].size() <= max_prompt)
        jobs.push_back(greedy_job(golden_["prompts"][i],
                                  std::min(golden_.at("greedy")[i].size(), max_outputs), kNumTop));
    const std::vector<DriverResult> results = drive(runner, jobs, {});
    const auto top_ids = elements<TokenId>(arrays_, "greedy_top5_ids");
    const auto top_logprobs = elements<float>(arrays_, "greedy_top5_logprobs");
    std::size_t first = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      auto expected = golden_["greedy"][i].get<std::vector<TokenId>>();
      const std::size_t num_recorded = expected.size() * kNumTop;
      expected.resize(static_cast<std::size_t>(jobs[i].num_outputs));
      add(prompt_name(i) + ", greedy", first_difference(results[i].tokens, expected));
      const std::size_t count = expected.size() * kNumTop;
      add(prompt_name(i) + ", top 5",
          compare_top(results[i].logprobs, top_ids.subspan(first, count),
                      top_logprobs.subspan(first, count)));
      first += num_recorded;
    }
  }

  /// Rows hold the sampled token, then the best ones. Where two of these are as good as equal their
  /// order is free.
  static std::string compare_top(const LogprobRows& rows, std::span<const TokenId> ids,
                                 std::span<const float> logprobs) {
    if (rows.row_sizes.size() * kNumTop != ids.size()) return "rows are missing";
    for (std::size_t row = 0; row < rows.row_sizes.size(); ++row)
      for (std::size_t k = 0; k < kNumTop; ++k) {
        const std::size_t found = row * (kNumTop + 1) + 1 + k;
        const std::size_t expected = row * kNumTop + k;
        const std::string where =
            "step " + std::to_string(row) + ", place " + std::to_string(k) + ": ";
        if (!(std::fabs(rows.logprobs[found] - logprobs[expected]) <= kLogitTolerance))
          return where + "log-probability " + std::to_string(rows.logprobs[found]) + ", expected " +
                 std::to_string(logprobs[expected]);
        if (rows.token_ids[found] != ids[expected] && is_clear(logprobs, row, k))
          return where + "token " + std::to_string(rows.token_ids[found]) + ", expected " +
                 std::to_string(ids[expected]);
      }
    return {};
  }

  /// Is place k of a row further from its neighbours than the tolerance? The last one's neighbour
  /// is not known.
  static bool is_clear(std::span<const float> logprobs, std::size_t row, std::size_t k) {
    const std::span<const float> best = logprobs.subspan(row * kNumTop, kNumTop);
    return k + 1 < best.size() && best[k] - best[k + 1] > 2 * kLogitTolerance &&
           (k == 0 || best[k - 1] - best[k] > 2 * kLogitTolerance);
  }

  /// Reference logits as log-probabilities, row by row, beside ours.
  struct RowPair {
    std::string what;
    std::vector<float> expected;
    std::vector<float> found;
  };

  /// The last position of every prompt, and every position of the prompt of 33 tokens.
  std::vector<RowPair> logit_rows(DrivenRunner& runner) {
    const auto last = elements<float>(arrays_, "last_logits");
    const auto all33 = elements<float>(arrays_, "all_logits_33");
    const std::size_t num_prompts = golden_.at("prompts").size();
    const std::size_t vocab_size = last.size() / num_prompts;
    std::vector<DriverJob> jobs;
    for (const json& prompt : golden_["prompts"]) {
      jobs.push_back(greedy_job(prompt, 1, kAllLogprobs));
      jobs.back().params.prompt_logprobs = kAllLogprobs;
    }
    const std::vector<DriverResult> results = drive(runner, jobs, {});
    std::vector<RowPair> rows;
    const auto add_row = [&](const std::string& what, std::span<const float> logits,
                             std::vector<float> found) {
      rows.push_back({what, {logits.begin(), logits.end()}, std::move(found)});
      log_softmax(rows.back().expected);
    };
    for (std::size_t i = 0; i < num_prompts; ++i) {
      add_row(prompt_name(i), last.subspan(i * vocab_size, vocab_size),
              full_rows(results[i].logprobs, vocab_size).front());
      if (jobs[i].prompt.size() * vocab_size != all33.size()) continue;
      const auto found = full_rows(results[i].prompt_logprobs, vocab_size);
      for (std::size_t position = 0; position < found.size(); ++position)
        add_row(prompt_name(i) + ", position " + std::to_string(position),
                all33.subspan(position * vocab_size, vocab_size), found[position]);
    }
    return rows;
  }

  void check_logits(DrivenRunner& runner) {
    for (const RowPair& row : logit_rows(runner)) {
      const float difference = largest_difference(row.found, row.expected);
      add(row.what + ", logits",
          difference <= kLogitTolerance ? "" : "differ by " + std::to_string(difference));
    }
  }

  /// Rounded arithmetic: errors of whole rows no larger than the reference's own, and along the
  /// reference's greedy path the same best token wherever it is clear.
  void check_bfloat16() {
    DrivenRunner runner = load({.dtype = "bfloat16"});
    std::vector<float> differences;
    for (const RowPair& row : logit_rows(runner))
      differences.push_back(largest_difference(row.found, row.expected));
    std::ranges::sort(differences);
    const auto& bounds =
        golden_.at("measured").at("bfloat16_vs_float32").at("row_max_abs_p50_p90_p99");
    for (const auto& [index, share] : {std::pair(0, 0.5), std::pair(1, 0.9)}) {
      const double found = differences[static_cast<std::size_t>(
          static_cast<double>(differences.size() - 1) * share)];
      const double bound = bounds[static_cast<std::size_t>(index)].get<double>() * kBf16Slack;
      add("bfloat16 logits",
          found <= bound ? ""
                         : "percentile " + std::to_string(share) + " of the rows' errors is " +
                               std::to_string(found) + ", bound " + std::to_string(bound));
    }
    check_bfloat16_path(runner);
  }

  /// How far narrow weights or a narrow cache lead from the exact distribution (Kullback-Leibler
  /// divergence).
  void check_divergence(const std::string& what, const DriverModelOptions& options, double bound) {
    DrivenRunner runner = load(options);
    std::vector<double> divergences;
    std::size_t num_same_best = 0;
    for (const RowPair& row : logit_rows(runner)) {
      double& sum = divergences.emplace_back(0);
      for (std::size_t i = 0; i < row.expected.size(); ++i)
        sum += std::exp(static_cast<double>(row.expected[i])) * (row.expected[i] - row.found[i]);
      const auto best = [](const std::vector<float>& x) {
        return std::ranges::max_element(x) - x.begin();
      };
      if (best(row.expected) == best(row.found)) ++num_same_best;
    }
    // A few rows whose experts are others are other rows.
    std::ranges::sort(divergences);
    if (has_experts_) divergences.resize(divergences.size() * 3 / 4);
    const double mean = std::reduce(divergences.begin(), divergences.end()) /
                        static_cast<double>(divergences.size());
    std::printf("    %s: mean divergence %.2e%s, same best token in %zu rows\n", what.c_str(), mean,
                has_experts_ ? " of the best three quarters" : "", num_same_best);
    add(what + " logits", mean <= bound ? ""
                                        : "diverge by " + std::to_string(mean) +
                                              " on average, bound " + std::to_string(bound));
  }

  void check_bfloat16_path(DrivenRunner& runner) {
    std::vector<DriverJob> jobs;
    for (std::size_t i = 0; i < golden_["prompts"].size(); ++i) {
      auto path = golden_["prompts"][i].get<std::vector<TokenId>>();
      const auto greedy = golden_["greedy"][i].get<std::vector<TokenId>>();
      path.insert(path.end(), greedy.begin(), greedy.end());
      jobs.push_back(greedy_job(std::move(path), 1, 1));
      jobs.back().params.prompt_logprobs = 1;
    }
    const std::vector<DriverResult> results = drive(runner, jobs, {});
    const auto gaps = elements<float>(arrays_, "greedy_gap");
    std::size_t next_gap = 0;
    // In a mixture, an expert that rounding changed changes a whole row.
    std::size_t num_clear = 0;
    std::size_t num_others = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const std::size_t num_prompt = golden_["prompts"][i].size();
      std::string difference;
      for (std::size_t k = 0; k < golden_["greedy"][i].size(); ++k) {
        // Row p of the prompt's log-probabilities scores token p + 1; its rank tells the best.
        const std::size_t row = num_prompt + k - 1;
        const std::int32_t rank = results[i].prompt_logprobs.ranks[row * 2];
        if (!(gaps[next_gap++] > kClearGap)) continue;
        ++num_clear;
        if (rank == 1) continue;
        ++num_others;
        if (!has_experts_ && difference.empty())
          difference = "step " + std::to_string(k) + ": the reference's token has rank " +
                       std::to_string(rank);
      }
      add(prompt_name(i) + ", bfloat16", difference);
    }
    const double share = static_cast<double>(num_others) / static_cast<double>(num_clear);
    add("bfloat16", !has_experts_ || share <= kMaxOtherExperts
                        ? ""
                        : std::to_string(num_others) + " of " + std::to_string(num_clear) +
                              " clear steps have another token");
  }

  /// Sounds, from the file to features, logits, tokens and text.
  void check_clips(const DriverModelOptions& options, float tolerance) {
    const LogMel mel(load_log_mel_config(model_).value());
    const bool is_exact = options.dtype == "float32";
    std::vector<DriverJob> jobs;
    for (std::size_t i = 0; i < golden_["clips"].size(); ++i) {
      const json& clip = golden_["clips"][i];
      const std::string bytes =
          read_file((golden_folder_ / clip.at("audio").get<std::string>()).string()).value();
      std::vector<float> samples =
          decode_audio(std::as_bytes(std::span(bytes)), mel.config().sampling_rate).value();
      samples.resize(static_cast<std::size_t>(mel.config().num_samples));
      const std::vector<float> features = mel.window(mel.frames(samples));
      const auto expected = elements<float>(arrays_, "input_features." + std::to_string(i));
      const float difference = features.size() == expected.size()
                                   ? largest_difference(features, expected)
                                   : std::numeric_limits<float>::infinity();
      add("clip " + std::to_string(i) + ", features",
          difference <= kFeatureTolerance ? "" : "differ by " + std::to_string(difference));
      jobs.push_back(greedy_job(clip.at("prompt_token_ids"),
                                is_exact ? clip.at("greedy_token_ids").size() : 1, kAllLogprobs));
      jobs.back().params.prompt_logprobs = kAllLogprobs;
      const std::int64_t shape[] = {mel.config().num_mels, mel.config().num_frames()};
      jobs.back().items.push_back({.modality = "audio",
                                   .identifier = "clip " + std::to_string(i),
                                   .length = static_cast<std::int32_t>(shape[1] / 2),
                                   .is_embed = {},
                                   .data = pack_encoder_input(shape, features)});
    }
    DrivenRunner runner = load(options);
    const std::vector<DriverResult> results = drive(runner, jobs, {});
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const std::string what = "clip " + std::to_string(i) + ", " + options.dtype;
      const auto logits = elements<float>(arrays_, "prompt_logits." + std::to_string(i));
      const std::size_t vocab_size = logits.size() / jobs[i].prompt.size();
      auto rows = full_rows(results[i].prompt_logprobs, vocab_size);
      rows.push_back(full_rows(results[i].logprobs, vocab_size).front());
      float difference = 0;
      for (std::size_t row = 0; row < rows.size(); ++row) {
        const auto expected = logits.subspan(row * vocab_size, vocab_size);
        std::vector<float> wanted(expected.begin(), expected.end());
        log_softmax(wanted);
        difference = std::max(difference, largest_difference(rows[row], wanted));
      }
      add(what + ", logits",
          difference <= tolerance ? "" : "differ by " + std::to_string(difference));
      if (!is_exact) continue;
      const json& clip = golden_["clips"][i];
      add(what + ", greedy",
          first_difference(results[i].tokens,
                           clip.at("greedy_token_ids").get<std::vector<TokenId>>()));
      add(what + ", text",
          tokenizer_->decode(results[i].tokens, true) == clip.at("text") ? "" : "texts differ");
    }
    if (!is_exact) return;
    add("clips one after the other",
        drive(runner, jobs, {.max_running = 1}) == results ? "" : "differ");
    add("clips preempted", drive(runner, jobs, {.preempt_every = 3}) == results ? "" : "differ");
    add("clips with drafts",
        drive(runner, jobs, {.preempt_every = 7, .oracle = &results}) == results ? "" : "differ");
  }

  void check_text(DrivenRunner& runner, const json& entry, const std::string& kind) {
    const auto prompt = entry.at("prompt_token_ids").get<std::vector<TokenId>>();
    const auto expected = entry.at("greedy_token_ids").get<std::vector<TokenId>>();
    const DriverJob job = greedy_job(prompt, expected.size(), 1);
    const std::vector<TokenId> tokens = drive(runner, std::span(&job, 1), {}).front().tokens;
    add(kind + ", greedy", first_difference(tokens, expected));
    const std::string text = entry.value("text_out", entry.value("text", ""));
    add(kind + ", text", tokenizer_->decode(tokens, true) == text ? "" : "texts differ");
    if (entry.contains("text_with_special"))
      add(kind + ", text with special tokens",
          tokenizer_->decode(tokens, false) == entry["text_with_special"] ? "" : "texts differ");
    IncrementalDecoder decoder(tokenizer_, true, prompt);
    std::string streamed;
    for (const TokenId token : tokens) streamed += decoder.step(token).text.value_or("");
    add(kind + ", streamed text", streamed == entry.at("streamed_text") ? "" : "texts differ");
  }

  fs::path model_;
  fs::path golden_folder_;
  bool has_experts_;
  bool is_quantized_;  ///< and not to be quantised again
  std::string isa_ = "auto";
  json golden_;
  SafetensorsFile arrays_;
  ReplayReport& report_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

/// Quantised weights that stand for the same numbers have the same golden.
fs::path golden_of(const fs::path& folder, const std::string& model) {
  constexpr std::string_view kSuffix = "_mxfp4";
  const std::string name =
      model.ends_with(kSuffix) ? model.substr(0, model.size() - kSuffix.size()) : model;
  return folder / "goldens" / name;
}

/// Has the golden what this replays: decoding, not an embedding?
bool is_decoder_golden(const fs::path& golden) {
  const json content = read_json(golden);
  return content.contains("greedy") || content.contains("cases") || content.contains("clips");
}

}  // namespace

ReplayReport replay_on_device(const fs::path& folder, const std::string& device,
                              const std::vector<std::string>& models) {
  ReplayReport report;
  for (const std::string& name : models)
    ModelReplay(folder / "models" / name, golden_of(folder, name), false, false, report)
        .run_on(device);
  return report;
}

ReplayReport replay_models(const fs::path& folder, const std::vector<std::string>& isas) {
  ReplayReport report;
  std::set<fs::path> models;
  for (const auto& entry : fs::directory_iterator(folder / "models")) models.insert(entry.path());
  for (const fs::path& model : models) {
    const fs::path golden = golden_of(folder, model.filename().string());
    const Result<ModelConfig> config = load_model_config(model);
    if (!config.ok()) {
      std::printf("%s: passed over: %s\n", model.filename().c_str(),
                  config.error().message.c_str());
      continue;
    }
    if (!fs::exists(golden / "golden.json") || !is_decoder_golden(golden / "golden.json")) {
      std::printf("%s: passed over: no golden of a decoder\n", model.filename().c_str());
      continue;
    }
    const bool is_quantized = config->quantization.method != QuantizationMethod::kNone;
    ModelReplay(model, golden, config->experts.has_value(), is_quantized, report)
        .run(isas.empty() ? available_isas() : isas);
  }
  return report;
}

}  // namespace troupe
