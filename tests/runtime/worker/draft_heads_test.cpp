#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/draft_head.hpp"
#include "runtime/worker/block_tables.hpp"
#include "runtime/worker/flat_batch.hpp"
#include "runtime/worker/layer_caches.hpp"
#include "runtime/worker/logit_rows.hpp"
#include "tests/support/replay_models_driver.hpp"
#include "tests/support/test_device.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kModelsOfHeads = fs::path(TROUPE_GOLDEN_DIR) / "models" / "models";
const fs::path kHeads = fs::path(TROUPE_GOLDEN_DIR) / "draft_heads";

/// Owns a folder of this process.
class HeadFolder {
 public:
  explicit HeadFolder(const std::string& name)
      : path_(fs::temp_directory_path() / ("troupe-" + std::to_string(::getpid()) + "-" + name)) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  HeadFolder(const HeadFolder&) = delete;
  HeadFolder& operator=(const HeadFolder&) = delete;
  ~HeadFolder() { fs::remove_all(path_); }
  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  fs::path path_;
};

/// A head of tests/golden/draft_heads and its model.
struct GoldenHead {
  std::string name;
  DraftHeadKind kind;
  std::string model;  ///< of tests/golden/models; of mtp its tensors and the head's are one folder
};
const GoldenHead kGoldenHeads[] = {{"llama_eagle", DraftHeadKind::kEagle, "llama"},
                                   {"llama_eagle3", DraftHeadKind::kEagle3, "llama"},
                                   {"deepseek_v3_mtp", DraftHeadKind::kMtp, "deepseek_v3"}};

/// The folder of the model, with the layers that guess.
class TargetFolder {
 public:
  explicit TargetFolder(const GoldenHead& head) : folder_(head.name) {
    path_ = kModelsOfHeads / head.model;
    if (head.kind != DraftHeadKind::kMtp) return;
    for (const auto& file : fs::directory_iterator(path_))
      fs::copy(file.path(), folder_.path() / file.path().filename());
    fs::copy(kHeads / head.name / "model.safetensors", folder_.path() / "mtp.safetensors");
    fs::copy(kHeads / head.name / "config.json", folder_.path() / "config.json",
             fs::copy_options::overwrite_existing);
    path_ = folder_.path();
  }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  HeadFolder folder_;
  fs::path path_;
};

constexpr std::int32_t kNumDrafts = 3;

SpeculativeDecoding speculation(const GoldenHead& head, std::int32_t num_drafts = kNumDrafts) {
  SpeculativeDecoding speculative{.num_draft_tokens = num_drafts, .draft_head = head.kind};
  if (head.kind != DraftHeadKind::kMtp) speculative.draft_model = (kHeads / head.name).string();
  return speculative;
}

json read_json_file(const fs::path& path) { return json::parse(read_file(path).value()); }

void check_near(ConstMatrix found, const TensorView& expected, double tolerance) {
  BOOST_TEST_REQUIRE(found.num_rows * found.num_cols == expected.num_elements());
  const std::span<const float> numbers = expected.elements<float>();
  double largest = 0;
  for (std::int64_t row = 0; row < found.num_rows; ++row)
    for (std::int64_t col = 0; col < found.num_cols; ++col)
      largest = std::max(largest,
                         std::abs(static_cast<double>(found.row(row)[col]) -
                                  numbers[static_cast<std::size_t>(row * found.num_cols + col)]));
  BOOST_TEST(largest < tolerance);
}

