// Models from GGUF files, against the Hugging Face folders that they were written from.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "runtime/base/file.hpp"
#include "runtime/chat/chat_renderer.hpp"
#include "runtime/gguf/model_files.hpp"
#include "runtime/models/half_floats.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/models/quantize.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/support/gguf_writer.hpp"
#include "tests/support/quantized_writer.hpp"
#include "tests/support/replay_models_driver.hpp"
#include "tests/support/test_device.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

fs::path model_folder(const std::string& name) {
  return fs::path(TROUPE_GOLDEN_DIR "/models/models") / name;
}

/// A folder for the files of one test.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(fs::temp_directory_path() / ("gguf-test-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }
  fs::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }
  /// The reference model with something in its config.json changed.
  fs::path changed(const std::string& name, const std::string& from, const std::string& to) const {
    const fs::path folder = path_ / name;
    fs::copy(model_folder(name), folder);
    std::string config = read_file(folder / "config.json").value();
    const std::size_t at = config.find(from);
    BOOST_REQUIRE_MESSAGE(at != std::string::npos, config);
    config.replace(at, from.size(), to);
    write(name + "/config.json", config);
    return folder;
  }
  // What a GGUF file cannot say is changed to what llama.cpp takes for it.
  /// Without blended frequencies: a file has their quotients, which are rounded once more.
  fs::path llama() const {
    return changed("llama", "\"high_freq_factor\": 4.0", "\"high_freq_factor\": 1.01");
  }
  fs::path gemma3() const {
    return changed("gemma3_text", "\"query_pre_attn_scalar\": 24", "\"query_pre_attn_scalar\": 32");
  }
  fs::path gemma2() const {
    return changed("gemma2", "\"query_pre_attn_scalar\": 20", "\"query_pre_attn_scalar\": 24");
  }
  fs::path smollm3() const {
    return changed("smollm3", "\"no_rope_layers\"", "\"no_rope_layers_of_others\"");
  }
  /// With biases of attention.
  fs::path biased(const std::string& name) const {
    const fs::path folder = changed(name, "\"attention_bias\": false", "\"attention_bias\": true");
    const SafetensorsFile stored = SafetensorsFile::open(folder / "model.safetensors").value();
    SafetensorsWriter writer;
    std::minstd_rand random(7);
    for (const auto& [tensor, view] : stored.tensors()) {
      const auto bits = stored.find(tensor)->elements<std::uint16_t>();
      std::vector<float> values(bits.size());
      std::ranges::transform(bits, values.begin(), widen_bf16);
      writer.add_floats(tensor, view.shape, values);
      if (tensor.find(".self_attn.") == std::string::npos) continue;
      std::vector<float> bias(static_cast<std::size_t>(view.shape.front()));
      for (float& value : bias) value = static_cast<float>(random() % 64) / 128;
      writer.add_floats(tensor.substr(0, tensor.rfind('.')) + ".bias", {std::ssize(bias)}, bias);
    }
    write(name + "/model.safetensors", writer.bytes());
    return folder;
  }
  /// Numbers that a file can keep exactly.
  fs::path phi3() const {
    return changed("phi3", "\"rope_scaling\": {", "\"rope_scaling\": {\"attention_factor\": 1.25,");
  }
  /// The first layers, which have experts as all layers of a GGUF file must.
  fs::path qwen3_moe() const {
    return changed("qwen3_moe", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1");
  }
  fs::path qwen2_moe() const {
    return changed("qwen2_moe", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 2");
  }

 private:
  fs::path path_;
};

std::vector<DriverResult> results(const fs::path& model, const std::string& dtype = "float32",
                                  const std::string& quantization = "auto") {
  return drive_greedily({.folder = model.string(), .dtype = dtype, .quantization = quantization});
}

BOOST_AUTO_TEST_CASE(a_file_with_a_models_weights_gives_the_bits_of_its_folder) {
  const TemporaryFolder temporary;
  for (const fs::path& folder :
       {temporary.llama(), model_folder("qwen2"), model_folder("qwen3"), temporary.gemma3(),
        temporary.gemma2(), temporary.phi3(), model_folder("olmo2"), model_folder("granite"),
        temporary.smollm3(), model_folder("glm4"), model_folder("bamba"),
        temporary.biased("granite"), temporary.biased("bamba")}) {
    const fs::path file = temporary.write("model.gguf", gguf_of_model(folder, GgmlType::kF32));
    for (const std::string dtype : {"float32", "bfloat16"})
      BOOST_TEST((results(file, dtype) == results(folder, dtype)), folder.filename()
                                                                       << " " << dtype);
  }
}

BOOST_AUTO_TEST_CASE(a_file_with_blended_frequencies_gives_the_tokens_of_its_folder) {
  const TemporaryFolder temporary;
  const fs::path folder = model_folder("llama");
  const auto found = results(temporary.write("model.gguf", gguf_of_model(folder, GgmlType::kF32)));
  const auto expected = results(folder);
  BOOST_REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    BOOST_TEST(found[i].tokens == expected[i].tokens, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(experts_of_a_file_are_those_of_its_folder) {
  const TemporaryFolder temporary;
  for (const fs::path& folder :
       {model_folder("mixtral"), temporary.qwen3_moe(), temporary.qwen2_moe(),
        model_folder("gpt_oss"), model_folder("gpt_oss_mxfp4"), model_folder("deepseek_v3")}) {
    const fs::path file = temporary.write("model.gguf", gguf_of_model(folder, GgmlType::kF32));
    for (const std::string dtype : {"float32", "bfloat16"})
      BOOST_TEST((results(file, dtype) == results(folder, dtype)), folder.filename()
                                                                       << " " << dtype);
  }
  // Blocks of an expert stay as they are; the router is wide in any case.
  const fs::path q8 =
      temporary.write("q8.gguf", gguf_of_model(model_folder("mixtral"), GgmlType::kQ8_0));
  const auto exact = results(model_folder("mixtral"));
  const auto found = results(q8);
  std::size_t num_same = 0;  // where 8 bits choose other experts, the answer is another
  for (std::size_t i = 0; i < exact.size(); ++i)
    if (found[i].tokens.front() == exact[i].tokens.front()) ++num_same;
  BOOST_TEST(2 * num_same > exact.size());
}

BOOST_AUTO_TEST_CASE(experts_that_are_not_as_the_keys_say_are_refused) {
  const TemporaryFolder temporary;
  const auto error_of = [&](const auto& add) {
    const fs::path file =
        temporary.write("model.gguf", gguf_of_model(model_folder("llama"), GgmlType::kF32, add));
    try {
      (void)load_driven_runner({.folder = file.string()});
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto expect = [&](const std::string& reason, const auto& add) {
    const std::string error = error_of(add);
    BOOST_TEST(error.find(reason) != std::string::npos, error);
  };
  expect("\"llama.expert_used_count\" is missing",
         [](GgufWriter& writer) { writer.add("llama.expert_count", std::uint32_t{8}); });
  expect("num_experts_per_tok is 9, there are 8 experts", [](GgufWriter& writer) {
    writer.add("llama.expert_count", std::uint32_t{8});
    writer.add("llama.expert_used_count", std::uint32_t{9});
  });
  const auto stack = [&](std::vector<std::int64_t> shape) {
    return [=](GgufWriter& writer) {
      writer.add("llama.expert_count", std::uint32_t{4});
      writer.add("llama.expert_used_count", std::uint32_t{2});
      std::size_t num_bytes = 4;
      for (const std::int64_t size : shape) num_bytes *= static_cast<std::size_t>(size);
      writer.add_tensor("blk.0.ffn_up_exps.weight", GgmlType::kF32, shape,
                        std::string(num_bytes, '\0'));
    };
  };
  const std::string not_a_stack =
      "\"blk.0.ffn_up_exps.weight\" is not a stack of 1 to 4096 matrices";
  expect(not_a_stack, stack({4, 8}));
  expect(not_a_stack, stack({5000, 1, 1}));
  expect(not_a_stack, stack({0, 1, 1}));
}

BOOST_AUTO_TEST_CASE(quantised_files_compute_as_the_same_numbers_quantised_at_load) {
  // The writer and --quantization choose the same numbers in groups of 32; the head is wide in the
  // file and quantised at load in both cases.
  const TemporaryFolder temporary;
  const fs::path folder = model_folder("qwen3");
  const fs::path q4 = temporary.write("q4.gguf", gguf_of_model(folder, GgmlType::kQ4_0));
  BOOST_TEST((results(q4, "float32", "int4") == results(folder, "float32", "int4")));
  const fs::path q8 = temporary.write("q8.gguf", gguf_of_model(folder, GgmlType::kQ8_0));
  const auto exact = results(folder);
  const auto found = results(q8);
  for (std::size_t i = 0; i < exact.size(); ++i)
    BOOST_TEST(found[i].tokens.front() == exact[i].tokens.front());
}

/// Where a block keeps its f16 scales, and values that make weights of about 0.05 of random bytes.
struct BlockScales {
  GgmlType type;
  std::vector<std::pair<std::size_t, float>> scales;
};
const std::vector<BlockScales> kBlockScales = {{GgmlType::kQ4_0, {{0, 0.01f}}},
                                               {GgmlType::kQ4_1, {{0, 0.01f}, {2, -0.075f}}},
                                               {GgmlType::kQ5_0, {{0, 0.005f}}},
                                               {GgmlType::kQ5_1, {{0, 0.005f}, {2, -0.0775f}}},
                                               {GgmlType::kQ8_0, {{0, 0.0007f}}},
                                               {GgmlType::kQ2_K, {{80, 0.005f}, {82, 0.0075f}}},
                                               {GgmlType::kQ3_K, {{108, 0.001f}}},
                                               {GgmlType::kQ4_K, {{0, 0.0003f}, {2, 0.002f}}},
                                               {GgmlType::kQ5_K, {{0, 0.00015f}, {2, 0.002f}}},
                                               {GgmlType::kQ6_K, {{208, 0.00004f}}},
                                               {GgmlType::kIQ4_NL, {{0, 0.0007f}}},
                                               {GgmlType::kIQ4_XS, {{0, 0.00004f}}}};

/// A small qwen3 whose matrices, the tied embedding too, are random elements of one type: as GGUF
/// files, and as a folder with the same weights in f32.
class RandomModel {
 public:
  RandomModel(GgmlType type, std::size_t num_parts) : type_(type), parts_(num_parts) {
    GgufWriter& first = parts_.front();
    first.add("general.architecture", "qwen3");
    for (const auto& [key, value] : std::initializer_list<std::pair<std::string, std::uint32_t>>{
             {"context_length", 256},
             {"embedding_length", kSize},
             {"block_count", 2},
             {"feed_forward_length", kSize},
             {"attention.head_count", 4},
             {"attention.key_length", kHeadDim},
             {"attention.value_length", kHeadDim}})
      first.add("qwen3." + key, value);
    first.add("qwen3.attention.head_count_kv", std::vector<std::int32_t>{2, 2});
    first.add("qwen3.attention.layer_norm_rms_epsilon", 1e-6f);
    first.add("qwen3.rope.freq_base", 1e4f);
    add("token_embd", "model.embed_tokens", {512, kSize});
    add("output_norm", "model.norm", {kSize});
    for (const std::string layer : {"0", "1"}) {
      const std::string gguf = "blk." + layer + ".";
      const std::string name = "model.layers." + layer + ".";
      add(gguf + "attn_norm", name + "input_layernorm", {kSize});
      add(gguf + "attn_q", name + "self_attn.q_proj", {4 * kHeadDim, kSize});
      add(gguf + "attn_k", name + "self_attn.k_proj", {2 * kHeadDim, kSize});
      add(gguf + "attn_v", name + "self_attn.v_proj", {2 * kHeadDim, kSize});
      add(gguf + "attn_q_norm", name + "self_attn.q_norm", {kHeadDim});
      add(gguf + "attn_k_norm", name + "self_attn.k_norm", {kHeadDim});
      add(gguf + "attn_output", name + "self_attn.o_proj", {kSize, 4 * kHeadDim});
      add(gguf + "ffn_norm", name + "post_attention_layernorm", {kSize});
      add(gguf + "ffn_gate", name + "mlp.gate_proj", {kSize, kSize});
      add(gguf + "ffn_up", name + "mlp.up_proj", {kSize, kSize});
      add(gguf + "ffn_down", name + "mlp.down_proj", {kSize, kSize});
    }
    if (num_parts == 1) return;
    for (std::size_t i = 0; i < num_parts; ++i) {
      parts_[i].add("split.count", static_cast<std::uint32_t>(num_parts));
      parts_[i].add("split.no", static_cast<std::uint32_t>(i));
    }
    first.add("split.tensors.count", static_cast<std::uint32_t>(num_tensors_));
  }

  [[nodiscard]] std::string file(std::size_t part = 0) const { return parts_[part].bytes(); }
  fs::path folder(const TemporaryFolder& temporary) const {
    const fs::path path = temporary.write("wide/config.json", R"({
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 256, "intermediate_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "vocab_size": 512, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
        "rope_theta": 1e4, "tie_word_embeddings": true})");
    temporary.write("wide/model.safetensors", wide_.bytes());
    return path.parent_path();
  }

 private:
  static constexpr std::int64_t kSize = 256;
  static constexpr std::int64_t kHeadDim = 64;

  void add(const std::string& gguf_name, const std::string& name,
           const std::vector<std::int64_t>& shape) {
    const GgmlType type = shape.size() == 1 ? GgmlType::kF32 : type_;
    const std::int64_t num_rows = shape.size() == 1 ? 1 : shape.front();
    std::string bytes;
    for (std::int64_t i = 0; i < num_rows; ++i) bytes += random_row(type, shape.back());
    std::vector<float> values(static_cast<std::size_t>(num_rows * shape.back()));
    const TensorView view{tensor_type(type), shape, std::as_bytes(std::span(bytes))};
    for (std::int64_t i = 0; i < num_rows; ++i)
      widen_row(view, i, 0, shape.back(), values.data() + i * shape.back());
    wide_.add_floats(name + ".weight", shape, values);
    parts_[num_tensors_++ % parts_.size()].add_tensor(gguf_name + ".weight", type, shape, bytes);
  }

  /// Pre: kBlockScales or the types of single elements have it.
  std::string random_row(GgmlType type, std::int64_t size) {
    std::string row;
    const auto append = [&](const auto& value) {
      row.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    std::uniform_real_distribution<float> any(-0.09f, 0.09f);
    if (type == GgmlType::kF32)
      for (std::int64_t i = 0; i < size; ++i) append(1 + any(random_));
    if (type == GgmlType::kF16)
      for (std::int64_t i = 0; i < size; ++i) append(narrow_to_f16(any(random_)));
    if (type == GgmlType::kBF16)
      for (std::int64_t i = 0; i < size; ++i)
        append(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(any(random_)) >> 16));
    if (!row.empty()) return row;
    const TypeBlock block = type_block(tensor_type(type));
    const auto& scales = std::ranges::find(kBlockScales, type, &BlockScales::type)->scales;
    std::uniform_int_distribution<int> any_byte(0, 255);
    for (std::int64_t i = 0; i < size / block.num_elements; ++i) {
      const std::size_t begin = row.size();
      for (std::int64_t k = 0; k < block.num_bytes; ++k)
        row.push_back(static_cast<char>(any_byte(random_)));
      for (const auto& [offset, scale] : scales) {
        const std::uint16_t bits = narrow_to_f16(scale);
        std::memcpy(row.data() + begin + offset, &bits, sizeof bits);
      }
    }
    return row;
  }

  GgmlType type_;
  std::vector<GgufWriter> parts_;
  SafetensorsWriter wide_;
  std::size_t num_tensors_ = 0;
  std::mt19937 random_{7};
};

BOOST_AUTO_TEST_CASE(files_of_every_type_give_the_numbers_of_their_widened_weights) {
  const TemporaryFolder temporary;
  fs::create_directories(temporary.path() / "wide");
  for (const GgmlType type : {GgmlType::kF16, GgmlType::kBF16}) {
    const RandomModel model(type, 1);
    const fs::path file = temporary.write("model.gguf", model.file());
    BOOST_TEST((results(file) == results(model.folder(temporary))),
               ggml_type_name(static_cast<std::uint32_t>(type)));
  }
  for (const BlockScales& block : kBlockScales) {
    const std::string name = ggml_type_name(static_cast<std::uint32_t>(block.type));
    const RandomModel model(block.type, 1);
    const fs::path file = temporary.write("model.gguf", model.file());
    const auto expected = results(model.folder(temporary));
    const auto found = results(file);
    double worst = 0;
    double spread = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const LogprobRows& wide = expected[i].prompt_logprobs;
      std::size_t at = 0;
      for (const std::int32_t row_size : wide.row_sizes) {
        // The first of a row is the prompt's own token in both.
        const auto error = static_cast<double>(found[i].prompt_logprobs.logprobs[at]) -
                           static_cast<double>(wide.logprobs[at]);
        worst = std::max(worst, std::fabs(error));
        spread = std::max(spread,
                          std::fabs(static_cast<double>(wide.logprobs[at]) - std::log(1.0 / 512)));
        at += static_cast<std::size_t>(row_size);
      }
    }
    // Activations have 8 bits, scales of groups 11.
    BOOST_TEST(worst < 0.05 * spread, name << ": off by " << worst << " of " << spread);
    if (block.type == GgmlType::kQ4_K)
      BOOST_TEST((results(file, "auto") == results(file, "bfloat16")), name);
  }
}

BOOST_AUTO_TEST_CASE(blocks_mean_the_same_on_a_device_with_memory_of_its_own) {
  const TemporaryFolder temporary;
  for (const GgmlType type :
       {GgmlType::kQ5_1, GgmlType::kQ4_K, GgmlType::kQ6_K, GgmlType::kIQ4_XS}) {
    const fs::path file = temporary.write("model.gguf", RandomModel(type, 1).file());
    const auto logprobs_on = [&](const std::string& device) {
      DrivenRunner runner = load_driven_runner(
          {.folder = file.string(), .device = device, .isa = "scalar", .num_blocks = 16});
      DriverJob job{.prompt = {5, 2, 77, 300, 41}, .params = {}, .num_outputs = 1};
      job.params.prompt_logprobs = 1;
      return drive(runner, std::span(&job, 1), {}).front().prompt_logprobs.logprobs;
    };
    const std::vector<float> expected = logprobs_on("cpu");
    const std::vector<float> found = logprobs_on(testing::test_device());
    BOOST_REQUIRE(found.size() == expected.size());
    BOOST_REQUIRE(!found.empty());
    for (std::size_t i = 0; i < found.size(); ++i)
      BOOST_TEST(std::fabs(found[i] - expected[i]) < 2e-5f,
                 ggml_type_name(static_cast<std::uint32_t>(type)));
  }
}

BOOST_AUTO_TEST_CASE(a_model_in_parts_is_opened_by_the_name_of_any) {
  const TemporaryFolder temporary;
  const fs::path whole = temporary.write("model.gguf", RandomModel(GgmlType::kQ4_K, 1).file());
  const RandomModel model(GgmlType::kQ4_K, 3);
  std::vector<fs::path> parts;
  for (std::size_t i = 0; i < 3; ++i)
    parts.push_back(
        temporary.write("x-0000" + std::to_string(i + 1) + "-of-00003.gguf", model.file(i)));
  const auto expected = results(whole);
  for (const fs::path& part : parts) BOOST_TEST((results(part) == expected), part.filename());

  const auto error = [](const fs::path& path) {
    const auto config = load_model_config(path);
    return config.ok() ? "" : config.error().message;
  };
  const auto says = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const fs::path renamed = temporary.write("y.gguf", model.file(0));
  BOOST_TEST(
      says(error(renamed), "by its name it is part 1 of 1, by split.no and split.count 1 of 3"),
      error(renamed));
  temporary.write(parts[1].filename().string(), model.file(2));
  BOOST_TEST(says(error(parts[0]), "by its name it is part 2 of 3, by split.no and split.count 3"),
             error(parts[0]));
  fs::remove(parts[1]);
  BOOST_TEST(error(parts[0]) == parts[1].string() + " not found: part 2 of the model's 3");
}

BOOST_AUTO_TEST_CASE(the_vocabulary_in_a_file_cuts_text_as_tokenizer_json_does) {
  const TemporaryFolder temporary;
  for (const std::string name : {"llama", "qwen3", "gemma3_text"}) {
    const fs::path file =
        temporary.write("model.gguf", gguf_of_model(model_folder(name), GgmlType::kF32));
    const auto expected = Tokenizer::load(model_folder(name));
    const auto found = Tokenizer::load(file);
    BOOST_REQUIRE_MESSAGE(found.ok(), (found.ok() ? "" : found.error().message));
    for (const std::string text :
         {"Hello, world! 12345 it's", "  two  spaces\n\nand\tlines ",
          "na\u00efve caf\u00e9 \u4f60\u597d",
          "the quick brown fox<|im_start|>user<|eot_id|><end_of_turn>", ""}) {
      const auto tokens = (*expected)->encode(text, true).value();
      // SKIP
      BOOST_TEST((*found)->encode(text, true).value() == tokens, boost::test_tools::per_element());
      BOOST_TEST((*found)->decode(tokens, false) == (*expected)->decode(tokens, false));
    }
    const auto files = load_chat_files(file);
    BOOST_REQUIRE(files.ok());
    BOOST_TEST((files->templates == load_chat_files(model_folder(name))->templates));
  }
}

std::string error_of(const std::string& bytes) {
  const auto view = std::as_bytes(std::span(bytes));
  const std::vector<std::byte> copy(view.begin(), view.end());  // aligned as a mapped file is
  const auto parsed = parse_gguf(copy, "x.gguf");
  return parsed.ok() ? "" : parsed.error().message;
}

GgufWriter one_tensor(GgmlType type, std::vector<std::int64_t> shape, std::size_t num_bytes) {
  GgufWriter writer;
  writer.add("general.architecture", "llama");
  writer.add_tensor("t", type, shape, std::string(num_bytes, 'x'));
  return writer;
}

BOOST_AUTO_TEST_CASE(files_that_are_damaged_are_refused_with_the_reason) {
  const std::string good = one_tensor(GgmlType::kF32, {2, 8}, 64).bytes();
  BOOST_TEST(error_of(good) == "");
  for (std::size_t size = 0; size < good.size(); ++size)
    BOOST_TEST(error_of(good.substr(0, size)) != "", "cut at " << size);
  const auto expect = [](const std::string& bytes, const std::string& reason) {
    const std::string error = error_of(bytes);
    BOOST_TEST((error.starts_with("x.gguf: ") && error.find(reason) != std::string::npos),
               "\"" << error << "\" does not say: " << reason);
  };
  expect("GGML" + good.substr(4), "not a GGUF file");
  expect(GgufWriter(1).bytes(), "version 1 is not supported, only 2 and 3");
  BOOST_TEST(error_of(GgufWriter(2).bytes()) == "");
  expect(one_tensor(GgmlType::kQ8_0, {2, 8}, 64).bytes(), "not whole Q8_0 blocks of 32");
  expect(one_tensor(static_cast<GgmlType>(17), {256}, 74).bytes(),
         "its type is IQ2_XS, supported are F32, F16, BF16, Q4_0");
  expect(one_tensor(GgmlType::kF32, {2, 80}, 64).bytes(), "640 bytes at 0 are outside of");
  expect(one_tensor(GgmlType::kF32, {1 << 30, 1 << 30, 1 << 30}, 64).bytes(), "overflows");
  expect(one_tensor(GgmlType::kF32, {1, 1, 1, 1, 1}, 64).bytes(), "5 dimensions");
  GgufWriter twice = one_tensor(GgmlType::kF32, {1}, 4);
  twice.add("general.architecture", "llama");
  expect(twice.bytes(), "\"general.architecture\" is defined twice");
  for (const std::uint32_t alignment : {0, 4, 12, 1 << 17}) {
    GgufWriter aligned = one_tensor(GgmlType::kF32, {1}, 4);
    aligned.add("general.alignment", alignment);
    expect(aligned.bytes(), "general.alignment is " + std::to_string(alignment) +
                                ", not a multiple of 8 up to 65536");
  }
  for (const std::uint32_t alignment : {8, 32}) {
    GgufWriter aligned = one_tensor(GgmlType::kF32, {1}, 4);
    aligned.add("general.alignment", alignment);
    BOOST_TEST(error_of(aligned.bytes()) == "");
  }
}

BOOST_AUTO_TEST_CASE(weights_do_not_keep_the_vocabulary_of_their_file_in_memory) {
  const TemporaryFolder temporary;
  GgufWriter writer = one_tensor(GgmlType::kF32, {1}, 4);
  writer.add("tokenizer.ggml.tokens", std::vector<std::string>(1 << 16, std::string(100, 'x')));
  const fs::path file = temporary.write("model.gguf", writer.bytes());
  const auto heap_bytes = [] { return static_cast<std::int64_t>(mallinfo2().uordblks); };
  const std::int64_t before = heap_bytes();
  const GgufArchitecture architecture;
  const auto checkpoint = Checkpoint::open(file, &architecture);
  BOOST_REQUIRE(checkpoint.ok());
  BOOST_TEST(checkpoint->find("t") != nullptr);
  BOOST_TEST(heap_bytes() - before < 1 << 20);
}

BOOST_AUTO_TEST_CASE(models_and_vocabularies_that_are_not_known_are_refused_by_name) {
  const TemporaryFolder temporary;
  const auto config_error = [&](const GgufWriter& writer) {
    const auto config = load_model_config(temporary.write("model.gguf", writer.bytes()));
    return config.ok() ? "" : config.error().message;
  };
  GgufWriter other;
  other.add("general.architecture", "mamba");
  BOOST_TEST(config_error(other).starts_with(
      "model.gguf: architecture mamba is not supported; supported are llama, qwen2"));
  GgufWriter empty;
  empty.add("general.architecture", "llama");
  BOOST_TEST(config_error(empty) == "model.gguf: metadata \"llama.embedding_length\" is missing");
  GgufWriter vocabulary;
  vocabulary.add("tokenizer.ggml.model", "gpt2");
  vocabulary.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
  vocabulary.add("tokenizer.ggml.pre", "exotic");
  const auto tokenizer = Tokenizer::load(temporary.write("model.gguf", vocabulary.bytes()));
  BOOST_REQUIRE(!tokenizer.ok());
  BOOST_TEST(tokenizer.error().message.starts_with(
      "model.gguf: tokenizer.ggml.pre is exotic, supported are default, llama-bpe, "));
}

BOOST_AUTO_TEST_CASE(the_kind_of_a_vocabulary_says_how_it_cuts_text) {
  const TemporaryFolder temporary;
  const auto load = [&](const std::string& pre) {
    GgufWriter writer;
    writer.add("tokenizer.ggml.model", "gpt2");
    writer.add("tokenizer.ggml.tokens",
               std::vector<std::string>{"1", "2", "3", "4", "12", "123", "1234", "<s>"});
    writer.add("tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 1, 1, 1, 1, 1, 1, 3});
    writer.add("tokenizer.ggml.merges", std::vector<std::string>{"1 2", "12 3", "123 4"});
    writer.add("tokenizer.ggml.bos_token_id", std::uint32_t{7});
    if (!pre.empty()) writer.add("tokenizer.ggml.pre", pre);
    auto tokenizer = Tokenizer::load(temporary.write("model.gguf", writer.bytes()));
    BOOST_REQUIRE_MESSAGE(tokenizer.ok(), pre);
    return std::move(tokenizer).value();
  };
  const std::vector<TokenId> all = {6};
  const std::vector<TokenId> threes = {5, 3};
  const std::vector<TokenId> ones = {0, 1, 2, 3};
  const std::vector<std::pair<std::string, std::vector<TokenId>>> cases = {{"", threes},
                                                                           {"default", threes},
                                                                           {"llama-bpe", threes},
                                                                           {"falcon3", threes},
                                                                           {"pixtral", threes},
                                                                           {"smaug-bpe", threes},
                                                                           {"gpt-4o", threes},
                                                                           {"llama4", threes},
                                                                           {"deepseek-v3", threes},
                                                                           {"falcon", threes},
                                                                           {"glm4", threes},
                                                                           {"gpt-2", all},
                                                                           {"deepseek-llm", all},
                                                                           {"exaone4", all},
                                                                           {"qwen2", ones},
                                                                           {"qwen35", ones},
                                                                           {"tekken", ones},
                                                                           {"smollm", ones},
                                                                           {"starcoder", ones},
                                                                           {"refact", ones},
                                                                           {"command-r", ones},
                                                                           {"deepseek-coder", ones},
                                                                           {"stablelm2", ones},
                                                                           {"seed-coder", ones}};
  for (const auto& [pre, expected] : cases)
    BOOST_TEST(load(pre)->encode("1234", false).value() == expected, pre);
  // Without a key that says so, few kinds begin with the first token.
  for (const auto& [pre, has_bos] : std::vector<std::pair<std::string, bool>>{
           {"llama-bpe", true}, {"tekken", true}, {"smaug-bpe", false}, {"smollm", false}})
    BOOST_TEST((load(pre)->encode("1", true).value().front() == 7) == has_bos, pre);
}

BOOST_AUTO_TEST_CASE(
    sentencepiece_joins_to_tokens_that_the_user_defined_and_knows_the_unknown_one) {
  const TemporaryFolder temporary;
  const std::string space = "\xe2\x96\x81";
  GgufWriter writer;
  writer.add("tokenizer.ggml.model", "llama");
  writer.add("tokenizer.ggml.tokens",
             std::vector<std::string>{"<unk>", "<s>", space, "a", space + space, space + "a"});
  writer.add("tokenizer.ggml.token_type", std::vector<std::int32_t>{2, 3, 1, 1, 4, 1});
  writer.add("tokenizer.ggml.scores", std::vector<float>{0, 0, -3, -4, 0, -1});
  writer.add("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
  writer.add_flag("tokenizer.ggml.add_space_prefix", false);
  const auto tokenizer = Tokenizer::load(temporary.write("model.gguf", writer.bytes()));
  BOOST_REQUIRE(tokenizer.ok());
  const auto expect = [&](const std::string& text, const std::vector<TokenId>& tokens) {
    BOOST_TEST((*tokenizer)->encode(text, false).value() == tokens,
               boost::test_tools::per_element());
  };
  expect("  a", {4, 3});
  expect("a a", {3, 5});
  expect("a<unk>a", {3, 0, 3});
}

BOOST_AUTO_TEST_CASE(layers_of_gemma3_have_windows_as_the_file_says) {
  const TemporaryFolder temporary;
  const auto load = [&](const auto& add) {
    GgufWriter writer;
    writer.add("general.architecture", "gemma3");
    for (const auto& [key, value] : std::initializer_list<std::pair<std::string, std::uint32_t>>{
             {"context_length", 256},
             {"embedding_length", 64},
             {"block_count", 3},
             {"feed_forward_length", 64},
             {"attention.head_count", 4},
             {"attention.key_length", 16},
             {"attention.value_length", 16}})
      writer.add("gemma3." + key, value);
    writer.add("gemma3.attention.layer_norm_rms_epsilon", 1e-6f);
    writer.add_tensor("token_embd.weight", GgmlType::kF32, std::vector<std::int64_t>{1, 64},
                      std::string(256, '\0'));
    add(writer);
    return load_model_config(temporary.write("model.gguf", writer.bytes()));
  };
  const auto windows = [&](const auto& add) { return load(add).value().sliding_windows; };
  using Windows = std::vector<std::int32_t>;
  BOOST_TEST(windows([](GgufWriter&) {}) == (Windows{0, 0, 0}), boost::test_tools::per_element());
  BOOST_TEST(windows([](GgufWriter& writer) {
               writer.add("gemma3.attention.sliding_window", std::uint32_t{32});
               writer.add("gemma3.attention.sliding_window_pattern", std::uint32_t{2});
             }) == (Windows{32, 0, 32}),
             boost::test_tools::per_element());
  BOOST_TEST(
      windows([](GgufWriter& writer) {
        writer.add("gemma3.attention.sliding_window", std::uint32_t{32});
        writer.add("gemma3.attention.sliding_window_pattern", std::vector<std::int32_t>{0, 1, 1});
      }) == (Windows{0, 32, 32}),
      boost::test_tools::per_element());
  const auto capped =
      load([](GgufWriter& writer) { writer.add("gemma3.final_logit_softcapping", 30.0f); });
  BOOST_REQUIRE(capped.ok());
  BOOST_TEST(capped->logit_softcap == 30);
  const auto uneven = load([](GgufWriter& writer) {
    writer.add("gemma3.attention.head_count_kv", std::vector<std::int32_t>{1, 2, 1});
  });
  BOOST_REQUIRE(!uneven.ok());
  BOOST_TEST(uneven.error().message.find(
                 "\"gemma3.attention.head_count_kv\" differs between layers") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_answer_ends_where_key_or_text_of_a_token_says_so) {
  const TemporaryFolder temporary;
  const auto ends = [&](const GgufWriter& writer) {
    return load_generation_config(temporary.write("model.gguf", writer.bytes()))
        .value()
        .eos_token_ids;
  };
  GgufWriter writer;
  writer.add("tokenizer.ggml.tokens",
             std::vector<std::string>{"a", "stop", "more", "<|endoftext|>", "</s>", "<|end|>",
                                      "<|im_start|>", "<eos>", "<|end_of_text|>"});
  writer.add("tokenizer.ggml.eos_token_id", std::uint32_t{1});
  writer.add("tokenizer.ggml.eom_token_id", std::uint32_t{2});
  std::vector<TokenId> found = ends(writer);
  std::ranges::sort(found);
  BOOST_TEST(found == (std::vector<TokenId>{1, 2, 3, 4, 5, 7, 8}),
             boost::test_tools::per_element());
  GgufWriter parts;
  parts.add("tokenizer.ggml.tokens", std::vector<std::string>{"<|end|>", "<|return|>", "<|call|>"});
  BOOST_TEST(ends(parts) == (std::vector<TokenId>{1, 2}), boost::test_tools::per_element());
}

}  // namespace
}  // namespace troupe
