// LoRA adapters in the model: against PEFT, and the same bits in any batch.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/device_table.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/adapter_config.hpp"
#include "runtime/models/quantize.hpp"
#include "runtime/models/safetensors.hpp"
#include "tests/support/quantized_writer.hpp"
#include "tests/support/replay_models_driver.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/test_device.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kGoldenDir = TROUPE_GOLDEN_DIR;

fs::path adapter_folder(const std::string& name) { return kGoldenDir / "adapters" / name; }

DriverModelOptions with_adapters(const std::string& base, const std::vector<LoraRequest>& modules) {
  DriverModelOptions options{.folder = (kGoldenDir / "models" / "models" / base).string()};
  options.adapters = {.enabled = true,
                      .max_in_step = 64,
                      .max_loaded = static_cast<std::int32_t>(modules.size()),
                      .modules = modules};
  return options;
}

/// A copy of a golden adapter that the test may change.
fs::path copied_adapter(const std::string& name, const std::string& copy) {
  const fs::path folder = fs::temp_directory_path() / "troupe-adapters" / copy;
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& entry : fs::directory_iterator(adapter_folder(name)))
    fs::copy_file(entry.path(), folder / entry.path().filename());
  return folder;
}

void change_config(const fs::path& folder, const std::string& key, const json& value) {
  json config = json::parse(read_file(folder / "adapter_config.json").value());
  config[key] = value;
  std::ofstream(folder / "adapter_config.json") << config.dump();
}

BOOST_AUTO_TEST_CASE(adapters_give_the_tokens_and_logits_of_peft) {
  for (const auto& entry : fs::directory_iterator(kGoldenDir / "adapters")) {
    const std::string name = entry.path().filename().string();
    const json golden = json::parse(read_file(entry.path() / "golden.json").value());
    std::vector<std::string> devices = {"cpu"};
    if (cuda_emulated_device() != nullptr && name == "llama_head")
      devices.push_back(testing::test_device());
    for (const std::string& device : devices) {
      BOOST_TEST_CONTEXT(name << ", " << device) {
        DriverModelOptions options =
            with_adapters(golden["base"], {{.name = name, .path = entry.path().string()}});
        options.device = device;
        DrivenRunner runner = load_driven_runner(options);
        const auto vocab_size = static_cast<std::size_t>(runner.runner->describe().vocab_size);
        const LoraRequest lora = runner.runner->adapters()->list().at(0);
        std::vector<DriverJob> jobs;
        for (const json& prompt : golden["prompts"]) {
          DriverJob job{
              .prompt = prompt, .params = {}, .num_outputs = 24, .items = {}, .lora = lora};
          job.params.temperature = 0;
          job.params.ignore_eos = true;
          job.params.logprobs = static_cast<std::int32_t>(vocab_size);
          jobs.push_back(job);
        }
        const std::vector<DriverResult> results = drive(runner, jobs, {});
        for (std::size_t i = 0; i < jobs.size(); ++i) {
          BOOST_TEST(results[i].tokens == golden["greedy"][i].get<std::vector<TokenId>>(),
                     boost::test_tools::per_element());
          const std::vector<double> logits = golden["last_logits"][i];
          double sum = 0;
          for (const double logit : logits) sum += std::exp(logit);
          double largest = 0;
          const auto count = static_cast<std::size_t>(results[i].logprobs.row_sizes.at(0));
          BOOST_TEST(count >= vocab_size);
          for (std::size_t k = 0; k < count; ++k) {
            const auto token = static_cast<std::size_t>(results[i].logprobs.token_ids[k]);
            const double expected = logits[token] - std::log(sum);
            largest = std::max(largest, std::abs(expected - results[i].logprobs.logprobs[k]));
          }
          BOOST_TEST(largest < 1e-3);
        }
        // Without the adapter the base model answers.
        for (DriverJob& job : jobs) job.lora.reset();
        const std::vector<DriverResult> plain = drive(runner, jobs, {});
        for (std::size_t i = 0; i < jobs.size(); ++i)
          BOOST_TEST(plain[i].tokens == golden["base_greedy"][i].get<std::vector<TokenId>>(),
                     boost::test_tools::per_element());
      }
    }
  }
}