BOOST_AUTO_TEST_CASE(the_states_and_logits_of_heads_are_those_of_the_reference) {
  for (const GoldenHead& golden : kGoldenHeads) {
    BOOST_TEST_CONTEXT(golden.name) {
      const TargetFolder folder(golden);
      auto device = Device::create({.name = "cpu", .num_threads = 1}).value();
      const ModelLoadOptions options{.dtype = "float32", .max_model_len = 256};
      LoadedModel target = load_model(folder.path(), *device, options, {}).value();
      BOOST_REQUIRE(target.model->reserve({.max_num_tokens = 64, .max_num_logit_rows = 8}).ok());
      const fs::path head_folder =
          golden.kind == DraftHeadKind::kMtp ? fs::path(folder.path()) : kHeads / golden.name;
      auto loaded = load_draft_head(golden.kind, head_folder, target, *device, options, {});
      BOOST_REQUIRE_MESSAGE(loaded.ok(), (loaded.ok() ? "" : loaded.error().message));
      DraftHead& head = *loaded->head;
      BOOST_REQUIRE(head.reserve({.max_num_tokens = 64, .max_num_logit_rows = 8}).ok());

      const auto file =
          SafetensorsFile::open(kHeads / "goldens" / (golden.name + ".safetensors")).value();
      const std::span<const std::int64_t> numbers = file.find("tokens")->elements<std::int64_t>();
      const std::vector<TokenId> tokens(numbers.begin(), numbers.end());
      const TensorView& states = *file.find("states");
      const auto num_tokens = static_cast<std::int32_t>(tokens.size());
      const auto num_rows = static_cast<std::int32_t>(file.find("logits")->shape.front());

      constexpr std::int32_t kNumBlocks = 8;
      const std::vector<LayerCacheSpec> specs = head.kv_cache_specs(16, DType::kF32);
      BOOST_REQUIRE(specs.size() == 1U);
      std::vector<std::byte> pages(
          static_cast<std::size_t>(kNumBlocks * specs.front().spec.page_bytes()));
      const std::vector<LayerKvCache> caches = {layer_cache(specs.front().spec, 0, pages.data(),
                                                            kNumBlocks,
                                                            specs.front().spec.page_bytes())
                                                    .value()};
      BlockTables tables({16});
      const std::int32_t row = tables.add({{3, 1, 5, 2}});
      std::vector<float> guessed(static_cast<std::size_t>(num_rows * head.hidden_size()));
      std::vector<float> logits(static_cast<std::size_t>(num_rows * head.vocab_size()));
      // In two pieces: the second one finds the first one's keys.
      const std::int32_t first = num_tokens - num_rows;
      for (const auto& [begin, end] : {std::pair(0, first), {first, num_tokens}}) {
        FlatBatch batch(tables);
        batch.add(std::span(tokens).subspan(static_cast<std::size_t>(begin),
                                            static_cast<std::size_t>(end - begin)),
                  begin, row, begin == 0 ? 0 : end - begin);
        const auto columns = states.shape[1];
        head.set_states({states.elements<float>().data() + begin * columns, end - begin, columns},
                        true);
        head.forward(batch.view(), caches, nullptr, {guessed.data(), num_rows, head.hidden_size()});
      }
      const ConstMatrix hidden(guessed.data(), num_rows, head.hidden_size());
      check_near(hidden, *file.find("guessed"), 2e-4);
      const Matrix out(logits.data(), num_rows, head.vocab_size());
      head.compute_logits(hidden, nullptr, out);
      check_near(out, *file.find("logits"), 2e-4);
    }
  }
}

/// A request's steps, with the drafts of each.
struct HeadRun {
  std::vector<TokenId> tokens;                         ///< with the prompt
  std::map<std::size_t, std::vector<TokenId>> drafts;  ///< by the number of tokens before them
  std::int64_t num_accepted = 0;
  std::int64_t num_passes = 0;     ///< of the head
  std::int64_t num_undrafted = 0;  ///< DraftReport::undrafted of all steps
};

struct HeadSteps {
  std::int32_t piece = 2048;         ///< the prompt's longest part in a step
  std::int32_t num_cached = 0;       ///< tokens, of the request before
  std::uint64_t num_running = 1000;  ///< steps, after which the head is stopped
};

