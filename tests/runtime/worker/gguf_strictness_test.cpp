// What a GGUF file says beyond the plain model is used, or refused by its name: never passed over.
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "runtime/models/model_config.hpp"
#include "tests/support/gguf_writer.hpp"
#include "tests/support/replay_models_driver.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using Change = std::function<void(GgufWriter&)>;

/// A file of a reference model, with what a test adds.
class ModelFile {
 public:
  explicit ModelFile(const std::string& model, const Change& change = {})
      : path_(fs::temp_directory_path() / ("gguf-strict-" + std::to_string(getpid()) + ".gguf")) {
    const fs::path folder = fs::path(TROUPE_GOLDEN_DIR "/models/models") / model;
    std::ofstream(path_, std::ios::binary) << gguf_of_model(folder, GgmlType::kF32, change);
  }
  ~ModelFile() { fs::remove(path_); }
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;

  [[nodiscard]] std::vector<DriverResult> results() const {
    return drive_greedily({.folder = path_.string(), .dtype = "float32"});
  }
  [[nodiscard]] ModelConfig config() const { return load_model_config(path_).value(); }
  /// Why it is not loaded; empty: it is.
  [[nodiscard]] std::string error() const {
    try {
      (void)load_driven_runner({.folder = path_.string(), .dtype = "float32"});
      return "";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  }

 private:
  fs::path path_;
};

void add_vector(GgufWriter& writer, const std::string& name, std::int64_t size, float value) {
  const std::vector<float> values(static_cast<std::size_t>(size), value);
  writer.add_tensor(name, GgmlType::kF32, std::vector<std::int64_t>{size},
                    {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

BOOST_AUTO_TEST_CASE(a_tensor_that_is_not_used_is_refused_by_its_name) {
  const std::pair<std::string, std::string> cases[] = {
      {"qwen3", "blk.0.ffn_up.bias"},
      {"qwen2", "blk.0.ffn_down.bias"},
      {"gemma3_text", "blk.1.ffn_gate.bias"},
      {"qwen2", "blk.1.attn_output.bias"},
      {"llama", "blk.0.attn_qkv.bias"},
      {"llama", "blk.1.attn_q.scale"},
      {"qwen3", "blk.0.ffn_up.scale"},
      {"llama", "rope_factors_long.weight"},
      {"qwen3", "rope_factors_short.weight"},
      {"qwen2", "blk.0.attn_q_norm.weight"},
      {"llama", "blk.0.attn_k_norm.weight"},
      {"qwen3", "rope_freqs.weight"},
      {"gemma3_text", "rope_freqs.weight"},
      {"qwen2", "output.bias"},
      {"llama", "output.scale"},
      {"llama", "blk.7.ffn_up.weight"},
      {"llama", "blk.0.post_attention_norm.weight"},
      {"qwen3", "cls.output.weight"},
      {"llama", "blk.0.attn_q.k_scale"},
      {"qwen3", "blk.0.attn_sinks.weight"},
      {"gemma3_text", "output.bias"},
      {"qwen3", "nonsense"}};
  for (const auto& [model, tensor] : cases) {
    const std::string name = tensor;
    const ModelFile file(model, [&](GgufWriter& writer) { add_vector(writer, name, 16, 1); });
    const std::string error = file.error();
    BOOST_TEST((error.find(".gguf: \"" + tensor + "\"") != std::string::npos),
               model << " with " << tensor << ": \"" << error << "\"");
  }
}

BOOST_AUTO_TEST_CASE(one_tensor_under_two_names_is_refused) {
  const ModelFile file("llama",
                       [](GgufWriter& writer) { add_vector(writer, "model.norm.weight", 8, 1); });
  BOOST_TEST(file.error().find("are the same one of the model") != std::string::npos, file.error());
}

BOOST_AUTO_TEST_CASE(biases_that_the_family_can_have_are_used) {
  const ModelConfig config = ModelFile("llama").config();
  const auto with_biases = [&](float value) {
    return ModelFile("llama",
                     [&](GgufWriter& writer) {
                       for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
                         const std::string prefix = "blk." + std::to_string(layer) + ".ffn_";
                         add_vector(writer, prefix + "gate.bias", config.intermediate_size, value);
                         add_vector(writer, prefix + "up.bias", config.intermediate_size, value);
                         add_vector(writer, prefix + "down.bias", config.hidden_size, value);
                       }
                     })
        .results();
  };
  const auto plain = ModelFile("llama").results();
  BOOST_TEST((with_biases(0) == plain));
  BOOST_TEST((with_biases(0.5) != plain));
  const ModelFile partial("llama", [&](GgufWriter& writer) {
    add_vector(writer, "blk.0.ffn_up.bias", config.intermediate_size, 1);
  });
  BOOST_TEST(partial.error().find("model.layers.0.mlp.gate_proj.bias") != std::string::npos,
             partial.error());
}

/// As in Qwen2, whose layers have no other, and in models that were made of its weights under
/// another architecture; llama.cpp takes either kind without the other.
BOOST_AUTO_TEST_CASE(biases_of_q_k_and_v_and_of_the_output_do_without_each_other) {
  for (const std::string model : {"llama", "qwen3", "gemma3_text"}) {
    BOOST_TEST_CONTEXT(model) {
      const ModelConfig config = ModelFile(model).config();
      const auto with_biases = [&](const std::vector<std::string>& names, float value) {
        return ModelFile(model,
                         [&](GgufWriter& writer) {
                           for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
                             for (const std::string& name : names) {
                               const std::int64_t num_heads =
                                   name == "attn_q" ? config.num_heads : config.num_kv_heads;
                               add_vector(writer,
                                          "blk." + std::to_string(layer) + "." + name + ".bias",
                                          name == "attn_output" ? config.hidden_size
                                                                : num_heads * config.head_dim,
                                          value);
                             }
                           }
                         })
            .results();
      };
      const auto plain = ModelFile(model).results();
      std::vector<std::vector<DriverResult>> changed;
      for (const std::vector<std::string>& names :
           {std::vector<std::string>{"attn_q", "attn_k", "attn_v"},
            {"attn_output"},
            {"attn_q", "attn_k", "attn_v", "attn_output"}}) {
        BOOST_TEST((with_biases(names, 0) == plain));
        const auto results = with_biases(names, 0.5);
        BOOST_TEST((results != plain));
        for (const auto& other : changed) BOOST_TEST((results != other));
        changed.push_back(results);
      }
    }
  }
  const ModelConfig config = ModelFile("llama").config();
  const ModelFile partial("llama", [&](GgufWriter& writer) {
    add_vector(writer, "blk.1.attn_k.bias", config.num_kv_heads * config.head_dim, 1);
  });
  BOOST_TEST(partial.error().find("\"blk.1.attn_k.bias\"") != std::string::npos, partial.error());
}

BOOST_AUTO_TEST_CASE(a_key_that_would_change_the_result_is_refused_with_its_value) {
  const auto number = [](const std::string& key, float value) -> Change {
    return [=](GgufWriter& writer) { writer.add(key, value); };
  };
  const auto whole = [](const std::string& key, std::uint32_t value) -> Change {
    return [=](GgufWriter& writer) { writer.add(key, value); };
  };
  const auto flag = [](const std::string& key, bool value) -> Change {
    return [=](GgufWriter& writer) { writer.add_flag(key, value); };
  };
  const std::pair<Change, std::string> cases[] = {
      {flag("llama.attention.causal", false), "\"llama.attention.causal\" is false"},
      {number("llama.rope.scaling.attn_factor", 1.5f), "llama.rope.scaling.attn_factor is 1.5"},
      {number("llama.logit_scale", 0.5f), "\"llama.logit_scale\" is 0.5"},
      {number("llama.embedding_scale", 12.0f), "\"llama.embedding_scale\" is 12"},
      {number("llama.attention.scale", 0.1f), "\"llama.attention.scale\" is 0.1"},
      {number("llama.attn_logit_softcapping", 50.0f), "\"llama.attn_logit_softcapping\" is 50"},
      {number("llama.final_logit_softcapping", 30.0f), "\"llama.final_logit_softcapping\" is 30"},
      {whole("llama.attention.sliding_window", 16), "\"llama.attention.sliding_window\" is 16"},
      {whole("llama.rope.dimension_count", 2), "\"llama.rope.dimension_count\" is 2"},
      {whole("llama.expert_shared_count", 8), "\"llama.expert_shared_count\" is 8"},
      {flag("llama.use_parallel_residual", true), "\"llama.use_parallel_residual\" is true"},
      {number("llama.rope.freq_base_swa", 1e4f), "\"llama.rope.freq_base_swa\" is 10000"},
      {whole("llama.not.yet.invented", 1), "\"llama.not.yet.invented\" is 1"}};
  for (const auto& [change, reason] : cases)
    BOOST_TEST((ModelFile("llama", change).error().find(reason) != std::string::npos),
               reason << ": " << ModelFile("llama", change).error());
  // Where it says whether heads are rotated.
  const std::string unrotated =
      ModelFile("granite", flag("granite.rope.scaling.finetuned", false)).error();
  BOOST_TEST(unrotated.find("\"granite.rope.scaling.finetuned\" is false") != std::string::npos,
             unrotated);
  const std::string error = ModelFile("qwen3", whole("qwen3.expert_count", 8)).error();
  BOOST_TEST(error.find("\"qwen3.expert_count\" is 8") != std::string::npos, error);
}

BOOST_AUTO_TEST_CASE(keys_that_change_nothing_are_taken) {
  const ModelFile file("qwen3", [](GgufWriter& writer) {
    writer.add("qwen3.vocab_size", std::uint32_t{512});
    writer.add_flag("qwen3.attention.causal", true);
    writer.add("qwen3.expert_count", std::uint32_t{0});
    writer.add("qwen3.logit_scale", 1.0f);
    writer.add("qwen3.rope.scaling.attn_factor", 1.0f);
    writer.add("qwen3.pooling_type", std::uint32_t{3});
    writer.add_flag("qwen3.rope.scaling.finetuned", false);
    writer.add("general.not.yet.invented", std::uint32_t{1});
  });
  BOOST_TEST((file.results() == ModelFile("qwen3").results()));
}

BOOST_AUTO_TEST_CASE(rotations_are_scaled_as_llama_cpp_reads_the_keys) {
  const auto rope = [](const Change& change) { return ModelFile("qwen3", change).config().rope; };
  const std::string prefix = "qwen3.rope.scaling.";
  const RopeConfig plain = rope({});
  for (const std::string& key : {prefix + "factor", std::string("qwen3.rope.scale_linear")}) {
    const RopeConfig linear = rope([&](GgufWriter& writer) { writer.add(key, 4.0f); });
    BOOST_TEST((linear.kind == RopeKind::kLinear), key);
    BOOST_TEST(linear.factor == 4);
    BOOST_TEST((rope([&](GgufWriter& writer) {
                  writer.add(prefix + "type", "none");
                  writer.add(key, 4.0f);
                }) == plain),
               key);
  }
  const RopeConfig both = rope([&](GgufWriter& writer) {
    writer.add("qwen3.rope.scale_linear", 2.0f);
    writer.add(prefix + "factor", 4.0f);
  });
  BOOST_TEST(both.factor == 4);
  const RopeConfig yarn = rope([&](GgufWriter& writer) {
    writer.add(prefix + "type", "yarn");
    writer.add(prefix + "factor", 4.0f);
    writer.add(prefix + "original_context_length", std::uint32_t{64});
    writer.add(prefix + "attn_factor", 0.5f);
    writer.add(prefix + "yarn_beta_fast", 16.0f);
  });
  BOOST_TEST((yarn.kind == RopeKind::kYarn));
  BOOST_TEST(yarn.original_max_positions == 64);
  BOOST_TEST(yarn.attention_factor == 0.5 * (1 + 0.1 * std::log(4.0)),
             boost::test_tools::tolerance(1e-9));
  BOOST_TEST(yarn.beta_fast == 16);
}

/// A file with nothing but arrays of so many booleans.
std::string error_of_booleans(const std::vector<std::uint64_t>& counts) {
  std::string bytes = "GGUF";
  const auto append = [&](auto value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  append(std::uint32_t{3});
  append(std::uint64_t{0});
  append(std::uint64_t{counts.size()});
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::string key = "flags." + std::to_string(i);
    append(std::uint64_t{key.size()});
    bytes += key;
    append(std::uint32_t{9});
    append(std::uint32_t{7});
    append(counts[i]);
    bytes.append(counts[i], '\1');
  }
  const auto parsed = parse_gguf(std::as_bytes(std::span(bytes)), "x.gguf");
  return parsed.ok() ? "" : parsed.error().message;
}

BOOST_AUTO_TEST_CASE(arrays_that_no_vocabulary_has_are_refused_before_they_are_kept) {
  BOOST_TEST(error_of_booleans({1000, 1}) == "");
  BOOST_TEST(
      error_of_booleans({10'000'000}) ==
      "x.gguf: metadata \"flags.0\": an array of 10000000 entries, at most 8388608 are supported "
      "in all arrays of a file");
  BOOST_TEST(
      error_of_booleans({3'000'000, 3'000'000, 3'000'000}) ==
      "x.gguf: metadata \"flags.2\": an array of 3000000 entries, at most 8388608 are supported "
      "in all arrays of a file, 6000000 are before it");
}

BOOST_AUTO_TEST_CASE(a_header_and_texts_that_no_model_has_are_refused) {
  const auto error_of = [](const GgufWriter& writer) {
    const std::string bytes = writer.bytes();
    const auto parsed = parse_gguf(std::as_bytes(std::span(bytes)), "x.gguf");
    return parsed.ok() ? "" : parsed.error().message;
  };
  GgufWriter text;
  text.add("general.name", std::string(17 << 20, 'x'));
  BOOST_TEST(error_of(text) ==
             "x.gguf: metadata \"general.name\": a string of 17825792 bytes, at most 16777216 are "
             "supported");
  GgufWriter keys;
  for (int i = 0; i < 70'000; ++i) keys.add(std::to_string(i), std::uint32_t{0});
  BOOST_TEST(error_of(keys) ==
             "x.gguf: the header declares 70000 metadata keys and 0 tensors, at most 65536 and "
             "262144 are supported");
}

}  // namespace
}  // namespace troupe