std::vector<DriverJob> jobs_with(const std::vector<std::optional<LoraRequest>>& adapters) {
  std::vector<DriverJob> jobs;
  std::mt19937 random(3);
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    DriverJob job{.prompt = {}, .params = {}, .num_outputs = 4, .items = {}, .lora = adapters[i]};
    for (std::size_t n = 0; n < 1 + i * 7 % 41; ++n)
      job.prompt.push_back(static_cast<TokenId>(random() % 600));
    job.params.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    job.params.philox_key = i;
    job.params.logprobs = 3;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

BOOST_AUTO_TEST_CASE(thirty_two_adapters_in_one_batch_equal_each_alone_bit_for_bit) {
  std::vector<LoraRequest> modules;
  for (int i = 0; i < 32; ++i) {
    const std::string name = "a" + std::to_string(i);
    const fs::path folder = copied_adapter(i % 3 == 0   ? "llama_qv"
                                           : i % 3 == 1 ? "llama_all"
                                                        : "llama_head",
                                           name);
    change_config(folder, "lora_alpha", 4 + i);
    modules.push_back({.name = name, .path = folder.string()});
  }
  struct Kind {
    std::string isa;
    std::string dtype = "bfloat16";
    std::string quantization = "auto";
    std::string device = "cpu";
  };
  std::vector<Kind> kinds;
  for (const std::string& isa : available_isas()) {
    kinds.push_back({isa});
    if (isa != "scalar") kinds.push_back({isa, "float32"});
  }
  kinds.push_back({"auto", "bfloat16", "int8"});
  kinds.push_back({"auto", "float32", "int4"});
  if (cuda_emulated_device() != nullptr && !testing::kSanitized)
    kinds.push_back({"auto", "bfloat16", "auto", testing::test_device()});
  for (const Kind& kind : kinds) {
    BOOST_TEST_CONTEXT(kind.isa << ", " << kind.dtype << ", " << kind.quantization << ", "
                                << kind.device) {
      DriverModelOptions options = with_adapters("llama", modules);
      options.dtype = kind.dtype;
      options.quantization = kind.quantization;
      options.isa = kind.isa;
      options.device = kind.device;
      DrivenRunner runner = load_driven_runner(options);
      const bool is_slow = kind.device != "cpu" || kind.isa == "scalar";
      std::vector<std::optional<LoraRequest>> adapters;
      for (const LoraRequest& adapter : runner.runner->adapters()->list())
        if (!is_slow || adapters.size() < 6) adapters.emplace_back(adapter);
      BOOST_TEST(adapters.size() == (is_slow ? 6u : 32u));
      adapters.resize(adapters.size() + 3);  // and the base model
      const std::vector<DriverJob> jobs = jobs_with(adapters);
      const auto alone = drive(runner, jobs, {.max_running = 1});
      BOOST_TEST((drive(runner, jobs, {}) == alone), "batched together");
      if (is_slow) continue;
      BOOST_TEST((drive(runner, jobs, {.token_budget = 40, .preempt_every = 3}) == alone),
                 "in chunks, preempted");
      BOOST_TEST((drive(runner, jobs, {.token_budget = 70, .oracle = &alone}) == alone),
                 "with drafts");
      // The base model's bits are those of a worker without adapters.
      DriverModelOptions plain = options;
      plain.adapters = {};
      DrivenRunner without = load_driven_runner(plain);
      const std::vector<DriverJob> base(jobs.end() - 3, jobs.end());
      const auto expected = drive(without, base, {});
      BOOST_TEST(std::equal(expected.begin(), expected.end(), alone.end() - 3));
    }
  }
}

BOOST_AUTO_TEST_CASE(many_adapters_of_experts_in_one_batch_equal_each_alone_bit_for_bit) {
  for (const auto& [base, golden] : {std::pair("qwen3_moe", "qwen3_moe_experts"),
                                     {"qwen2_moe", "qwen2_moe_shared"},
                                     {"llama4_text", "llama4_experts"},
                                     {"deepseek_v3", "deepseek_v3_all"}}) {
    if (testing::kSanitized && std::string_view(base) != "qwen3_moe") continue;
    std::vector<LoraRequest> modules;
    for (int i = 0; i < 32; ++i) {
      const std::string name = golden + std::to_string(i);
      const fs::path folder = copied_adapter(golden, name);
      change_config(folder, "lora_alpha", 4 + i);
      modules.push_back({.name = name, .path = folder.string()});
    }
    DriverModelOptions options = with_adapters(base, modules);
    options.dtype = "bfloat16";
    DrivenRunner runner = load_driven_runner(options);
    std::vector<std::optional<LoraRequest>> adapters;
    for (const LoraRequest& adapter : runner.runner->adapters()->list())
      adapters.emplace_back(adapter);
    BOOST_TEST(adapters.size() == 32u);
    adapters.resize(adapters.size() + 3);  // and the base model
    const std::vector<DriverJob> jobs = jobs_with(adapters);
    const auto alone = drive(runner, jobs, {.max_running = 1});
    BOOST_TEST((drive(runner, jobs, {}) == alone), golden << ", batched together");
    BOOST_TEST((drive(runner, jobs, {.token_budget = 40, .preempt_every = 3}) == alone),
               golden << ", in chunks, preempted");
    options.adapters = {};
    DrivenRunner without = load_driven_runner(options);
    const std::vector<DriverJob> base_jobs(jobs.end() - 3, jobs.end());
    const auto expected = drive(without, base_jobs, {});
    BOOST_TEST(std::equal(expected.begin(), expected.end(), alone.end() - 3), golden);
  }
}

/// The adapter's stacks of experts, each matrix under the name that it has in a checkpoint: as PEFT
/// saved them when experts were modules.
void name_each_expert(const fs::path& folder, std::int64_t num_experts) {
  const fs::path path = folder / "adapter_model.safetensors";
  SafetensorsWriter writer;
  {
    const SafetensorsFile stored = SafetensorsFile::open(path).value();
    for (const auto& [name, view] : stored.tensors()) {
      const std::int64_t num_cols = view.shape[1];
      std::vector<float> values(static_cast<std::size_t>(view.shape[0] * num_cols));
      for (std::int64_t row = 0; row < view.shape[0]; ++row)
        widen_row(view, row, 0, num_cols, values.data() + row * num_cols);
      const std::size_t at = name.find(".experts.");
      if (at == std::string::npos) {
        writer.add_floats(name, view.shape, values);
        continue;
      }
      const bool is_gate_up = name.find(".base_layer.") != std::string::npos;
      const bool is_a = name.ends_with(".lora_A.weight");
      for (std::int64_t expert = 0; expert < num_experts; ++expert) {
        const std::vector<std::string> parts =
            is_gate_up ? std::vector<std::string>{"gate_proj", "up_proj"}
                       : std::vector<std::string>{"down_proj"};
        for (std::size_t part = 0; part < parts.size(); ++part) {
          const std::string own = name.substr(0, at) + ".experts." + std::to_string(expert) + "." +
                                  parts[part] + (is_a ? ".lora_A.weight" : ".lora_B.weight");
          std::vector<float> mine;
          if (is_a) {
            const std::int64_t size = view.shape[0] / num_experts * num_cols;
            mine.assign(values.begin() + expert * size, values.begin() + (expert + 1) * size);
            writer.add_floats(own, {view.shape[0] / num_experts, num_cols}, mine);
            continue;
          }
          const std::int64_t num_rows = view.shape[0] / static_cast<std::int64_t>(parts.size());
          const std::int64_t first = static_cast<std::int64_t>(part) * num_rows;
          for (std::int64_t row = first; row < first + num_rows; ++row)
            for (std::int64_t col = expert; col < num_cols; col += num_experts)
              mine.push_back(values[static_cast<std::size_t>(row * num_cols + col)]);
          writer.add_floats(own, {num_rows, num_cols / num_experts}, mine);
        }
      }
    }
  }
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << writer.bytes();
}

BOOST_AUTO_TEST_CASE(experts_may_be_named_each_by_itself) {
  const fs::path stacked = copied_adapter("qwen3_moe_experts", "stacked");
  const fs::path named = copied_adapter("qwen3_moe_experts", "named");
  // down_proj's rank is that of all experts' matrices of that name.
  change_config(named, "rank_pattern", {{"down_proj", 3}});
  change_config(named, "target_parameters", nullptr);
  const json config = json::parse(
      read_file(kGoldenDir / "models" / "models" / "qwen3_moe" / "config.json").value());
  name_each_expert(named, config["num_experts"]);
  DrivenRunner runner =
      load_driven_runner(with_adapters("qwen3_moe", {{.name = "stacked", .path = stacked.string()},
                                                     {.name = "named", .path = named.string()}}));
  const std::vector<LoraRequest> loaded = runner.runner->adapters()->list();
  BOOST_TEST_REQUIRE(loaded.size() == 2u);
  BOOST_TEST(
      (drive(runner, jobs_with({loaded[0]}), {}) == drive(runner, jobs_with({loaded[1]}), {})));
}

std::string load_error(const std::string& base, const fs::path& folder,
                       std::int32_t max_rank = 16) {
  DriverModelOptions options = with_adapters(base, {{.name = "a", .path = folder.string()}});
  options.adapters.max_rank = max_rank;
  try {
    static_cast<void>(load_driven_runner(options));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_refused_with_its_file_tensor_and_shapes) {
  const auto has = [](const std::string& error, const std::string& part) {
    BOOST_TEST(error.find(part) != std::string::npos, error << " / " << part);
  };
  const fs::path qv = adapter_folder("llama_qv");
  std::string error = load_error("qwen2", qv);
  has(error, "adapter_model.safetensors: tensor base_model.model.model.layers.0.self_attn.");
  has(error, "[4, 128], expected [4, 96]");
  has(load_error("llama", adapter_folder("llama_all"), 4), "is 8, max-lora-rank is 4");
  has(load_error("qwen3_moe", adapter_folder("qwen2_all")), "tensor base_model.model.model.layers");
  has(load_error("llama", "/nowhere"), "no folder /nowhere");
  has(load_error("llama", kGoldenDir), "no adapter_config.json");

  struct Change {
    std::string key;
    json value;
    std::string expected;
  };
  for (const Change& change :
       {Change{"use_dora", true, "use_dora is true"}, Change{"bias", "all", "bias is all"},
        Change{"modules_to_save", {"lm_head"}, "modules_to_save"},
        Change{"layer_replication", {{0, 2}}, "layer_replication"},
        Change{"alora_invocation_tokens", {1}, "alora_invocation_tokens"},
        Change{"init_lora_weights", "pissa", "init_lora_weights is pissa"},
        Change{"peft_type", "LOHA", "peft_type is \"LOHA\""},
        Change{"some_new_field", 3, "some_new_field is 3"}, Change{"r", 3, "expected [3, 128]"},
        Change{"r", nullptr, "r is missing"},
        Change{"rank_pattern", {{".*q_proj", 2}}, "regular expression"},
        Change{"rank_pattern", {{".*\\.q_proj", 2}}, "expected [2, 128]"}}) {
    const fs::path folder = copied_adapter("llama_qv", "changed");
    change_config(folder, change.key, change.value);
    error = load_error("llama", folder);
    has(error, change.expected);
    has(error, folder.string());
  }
  const fs::path cut = copied_adapter("llama_qv", "cut");
  fs::resize_file(cut / "adapter_model.safetensors", 4000);
  has(load_error("llama", cut), "adapter_model.safetensors");
  fs::remove(cut / "adapter_model.safetensors");
  has(load_error("llama", cut), "no adapter_model.safetensors");
}

/// The adapter's tensors, and further ones of zeros.
void add_tensors(const fs::path& folder,
                 const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& added) {
  const fs::path path = folder / "adapter_model.safetensors";
  SafetensorsWriter writer;
  {
    const SafetensorsFile stored = SafetensorsFile::open(path).value();
    for (const auto& [name, view] : stored.tensors()) {
      std::vector<float> values(static_cast<std::size_t>(view.shape[0] * view.shape[1]));
      for (std::int64_t row = 0; row < view.shape[0]; ++row)
        widen_row(view, row, 0, view.shape[1], values.data() + row * view.shape[1]);
      writer.add_floats(name, view.shape, values);
    }
    for (const auto& [name, shape] : added)
      writer.add_floats(name, shape,
                        std::vector<float>(static_cast<std::size_t>(shape[0] * shape[1])));
  }
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << writer.bytes();
}

BOOST_AUTO_TEST_CASE(copies_of_the_bases_own_embeddings_and_head_beside_an_adapter_change_nothing) {
  const fs::path plain = copied_adapter("llama_head", "plain");
  const fs::path copies = copied_adapter("llama_head", "copies");
  const SafetensorsFile file = SafetensorsFile::open(plain / "adapter_model.safetensors").value();
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  for (const auto& [name, view] : file.tensors()) {
    if (name.ends_with("lm_head.lora_A.weight")) hidden_size = view.shape[1];
    if (name.ends_with("lm_head.lora_B.weight")) vocab_size = view.shape[0];
  }
  const std::vector<std::int64_t> shape = {vocab_size, hidden_size};
  add_tensors(plain, {});
  add_tensors(copies, {{"base_model.model.lm_head.base_layer.weight", shape},
                       {"base_model.model.model.embed_tokens.base_layer.weight", shape}});
  DrivenRunner runner =
      load_driven_runner(with_adapters("llama", {{.name = "plain", .path = plain.string()},
                                                 {.name = "copies", .path = copies.string()}}));
  const std::vector<LoraRequest> loaded = runner.runner->adapters()->list();
  BOOST_TEST_REQUIRE(loaded.size() == 2u);
  BOOST_TEST(
      (drive(runner, jobs_with({loaded[0]}), {}) == drive(runner, jobs_with({loaded[1]}), {})));

  // Of another shape it is not the base's.
  const fs::path resized = copied_adapter("llama_head", "resized");
  add_tensors(resized,
              {{"base_model.model.lm_head.base_layer.weight", {vocab_size + 2, hidden_size}}});
  const std::string error = load_error("llama", resized);
  BOOST_TEST(error.find("lm_head.base_layer.weight has shape") != std::string::npos, error);
}

BOOST_AUTO_TEST_CASE(a_worker_reads_adapters_again_and_refuses_those_that_have_changed) {
  std::vector<LoraRequest> modules;
  for (const std::string name : {"first", "second"})
    modules.push_back({.name = name, .path = copied_adapter("llama_qv", name).string()});
  DriverModelOptions options = with_adapters("llama", modules);
  options.adapters.max_in_step = options.adapters.max_loaded = 1;
  DrivenRunner runner = load_driven_runner(options);
  AdapterCache& cache = *runner.runner->adapters();
  const std::vector<LoraRequest> loaded = cache.list();
  BOOST_TEST_REQUIRE(loaded.size() == 2u);
  BOOST_TEST(loaded[0].int_id != loaded[1].int_id);
  std::vector<DriverJob> jobs = jobs_with({loaded[0], loaded[1], loaded[0]});
  const auto first = drive(runner, jobs, {.max_running = 1});
  for (const DriverResult& result : first) BOOST_TEST(result.errors.empty());

  // Another life of the worker has the same ids, and knows only what requests say.
  options.adapters.modules.clear();
  DrivenRunner other = load_driven_runner(options);
  BOOST_TEST((drive(other, jobs, {.max_running = 1}) == first));

  // Loaded in place, the name means other weights; running requests keep the old ones.
  change_config(modules[0].path, "lora_alpha", 99);
  const auto again = cache.load({.name = "first", .path = modules[0].path, .load_inplace = true});
  BOOST_REQUIRE(again.ok());
  BOOST_TEST(again->int_id != loaded[0].int_id);
  BOOST_TEST(cache.list()[0].int_id == again->int_id);
  const auto changed = drive(runner, jobs_with({*again}), {});
  BOOST_TEST((changed[0].logprobs == first[0].logprobs) == false);
  // They are deleted from the folder, so a worker cannot reload them.
  const auto refused = drive(other, jobs_with({loaded[1], loaded[0]}), {.max_running = 1});
  BOOST_TEST(refused[0].errors.empty());
  BOOST_TEST_REQUIRE(refused[1].errors.size() == 1u);
  BOOST_TEST(refused[1].errors[0].message.find("its files have changed") != std::string::npos);

  cache.unload("first");
  cache.unload("never");
  BOOST_TEST(cache.list().size() == 1u);
}

}  // namespace
}  // namespace troupe