/// Greedy.
HeadRun run_with_head(ModelRunner& runner, const std::vector<TokenId>& prompt,
                      std::size_t num_outputs, const HeadSteps& steps) {
  HeadRun run{.tokens = prompt, .drafts = {}};
  constexpr RequestId kId{7};
  std::int32_t num_computed = steps.num_cached;
  std::vector<TokenId> drafts;
  for (std::uint64_t number = 1; run.tokens.size() < prompt.size() + num_outputs; ++number) {
    SchedulerOutput step{.step = number};
    const auto left = static_cast<std::int32_t>(run.tokens.size()) - num_computed;
    std::int32_t num_tokens = std::min(left, steps.piece);
    if (number == 1) {
      NewRequestData& data = step.new_requests.emplace_back();
      data.id = kId;
      data.token_ids = prompt;
      data.num_prompt_tokens = static_cast<std::int32_t>(prompt.size());
      data.num_computed_tokens = num_computed;
      data.params.temperature = 0;
      data.block_ids = {{}};
      for (BlockId block = 12; block > 0; --block) data.block_ids.front().push_back(block);
    } else {
      step.cached_requests.ids = {kId};
      step.cached_requests.num_computed_tokens = {num_computed};
    }
    if (num_tokens == left && !drafts.empty()) {
      num_tokens += static_cast<std::int32_t>(drafts.size());
      step.draft_token_ids = drafts;
      step.num_draft_tokens = {static_cast<std::int32_t>(drafts.size())};
    }
    step.scheduled_ids = {kId};
    step.num_scheduled_tokens = {num_tokens};
    step.total_num_scheduled_tokens = num_tokens;
    step.num_drafts_to_make = kNumDrafts;
    if (number > steps.num_running) step.num_drafts_to_make = step.max_draft_rows = 0;
    const auto done = runner.execute(step);
    BOOST_REQUIRE_MESSAGE(done.ok(), (done.ok() ? "" : done.error().message));
    run.num_passes += done->drafting.num_passes;
    run.num_undrafted += std::ssize(done->drafting.undrafted);
    const auto& sampled = done->sampled_token_ids;
    num_computed += num_tokens;
    if (!sampled.empty()) {
      run.num_accepted += std::ssize(sampled) - 1;
      num_computed -= static_cast<std::int32_t>(drafts.size() + 1 - sampled.size());
      drafts.clear();
    }
    run.tokens.insert(run.tokens.end(), sampled.begin(), sampled.end());
    for (const auto& [id, guesses] : done->draft_token_ids) drafts = guesses;
    if (!drafts.empty()) run.drafts[run.tokens.size()] = drafts;
  }
  BOOST_REQUIRE(runner.execute({.step = 1000, .finished_ids = {kId}}).ok());
  return run;
}

BOOST_AUTO_TEST_CASE(guesses_are_those_of_the_reference_whatever_came_true_before) {
  for (const GoldenHead& golden : kGoldenHeads) {
    const TargetFolder folder(golden);
    DrivenRunner driven =
        load_driven_runner({.folder = folder.path(), .speculative = speculation(golden)});
    std::int64_t num_compared = 0, num_accepted = 0;
    const json texts = read_json_file(kHeads / "goldens" / (golden.name + ".json")).at("texts");
    for (const std::int32_t piece : {2048, 16, 5}) {
      for (const json& text : texts) {
        BOOST_TEST_CONTEXT(golden.name << ", pieces of " << piece) {
          const auto prompt = text.at("prompt").get<std::vector<TokenId>>();
          const auto said = text.at("said").get<std::vector<TokenId>>();
          const HeadRun run = run_with_head(*driven.runner, prompt, 24, {.piece = piece});
          for (std::size_t i = prompt.size(); i < prompt.size() + 24; ++i)
            BOOST_TEST(run.tokens[i] == said[i - prompt.size()]);
          num_accepted += run.num_accepted;
          for (const auto& [num_known, drafts] : run.drafts) {
            const auto found = text.at("guesses").find(std::to_string(num_known - prompt.size()));
            if (found == text.at("guesses").end()) continue;
            const auto expected = found->get<std::vector<TokenId>>();
            for (std::size_t i = 0; i < expected.size() && expected[i] >= 0; ++i, ++num_compared)
              BOOST_TEST((i < drafts.size() && drafts[i] == expected[i]),
                         "behind " << num_known << " tokens, guess " << i);
          }
        }
      }
    }
    BOOST_TEST(num_compared > 200);
    BOOST_TEST(num_accepted > 100);
  }
}

std::vector<DriverJob> jobs_for_heads() {
  std::mt19937 random(11);
  std::vector<TokenId> common(40);
  for (TokenId& token : common) token = static_cast<TokenId>(random() % 600);
  std::vector<DriverJob> jobs;
  for (const std::size_t length : {1u, 2u, 17u, 34u, 48u, 97u}) {
    DriverJob job{.prompt = {}, .params = {}, .num_outputs = 10, .items = {}};
    for (std::size_t i = 0; i < length; ++i)
      job.prompt.push_back(
          length % 2 == 0 && i < common.size() ? common[i] : static_cast<TokenId>(random() % 600));
    job.params.temperature = length % 3 == 0 ? 0.0f : 0.8f;
    job.params.philox_key = length;
    job.params.repetition_penalty = 1.1f;
    job.params.logprobs = 2;
    if (length == 17) job.params.prompt_logprobs = 1;
    jobs.push_back(job);
  }
  return jobs;
}

BOOST_AUTO_TEST_CASE(a_draft_head_changes_no_token) {
  const std::vector<DriverJob> jobs = jobs_for_heads();
  for (const GoldenHead& golden : kGoldenHeads) {
    const TargetFolder folder(golden);
    for (const std::string dtype : {"float32", "bfloat16"}) {
      BOOST_TEST_CONTEXT(golden.name << ", " << dtype) {
        DriverModelOptions options{.folder = folder.path(), .dtype = dtype};
        DrivenRunner plain = load_driven_runner(options);
        const auto alone = drive(plain, jobs, {.max_running = 1});
        options.speculative = speculation(golden);
        DrivenRunner driven = load_driven_runner(options);
        BOOST_TEST((drive(driven, jobs, {}) == alone), "together");
        BOOST_TEST((drive(driven, jobs, {.max_running = 1}) == alone), "alone");
        BOOST_TEST((drive(driven, jobs, {.token_budget = 16}) == alone), "in chunks");
        BOOST_TEST((drive(driven, jobs, {.token_budget = 50, .preempt_every = 3}) == alone),
                   "preempted");
        BOOST_TEST((drive(driven, jobs,
                          {.token_budget = 50, .preempt_every = 3, .plan_ahead = true}) == alone),
                   "preempted, planned ahead");
        std::vector<DriverJob> unscored = jobs;
        for (DriverJob& job : unscored) job.params.prompt_logprobs.reset();
        const auto unscored_alone = drive(plain, unscored, {.max_running = 1});
        BOOST_TEST((drive(driven, unscored, {.token_budget = 100, .share_prefix = true}) ==
                    unscored_alone),
                   "on shared blocks");
        BOOST_TEST((drive(driven, jobs, {.token_budget = 50, .draft_every = 3}) == alone),
                   "drafts every 3 steps");
        BOOST_TEST((drive(driven, jobs,
                          {.token_budget = 50,
                           .preempt_every = 3,
                           .plan_ahead = true,
                           .stop_begin = 3,
                           .stop_end = 9}) == alone),
                   "stopped for some steps, preempted, planned ahead");
        BOOST_TEST(driven.num_stopped_passes == 0);
        BOOST_TEST(driven.num_drafted > 100);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_head_that_is_stopped_computes_nothing_and_guesses_where_it_has_all_tokens) {
  constexpr std::size_t kNumOutputs = 24;
  for (const GoldenHead& golden : kGoldenHeads) {
    BOOST_TEST_CONTEXT(golden.name) {
      const TargetFolder folder(golden);
      DrivenRunner driven =
          load_driven_runner({.folder = folder.path(), .speculative = speculation(golden)});
      const auto run = [&](const std::vector<TokenId>& prompt, const HeadSteps& steps) {
        return run_with_head(*driven.runner, prompt, kNumOutputs, steps);
      };
      std::vector<TokenId> prompt(40);
      std::mt19937 random(5);
      for (TokenId& token : prompt) token = static_cast<TokenId>(random() % 600);
      const HeadRun ready = run(prompt, {});
      BOOST_TEST(ready.num_undrafted == 0);

      const HeadRun stopped = run(prompt, {.num_running = 0});
      BOOST_TEST(stopped.num_passes == 0);
      BOOST_TEST(stopped.num_undrafted == 1);
      BOOST_TEST(stopped.drafts.empty());
      BOOST_TEST(stopped.tokens == ready.tokens, boost::test_tools::per_element());

      // What was cached meanwhile has holes.
      const HeadRun behind_holes = run(prompt, {.num_cached = 32});
      BOOST_TEST(behind_holes.num_passes == 0);
      BOOST_TEST(behind_holes.num_undrafted == 1);
      BOOST_TEST(behind_holes.tokens == ready.tokens, boost::test_tools::per_element());

      // Who computes all tokens fills them, and others begin with that.
      for (const std::int32_t num_cached : {0, 32}) {
        const HeadRun again = run(prompt, {.num_cached = num_cached});
        BOOST_TEST((again.drafts == ready.drafts), num_cached << " tokens are cached");
        BOOST_TEST(again.num_accepted == ready.num_accepted);
        BOOST_TEST(again.num_undrafted == 0);
      }

      // Stopped behind the prompt: its two full blocks are complete, those behind it are not.
      const HeadRun cut = run(prompt, {.num_running = 1});
      BOOST_TEST(cut.num_undrafted == 1);
      BOOST_TEST(cut.tokens == ready.tokens, boost::test_tools::per_element());
      BOOST_TEST((run(prompt, {.num_cached = 32}).drafts == ready.drafts));
      BOOST_TEST(run(prompt, {.num_running = 1}).num_undrafted == 1);
      const std::vector<TokenId> longer(ready.tokens.begin(), ready.tokens.begin() + 60);
      BOOST_TEST(run(longer, {.num_cached = 48}).num_undrafted == 1);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_draft_head_on_an_emulated_gpu_guesses_the_same) {
  for (const GoldenHead& golden : kGoldenHeads) {
    BOOST_TEST_CONTEXT(golden.name) {
      const TargetFolder folder(golden);
      DrivenRunner driven = load_driven_runner({.folder = folder.path(),
                                                .speculative = speculation(golden),
                                                .device = testing::test_device()});
      const json text = read_json_file(kHeads / "goldens" / (golden.name + ".json")).at("texts")[0];
      const auto prompt = text.at("prompt").get<std::vector<TokenId>>();
      const HeadRun run = run_with_head(*driven.runner, prompt, 4, {});
      const auto expected = text.at("guesses").at("1").get<std::vector<TokenId>>();
      const std::vector<TokenId>& drafts = run.drafts.at(prompt.size() + 1);
      for (std::size_t i = 0; i < expected.size() && expected[i] >= 0; ++i)
        BOOST_TEST(drafts[i] == expected[i]);
    }
  }
}

// ---- what is refused ----------------------------------------------------------------------------

std::string refusal(const std::string& model, const SpeculativeDecoding& speculative) {
  const auto runner = ModelRunner::load({.model = model,
                                         .dtype = "float32",
                                         .device = "cpu",
                                         .threads = 1,
                                         .max_num_seqs = 2,
                                         .max_num_batched_tokens = 64,
                                         .speculative = speculative},
                                        {});
  return runner.ok() ? "" : runner.error().message;
}

/// A copy of llama_eagle3, with another configuration.
std::string refusal_of_config(const std::function<void(json&)>& change) {
  const HeadFolder folder("changed-head");
  fs::copy(kHeads / "llama_eagle3" / "model.safetensors", folder.path() / "model.safetensors");
  json config = read_json_file(kHeads / "llama_eagle3" / "config.json");
  change(config);
  std::ofstream(folder.path() / "config.json") << config.dump();
  const std::string message =
      refusal((kModelsOfHeads / "llama").string(), {.num_draft_tokens = 2,
                                                    .draft_model = folder.path().string(),
                                                    .draft_head = DraftHeadKind::kEagle3});
  const std::string begin = "draft head " + folder.path().string() + ": ";
  BOOST_TEST((message.empty() || message.starts_with(begin)), message);
  return message.substr(std::min(begin.size(), message.size()));
}

BOOST_AUTO_TEST_CASE(a_head_that_does_not_fit_is_refused_with_what_is_wrong) {
  const auto has = [](const std::string& message, const std::string& part) {
    BOOST_TEST(message.find(part) != std::string::npos, message);
  };
  has(refusal_of_config([](json&) {}), "");
  has(refusal_of_config([](json& c) { c["model_type"] = "qwen2"; }), "model_type is \"qwen2\"");
  has(refusal_of_config([](json& c) { c["vocab_size"] = 700; }),
      "vocab_size is 700, the model's is 768");
  has(refusal_of_config([](json& c) { c["draft_vocab_size"] = 300; }),
      "model.safetensors: tensor \"d2t\" has shape [320], expected [300]");
  has(refusal_of_config([](json& c) { c["intermediate_size"] = 128; }),
      "tensor \"midlayer.mlp.gate_proj.weight\" has shape [64, 128], expected [128, 128]");
  has(refusal_of_config([](json& c) {
        c["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {1, 2};
      }),
      "tensor \"fc.weight\" has shape [128, 384], expected [128, 256]");
  has(refusal_of_config([](json& c) {
        c["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {1, 2, 4};
      }),
      "eagle_aux_hidden_state_layer_ids is [1, 2, 4], expected ascending numbers of the model's 4");
  has(refusal_of_config([](json& c) { c["target_hidden_size"] = 64; }),
      "target_hidden_size is 64, the model's hidden_size is 128");
  has(refusal_of_config([](json& c) { c["parallel_drafting"] = true; }),
      "parallel_drafting is true, which is not supported");
}

BOOST_AUTO_TEST_CASE(the_format_of_speculators_is_read) {
  BOOST_TEST(refusal_of_config([](json& c) {
               json head = {{"architectures", {"Eagle3Speculator"}},
                            {"speculators_model_type", "eagle3"},
                            {"draft_vocab_size", 320},
                            {"eagle_aux_hidden_state_layer_ids", {1, 2, 3}},
                            {"norm_before_residual", false}};
               c.erase("eagle_config");
               head["transformer_layer_config"] = c;
               c = head;
             }) == "");
}

BOOST_AUTO_TEST_CASE(what_cannot_draft_for_a_model_is_refused) {
  const std::string llama = (kModelsOfHeads / "llama").string();
  BOOST_TEST(refusal(llama, {.num_draft_tokens = 2, .draft_head = DraftHeadKind::kMtp}) ==
             "draft head " + llama +
                 ": method \"mtp\" is supported for DeepseekV3ForCausalLM only, the model is "
                 "LlamaForCausalLM");
  const std::string deepseek = (kModelsOfHeads / "deepseek_v3").string();
  BOOST_TEST(refusal(deepseek, {.num_draft_tokens = 2, .draft_head = DraftHeadKind::kMtp}) ==
             "draft head " + deepseek +
                 ": config.json: num_nextn_predict_layers is 0: the model has no layers for method "
                 "\"mtp\"");
  const TargetFolder several(kGoldenHeads[2]);
  const fs::path config_path = fs::path(several.path()) / "config.json";
  json config = read_json_file(config_path);
  config["num_nextn_predict_layers"] = 2;
  std::ofstream(config_path) << config.dump();
  BOOST_TEST(refusal(several.path(), {.num_draft_tokens = 2, .draft_head = DraftHeadKind::kMtp}) ==
             "draft head " + several.path() +
                 ": config.json: num_nextn_predict_layers is 2: method \"mtp\" is supported for "
                 "one layer, as each of several makes its own draft");
  const std::string mamba = (kModelsOfHeads / "mamba2").string();
  BOOST_TEST(refusal(mamba, {.num_draft_tokens = 2, .draft_model = mamba}) ==
             "draft model " + mamba +
                 ": Mamba2ForCausalLM keeps states behind its tokens, which guesses cannot be "
                 "taken back from");
}

}  // namespace
}  // namespace troupe
