#include "runtime/models/model_config.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/models/registry.hpp"
#include "runtime/models/transcription_rules.hpp"

namespace troupe {
namespace {

/// A small Llama's config.json with further fields.
std::string llama(const std::string& fields, const std::string& name = "LlamaForCausalLM") {
  return R"({"architectures":[")" + name + R"("],"hidden_size":64,"intermediate_size":128,
      "num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":100)" +
         (fields.empty() ? "" : "," + fields) + "}";
}

/// Gemma 3 with the sizes of its class.
std::string gemma3(const std::string& fields) {
  return R"({"architectures":["Gemma3ForCausalLM"],)" + fields + "}";
}

ModelConfig parsed(const std::string& json) {
  const auto config = parse_model_config(json);
  BOOST_REQUIRE_MESSAGE(config.ok(), json);
  return *config;
}

BOOST_AUTO_TEST_CASE(absent_keys_take_the_defaults_of_the_configuration_class) {
  const ModelConfig config = parsed(llama(""));
  BOOST_TEST(config.num_kv_heads == 2);
  BOOST_TEST(config.head_dim == 16);
  BOOST_TEST(config.max_model_len == 2048);
  BOOST_TEST(config.rope.theta == 1e4);
  BOOST_TEST(!config.tie_word_embeddings);
  BOOST_TEST(!config.dtype.has_value());
  BOOST_TEST(parsed(llama("", "Qwen3ForCausalLM")).head_dim == 128);
  BOOST_TEST(parsed(llama(R"("num_key_value_heads":null)")).num_kv_heads == 4);
  BOOST_TEST(parsed(llama(R"("head_dim":512)")).head_dim == 512);
}

BOOST_AUTO_TEST_CASE(gemma3_needs_no_sizes_at_all) {
  const ModelConfig config = parsed(
      R"({"architectures":["Gemma3ForConditionalGeneration"],"text_config":{},"torch_dtype":"bfloat16"})");
  BOOST_TEST(config.hidden_size == 2304);
  BOOST_TEST(config.num_layers == 26);
  BOOST_TEST(config.head_dim == 256);
  BOOST_TEST(config.vocab_size == 262208);
  BOOST_TEST(config.attention_scale == 1.0f / 16);
  BOOST_TEST(config.rope.theta == 1e6);
  BOOST_TEST(config.sliding_rope.theta == 1e4);
  BOOST_TEST(config.tie_word_embeddings);
  BOOST_TEST((config.dtype == DType::kBF16));
  BOOST_TEST(config.sliding_windows[0] == 4096);
  BOOST_TEST(config.sliding_windows[5] == 0);
}

BOOST_AUTO_TEST_CASE(both_layouts_of_rope_say_the_same) {
  const ModelConfig old_layout = parsed(llama(
      R"("rope_theta":5e5,"rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":1,
         "high_freq_factor":4,"original_max_position_embeddings":512})"));
  const ModelConfig new_layout = parsed(llama(
      R"("rope_parameters":{"rope_theta":5e5,"rope_type":"llama3","factor":8,"low_freq_factor":1,
         "high_freq_factor":4,"original_max_position_embeddings":512})"));
  BOOST_TEST((old_layout.rope == new_layout.rope));
  BOOST_TEST((old_layout.rope.kind == RopeKind::kLlama3));
  BOOST_TEST(old_layout.rope.theta == 5e5);
}

BOOST_AUTO_TEST_CASE(gemma3_has_rope_parameters_per_layer_type) {
  const ModelConfig config = parsed(
      R"({"architectures":["Gemma3ForCausalLM"],"rope_parameters":{
          "full_attention":{"rope_type":"linear","factor":8,"rope_theta":1e6},
          "sliding_attention":{"rope_type":"default","rope_theta":2e4}}})");
  BOOST_TEST((config.rope.kind == RopeKind::kLinear));
  BOOST_TEST(config.rope.factor == 8);
  BOOST_TEST((config.sliding_rope.kind == RopeKind::kDefault));
  BOOST_TEST(config.sliding_rope.theta == 2e4);
}

BOOST_AUTO_TEST_CASE(windows_follow_layer_types_or_the_family) {
  using Windows = std::vector<std::int32_t>;
  const std::string mistral = "MistralForCausalLM";
  BOOST_TEST(parsed(llama("", mistral)).sliding_windows == Windows(4, 4096));
  BOOST_TEST(parsed(llama(R"("sliding_window":null)", mistral)).sliding_windows == Windows(4, 0));
  BOOST_TEST(parsed(llama(R"("sliding_window":24)", mistral)).sliding_windows == Windows(4, 24));
  const std::string qwen2 = "Qwen2ForCausalLM";
  BOOST_TEST(parsed(llama(R"("sliding_window":24)", qwen2)).sliding_windows == Windows(4, 0));
  const std::string used = R"("use_sliding_window":true,"max_window_layers":0)";
  BOOST_TEST(parsed(llama(used, qwen2)).sliding_windows == Windows(4, 4096));
  BOOST_TEST(parsed(llama(R"("sliding_window":null,)" + used, qwen2)).sliding_windows ==
             Windows(4, 0));
  BOOST_TEST(
      parsed(llama(R"("sliding_window":24,"use_sliding_window":true,"max_window_layers":3)", qwen2))
          .sliding_windows == (Windows{0, 0, 0, 24}));
  BOOST_TEST(parsed(llama(R"("sliding_window":24,"use_sliding_window":true,"layer_types":
      ["sliding_attention","full_attention","full_attention","sliding_attention"])",
                          qwen2))
                 .sliding_windows == (Windows{24, 0, 0, 24}));
}

BOOST_AUTO_TEST_CASE(families_with_experts_say_how_many_and_in_which_layers) {
  using Layers = std::vector<bool>;
  const std::string mixtral = "MixtralForCausalLM";
  const ModelConfig plain = parsed(llama("", mixtral));
  BOOST_REQUIRE(plain.experts.has_value());
  BOOST_TEST(plain.experts->num_experts == 8);
  BOOST_TEST(plain.experts->num_chosen == 2);
  BOOST_TEST(plain.experts->intermediate_size == 128);
  BOOST_TEST(plain.experts->normalises_weights);
  BOOST_TEST((plain.experts->layers == Layers(4, true)));
  BOOST_TEST(plain.rms_norm_eps == 1e-5f);
  BOOST_TEST(plain.rope.theta == 1e6);
  BOOST_TEST(plain.sliding_windows.front() == 0);
  BOOST_TEST(parsed(llama(R"("num_experts":3)", mixtral)).experts->num_experts == 3);
  BOOST_TEST(parsed(llama(R"("sliding_window":24)", mixtral)).sliding_windows.front() == 24);

  const std::string qwen = "Qwen3MoeForCausalLM";
  const ModelConfig moe = parsed(llama("", qwen));
  BOOST_TEST(moe.experts->num_experts == 128);
  BOOST_TEST(moe.experts->num_chosen == 8);
  BOOST_TEST(moe.experts->intermediate_size == 768);
  BOOST_TEST(!moe.experts->normalises_weights);
  BOOST_TEST(moe.head_dim == 16);
  BOOST_TEST((moe.experts->layers == Layers(4, true)));
  BOOST_TEST((parsed(llama(R"("mlp_only_layers":[0,2])", qwen)).experts->layers ==
              Layers{false, true, false, true}));
  BOOST_TEST(
      (parsed(llama(R"("mlp_only_layers":[1],"decoder_sparse_step":2)", qwen)).experts->layers ==
       Layers{false, false, false, true}));
  BOOST_TEST(parsed(llama(R"("use_sliding_window":true,"max_window_layers":3)", qwen))
                 .sliding_windows.front() == 4096);
  // Row-parallel layers are cut as the smaller of the sizes allows.
  BOOST_TEST(parsed(llama(R"("moe_intermediate_size":66)", qwen)).canonical_shards() == 2);
  BOOST_TEST(parsed(llama("", "Qwen3ForCausalLM")).canonical_shards() == 4);
}

BOOST_AUTO_TEST_CASE(state_spaces_are_read_also_where_python_wrote_infinity) {
  const auto mamba = [](const std::string& fields) {
    return R"({"architectures":["Mamba2ForCausalLM"],"model_type":"mamba2","hidden_size":64,)"
           R"("num_hidden_layers":2,"vocab_size":99,"head_dim":16,"state_size":16,)"
           R"("note":"a \" Infinity",)" +
           fields + "}";
  };
  const ModelConfig config =
      parsed(mamba(R"("num_heads":8,"n_groups":2,"time_step_limit":[0.5, Infinity])"));
  BOOST_REQUIRE(config.state_space.has_value());
  BOOST_TEST(config.state_space->min_dt == 0.5f);
  BOOST_TEST(std::isinf(config.state_space->max_dt));
  BOOST_TEST(config.state_space->num_groups == 2);
  BOOST_TEST(config.canonical_shards() == 4);
  const ModelConfig tagged =
      parsed(mamba(R"("num_heads":8,"n_groups":8,"time_step_limit":[0,{"__float__":"Infinity"}])"));
  BOOST_TEST(std::isinf(tagged.state_space->max_dt));
  for (const std::string fields : {R"("num_heads":4,"n_groups":1)", R"("num_heads":8,"n_groups":3)",
                                   R"("num_heads":8,"n_groups":2,"conv_kernel":9)",
                                   R"("num_heads":8,"n_groups":2,"rescale_prenorm_residual":true)",
                                   R"("num_heads":8,"n_groups":2,"time_step_limit":[1])"})
    BOOST_TEST(!parse_model_config(mamba(fields)).ok(), fields);
}

BOOST_AUTO_TEST_CASE(null_takes_away_what_is_true_by_default) {
  const auto deepseek = [](std::string fields) {
    fields = R"("num_key_value_heads":4,"n_group":8)" + fields;
    return parsed(R"({"architectures":["DeepseekV3ForCausalLM"],"hidden_size":64,
        "num_hidden_layers":4,"num_attention_heads":4,"vocab_size":100,)" +
                  fields + "}");
  };
  const auto falcon = [](const std::string& fields) {
    return parsed(llama(R"("mamba_n_heads":8,"mamba_d_head":16,"mamba_d_ssm":128)" + fields,
                        "FalconH1ForCausalLM"));
  };
  BOOST_TEST(deepseek("").rope.pairs_neighbours);
  BOOST_TEST(deepseek("").experts->normalises_weights);
  BOOST_TEST(falcon("").state_space->conv_bias);
  BOOST_TEST(falcon("").state_space->norm_before_gate);
  const ModelConfig nulls = deepseek(R"(,"rope_interleave":null,"norm_topk_prob":null)");
  BOOST_TEST(!nulls.rope.pairs_neighbours);
  BOOST_TEST(!nulls.experts->normalises_weights);
  const ModelConfig states = falcon(R"(,"mamba_conv_bias":null,"mamba_norm_before_gate":null)");
  BOOST_TEST(!states.state_space->conv_bias);
  BOOST_TEST(!states.state_space->norm_before_gate);
}

BOOST_AUTO_TEST_CASE(multipliers_caps_and_rotations_are_those_of_the_family) {
  const ModelConfig gemma = parsed(llama("", "Gemma2ForCausalLM"));
  BOOST_TEST(gemma.attention_softcap == 50);
  BOOST_TEST(gemma.logit_softcap == 30);
  BOOST_TEST(gemma.embedding_scale == 8);
  BOOST_TEST(gemma.sliding_windows == (std::vector<std::int32_t>{4096, 0, 4096, 0}));
  BOOST_TEST(
      parsed(llama(R"("attn_logit_softcapping":null)", "Gemma2ForCausalLM")).attention_softcap ==
      0);
  const ModelConfig granite =
      parsed(llama(R"("residual_multiplier":0.25,"logits_scaling":4)", "GraniteForCausalLM"));
  BOOST_TEST(granite.residual_scale == 0.25f);
  BOOST_TEST(granite.logit_scale == 0.25f);
  BOOST_TEST(granite.attention_scale == 1);
  BOOST_TEST((parsed(llama("", "SmolLM3ForCausalLM")).is_unrotated ==
              std::vector<bool>{false, false, false, true}));
  const ModelConfig glm = parsed(llama("", "Glm4ForCausalLM"));
  BOOST_TEST(glm.rope.pairs_neighbours);
  BOOST_TEST(glm.rope.rotary_dim(glm.head_dim) == 64);
  BOOST_TEST(glm.attention_bias);
  const ModelConfig whole = parsed(llama(R"("partial_rotary_factor":null)", "Glm4ForCausalLM"));
  BOOST_TEST(whole.rope.rotary_dim(whole.head_dim) == 128);
  const ModelConfig moe =
      parsed(llama(R"("shared_expert_intermediate_size":66)", "Qwen2MoeForCausalLM"));
  BOOST_TEST(moe.experts->shared_size == 66);
  BOOST_TEST(moe.canonical_shards() == 2);
  const ModelConfig phi = parsed(llama(
      R"("max_position_embeddings":1024,"original_max_position_embeddings":64,"rope_scaling":{
         "type":"su","short_factor":[1,1,1,1,1,1,1,2],"long_factor":[1,2,3,4,5,6,7,8]})",
      "Phi3ForCausalLM"));
  BOOST_TEST((phi.rope.kind == RopeKind::kLongRope));
  BOOST_TEST(phi.rope.factor == 16);
  BOOST_TEST(phi.rope.original_max_positions == 64);
  BOOST_TEST(phi.rope.attention_factor == std::sqrt(1 + std::log(16.0) / std::log(64.0)));
  BOOST_TEST(phi.max_model_len == 1024);
}

BOOST_AUTO_TEST_CASE(what_is_wrong_or_unsupported_is_refused_by_name) {
  const std::pair<std::string, std::string> cases[] = {
      {"[]", "not a JSON object"},
      {"{}", "architectures is missing"},
      {R"({"architectures":["FooForCausalLM"]})", "FooForCausalLM is not supported"},
      {R"({"architectures":["Qwen3ForCausalLM"]})", "hidden_size is missing"},
      {llama(R"("num_key_value_heads":3)"), "not a multiple of num_key_value_heads"},
      {llama(R"("head_dim":"x")"), "head_dim is \"x\""},
      {llama(R"("num_hidden_layers":1e9)"), "num_hidden_layers"},
      {llama(R"("head_dim":15)"), "15 of 15 elements of a head"},
      {llama(R"("max_position_embeddings":16,"sliding_window":24,
                 "rope_scaling":{"type":"dynamic","factor":4})"),
       "sliding_window is 24, LlamaForCausalLM has none"},
      {llama(R"("head_dim":514)"), "head_dim is 514, at most 512 is supported"},
      {llama(R"("rope_theta":0)"), "the base of a rotation is 0.0, it must be above 1"},
      {llama(R"("partial_rotary_factor":0.5,"rope_scaling":{"type":"linear","factor":2})"),
       "rope_scaling: partial_rotary_factor is 0.5, which is not supported with a scaled"},
      {gemma3(R"("rope_local_base_freq":0)"), "the base of a rotation is 0.0, it"},
      {gemma3(R"("rope_parameters":{"sliding_attention":{"rope_type":"linear","factor":2,
          "partial_rotary_factor":0.13}})"),
       "rope_parameters: sliding_attention: partial_rotary_factor is 0.13"},
      {gemma3(R"("rope_parameters":{"sliding_attention":[]})"),
       "rope_parameters: sliding_attention is not an object"},
      {llama(R"("hidden_act":"gelu")"), "activation gelu"},
      {llama(R"("num_experts_per_tok":9)", "MixtralForCausalLM"),
       "num_experts_per_tok is 9, there are 8 experts"},
      {llama(R"("num_local_experts":4,"num_experts":8)", "MixtralForCausalLM"),
       "num_local_experts is 4, but num_experts is 8"},
      {llama(R"("decoder_sparse_step":0)", "Qwen3MoeForCausalLM"), "decoder_sparse_step is 0"},
      {llama(R"("mlp_only_layers":3)", "Qwen3MoeForCausalLM"),
       "mlp_only_layers is not a list of numbers"},
      {llama(R"("quantization_config":{"bits":4})"), "quant_method (none) is not supported"},
      {llama(R"("quantization_config":{"quant_method":"hqq"})"),
       "quantization_config: quant_method hqq is not supported; supported are gptq, awq"},
      {llama(R"("quantization_config":{"quant_method":"gptq","bits":3})"), "bits 3 is not"},
      {llama(R"("quantization_config":{"quant_method":"gptq","bits":4,
          "checkpoint_format":"marlin"})"),
       "checkpoint_format marlin is not supported; supported are gptq, gptq_v2"},
      {llama(R"("quantization_config":{"quant_method":"awq","bits":4,"version":"gemv"})"),
       "version gemv is not"},
      {llama(R"("quantization_config":{"quant_method":"awq"})"), "w_bit is missing"},
      {llama(R"("quantization_config":{"quant_method":"fp8","weight_block_size":[128]})"),
       "weight_block_size is not a pair of sizes"},
      {llama(R"("compression_config":{"format":"nvfp4-pack-quantized"})"),
       "compression_config: format nvfp4-pack-quantized is not"},
      {llama(R"("compression_config":{"format":"pack-quantized","config_groups":{"a":{"weights":
          {"num_bits":2}}}})"),
       "config_groups: a: num_bits 2 is not supported; supported are 4, 8"},
      {llama(R"("compression_config":{"format":"dense","sparsity_config":
          {"format":"sparse-24-bitmask"}})"),
       "sparsity_config is not supported"},
      {llama(R"("torch_dtype":"float8")"), "dtype float8"},
      {llama(R"("rope_scaling":{"rope_type":"axial","factor":2})"), "rope type axial"},
      {llama(R"("rope_scaling":{"rope_type":"longrope","factor":2})"), "short_factor is missing"},
      {llama(R"("rope_scaling":{"rope_type":"longrope","factor":2,"short_factor":[1],
          "long_factor":[1]})"),
       "1 numbers of short_factor for the 8 frequencies of a head"},
      {llama(R"("rope_scaling":{"rope_type":"longrope","factor":2,"short_factor":[1,1,1,1,1,1,1,1],
          "long_factor":[1,1,1,1,1,1,1,0]})"),
       "one of numbers of long_factor is 0.0"},
      {llama(R"("rope_scaling":{"rope_type":"linear","factor":2})", "Phi3ForCausalLM"),
       "rope_scaling: rope type linear is not supported for this architecture"},
      {llama(R"("partial_rotary_factor":0)", "Phi3ForCausalLM"), "partial_rotary_factor is 0.0"},
      {llama(R"("partial_rotary_factor":2)", "Glm4ForCausalLM"), "partial_rotary_factor is 2.0"},
      {llama(R"("head_dim":6,"rope_scaling":{"type":"yarn","factor":2})", "Glm4ForCausalLM"),
       "3 of 6 elements of a head"},
      {llama(R"("attn_logit_softcapping":0)", "Gemma2ForCausalLM"),
       "attn_logit_softcapping is 0.0, not a number above 0"},
      {llama(R"("final_logit_softcapping":-1)", "Gemma2ForCausalLM"),
       "final_logit_softcapping is -1.0, not a number above 0"},
      {llama(R"("logits_scaling":0)", "GraniteForCausalLM"),
       "logits_scaling is 0.0, not a number above 0"},
      {llama(R"("sliding_window":8)", "GraniteForCausalLM"),
       "sliding_window is 8, GraniteForCausalLM has none"},
      {llama(R"("no_rope_layers":[1,0])", "SmolLM3ForCausalLM"),
       "no_rope_layers has 2 entries for 4 layers"},
      {llama(R"("rope_scaling":{"rope_type":"linear"})"), "factor is missing"},
      {llama(R"("rope_scaling":{"rope_type":"linear","factor":0})"), "factor is 0"},
  };
  for (const auto& [json, reason] : cases) {
    const auto config = parse_model_config(json);
    BOOST_REQUIRE_MESSAGE(!config.ok(), json);
    BOOST_TEST(config.error().message.find(reason) != std::string::npos, config.error().message);
  }
}

/// LLaVA 1.5 with further fields, as published: most sizes are those of the classes.
std::string llava(const std::string& fields, const std::string& vision = "") {
  return R"({"architectures":["LlavaForConditionalGeneration"],"model_type":"llava",
      "text_config":{"model_type":"llama","vocab_size":32064,"max_position_embeddings":4096},
      "vision_config":{"model_type":"clip_vision_model","hidden_size":1024,"image_size":336,
      "intermediate_size":4096,"num_attention_heads":16,"num_hidden_layers":24,"patch_size":14)" +
         vision + "}" + (fields.empty() ? "" : "," + fields) + "}";
}

BOOST_AUTO_TEST_CASE(llava_is_read_as_published) {
  const ModelConfig config = parsed(llava(""));
  BOOST_TEST(config.architecture == "LlavaForConditionalGeneration");
  BOOST_TEST(config.hidden_size == 4096);
  BOOST_TEST(config.intermediate_size == 11008);
  BOOST_TEST(config.vocab_size == 32064);
  BOOST_TEST(config.max_model_len == 4096);
  BOOST_TEST(config.vision->num_used_layers == 23);
  BOOST_TEST(config.vision->has_class_token);
  BOOST_TEST((config.vision->activation == Gelu::kSigmoid));
  BOOST_TEST(config.vision->layer_norm_eps == 1e-5f);
  BOOST_TEST((config.projector->activation == Gelu::kErf));
  BOOST_TEST(config.projector->has_bias);
  BOOST_TEST(config.image_tokens->per_image == 576);
  BOOST_TEST(config.image_tokens->soft == 32000);
  BOOST_TEST(!config.image_tokens->marks.has_value());
  const ModelConfig full = parsed(llava(R"("vision_feature_select_strategy":"full",
      "vision_feature_layer":[-1],"image_token_id":7,"multimodal_projector_bias":false)"));
  BOOST_TEST(full.image_tokens->per_image == 577);
  BOOST_TEST(full.image_tokens->soft == 7);
  BOOST_TEST(full.vision->num_used_layers == 24);
  BOOST_TEST(!full.projector->has_bias);
}

BOOST_AUTO_TEST_CASE(what_llava_cannot_do_is_refused_by_name) {
  const std::pair<std::string, std::string> cases[] = {
      {llava(R"("vision_feature_layer":[-2,-5])"),
       "config.json: vision_feature_layer has 2 layers, only one is supported"},
      {llava(R"("vision_feature_layer":0)"),
       "vision_feature_layer is 0, which is none of the encoder's 24 layers"},
      {llava(R"("vision_feature_layer":"last")"),
       "vision_feature_layer is neither an integer nor a list of them"},
      {llava(R"("vision_feature_select_strategy":"cls")"),
       "vision_feature_select_strategy cls is not supported, only default and full"},
      {llava(R"("projector_hidden_act":"relu")"), "projector_hidden_act relu is not supported"},
      {llava(R"("image_token_index":40000)"),
       "image_token_index is 40000, the vocabulary has 32064"},
      {llava(R"("image_token_index":5,"image_token_id":6)"),
       "image_token_id is 6, but image_token_index is 5"},
      {llava("", R"(,"hidden_act":"silu")"), "config.json: vision_config: hidden_act silu is not"},
      {llava("", R"(,"model_type":"pixtral")"), "vision_config: model_type pixtral is not"},
      {R"({"architectures":["LlavaForConditionalGeneration"],"model_type":"llava",
          "text_config":{"model_type":"gemma"}})",
       "text_config: model_type is not llama, mistral, qwen2"},
  };
  for (const auto& [json, reason] : cases) {
    const auto config = parse_model_config(json);
    BOOST_REQUIRE_MESSAGE(!config.ok(), json);
    BOOST_TEST(config.error().message.find(reason) != std::string::npos, config.error().message);
  }
}

BOOST_AUTO_TEST_CASE(only_gguf_files_list_divisors_of_frequencies) {
  const auto with = [](const std::string& divisors) {
    return llama(R"("rope_parameters":{"frequency_divisors":)" + divisors + "}");
  };
  BOOST_TEST(parsed(with("[1]")).rope.divisors.empty());
  for (const auto& [divisors, reason] :
       {std::pair{"[1]", "1 frequency_divisors for the "},
        {"\"x\"", "frequency_divisors is not a list of numbers"}}) {
    const auto config = parse_model_config(with(divisors), /*is_gguf=*/true);
    BOOST_REQUIRE(!config.ok());
    BOOST_TEST(config.error().message.find(reason) != std::string::npos, config.error().message);
  }
}

BOOST_AUTO_TEST_CASE(null_says_that_no_kv_heads_are_shared) {
  const std::string sizes =
      R"("hidden_size":64,"intermediate_size":128,"num_hidden_layers":4,"vocab_size":100,)"
      R"("num_attention_heads":16)";
  const auto heads = [&](const std::string& name, const std::string& field) {
    return parsed(R"({"architectures":[")" + name + R"("],)" + sizes + field + "}").num_kv_heads;
  };
  const std::string null = R"(,"num_key_value_heads":null)";
  for (const std::string name : {"LlamaForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"})
    BOOST_TEST(heads(name, null) == 16, name);
  BOOST_TEST(heads("LlamaForCausalLM", "") == 16);
  BOOST_TEST(heads("MistralForCausalLM", "") == 8);
}

BOOST_AUTO_TEST_CASE(fields_that_the_reference_does_not_read_change_nothing) {
  const ModelConfig bert = parsed(llama(R"("head_dim":7)", "BertModel"));
  BOOST_TEST(bert.num_kv_heads == 4);
  BOOST_TEST(bert.head_dim == 16);
  const ModelConfig whisper =
      parsed(R"({"architectures":["WhisperForConditionalGeneration"],"scale_embedding":true})");
  BOOST_TEST(whisper.embedding_scale == 1);
}

BOOST_AUTO_TEST_CASE(an_encoder_that_is_a_decoder_is_refused) {
  const auto config = parse_model_config(llama(R"("is_decoder":true)", "BertModel"));
  BOOST_REQUIRE(!config.ok());
  BOOST_TEST(config.error().message == "config.json: is_decoder is true, which is not supported");
  BOOST_TEST(parse_model_config(llama(R"("is_decoder":false)", "BertModel")).ok());
}

BOOST_AUTO_TEST_CASE(a_classifier_names_what_makes_probabilities_of_its_logits) {
  using enum ClassActivation;
  const std::string name = "BertForSequenceClassification";
  const auto activations = [&](const std::string& fields) {
    const ModelConfig config = parsed(llama(fields, name));
    return std::pair(config.class_activation, config.score_activation);
  };
  const std::string one = R"("num_labels":1,)";
  const std::string identity = R"("torch.nn.modules.linear.Identity")";
  BOOST_CHECK(activations(R"("num_labels":1)") == std::pair(kSigmoid, kSigmoid));
  BOOST_CHECK(activations("") == std::pair(kSoftmax, kSoftmax));
  BOOST_CHECK(activations(R"("problem_type":"multi_label_classification")") ==
              std::pair(kSigmoid, kSoftmax));
  BOOST_CHECK(activations(one + R"("problem_type":"regression")") == std::pair(kNone, kSigmoid));
  BOOST_CHECK(activations(one + R"("sbert_ce_default_activation_function":)" + identity) ==
              std::pair(kSigmoid, kNone));
  const std::string nested = R"("sentence_transformers":{"activation_fn":)";
  BOOST_CHECK(activations(one + nested + identity + R"(,"version":"4.0.1"})") ==
              std::pair(kSigmoid, kNone));
  // The newer place decides.
  BOOST_CHECK(activations(one + R"("sbert_ce_default_activation_function":)" + identity + "," +
                          nested + R"("torch.nn.modules.activation.Sigmoid"})") ==
              std::pair(kSigmoid, kSigmoid));

  const std::pair<std::string, std::string> refused[] = {
      {R"("problem_type":"ranking")", "problem_type ranking is not supported"},
      {R"("sbert_ce_default_activation_function":"torch.nn.modules.activation.Tanh")",
       "sbert_ce_default_activation_function torch.nn.modules.activation.Tanh is not supported"},
      {nested + R"("Tanh"})", "sentence_transformers: activation_fn Tanh is not supported"},
      {nested + "1}", "sentence_transformers: activation_fn is not a string"}};
  for (const auto& [fields, reason] : refused) {
    const auto config = parse_model_config(llama(fields, name));
    BOOST_REQUIRE_MESSAGE(!config.ok(), fields);
    BOOST_TEST(config.error().message.find(reason) != std::string::npos, config.error().message);
  }
}

BOOST_AUTO_TEST_CASE(a_field_may_have_the_other_of_its_two_names) {
  const auto whisper = [](const std::string& fields) {
    return R"({"architectures":["WhisperForConditionalGeneration"],"d_model":48,)" + fields + "}";
  };
  BOOST_TEST(parsed(whisper(R"("num_hidden_layers":3)")).speech->num_layers == 3);
  BOOST_TEST(parsed(whisper(R"("num_attention_heads":2)")).speech->num_heads == 2);
  for (const std::string fields :
       {R"("num_hidden_layers":3,"encoder_layers":2)", R"("hidden_size":32)",
        R"("num_attention_heads":2,"encoder_attention_heads":4)",
        R"("num_attention_heads":2,"num_key_value_heads":1)"}) {
    const auto refused = parse_model_config(whisper(fields));
    BOOST_REQUIRE(!refused.ok());
    BOOST_TEST(refused.error().message.find(", but ") != std::string::npos);
  }
  const ModelConfig gemma = parsed(
      R"({"architectures":["Gemma3ForConditionalGeneration"],"text_config":{"vocab_size":64},
          "vision_config":{"image_size":896,"patch_size":14},"image_token_id":60,
          "boi_token_id":3,"eoi_token_id":4})");
  BOOST_TEST(gemma.image_tokens->soft == 60);
  BOOST_TEST(gemma.image_tokens->marks->begin == 3);
  BOOST_TEST(gemma.image_tokens->marks->end == 4);
  const auto outside = parse_model_config(
      R"({"architectures":["Gemma3ForConditionalGeneration"],"text_config":{"vocab_size":64},
          "vision_config":{"image_size":896,"patch_size":14},"boi_token_id":3,"eoi_token_id":4})");
  BOOST_REQUIRE(!outside.ok());
  BOOST_TEST(outside.error().message ==
             "config.json: image_token_index is 262144, the vocabulary has 64 tokens");
}

BOOST_AUTO_TEST_CASE(gemma3_caps_logits_where_it_has_no_encoder) {
  const std::string cap = R"("final_logit_softcapping":2.0)";
  BOOST_TEST(parsed(gemma3(cap)).logit_softcap == 2);
  BOOST_TEST(parsed(gemma3(R"("final_logit_softcapping":null)")).logit_softcap == 0);
  const auto nested = parse_model_config(
      R"({"architectures":["Gemma3ForConditionalGeneration"],"text_config":{)" + cap + "}}");
  BOOST_REQUIRE(!nested.ok());
  BOOST_TEST(nested.error().message.find("final_logit_softcapping") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_is_nested_too_deeply_is_refused) {
  const auto nested = [](std::size_t depth) {
    return llama("\"x\":" + std::string(depth, '[') + std::string(depth, ']'));
  };
  BOOST_TEST(parse_model_config(nested(10)).ok());
  BOOST_TEST(!parse_model_config(nested(1'000'000)).ok());
}

BOOST_AUTO_TEST_CASE(every_registered_architecture_has_a_configuration) {
  for (const RegisteredArchitecture* architecture : registered_architectures()) {
    const std::string name(architecture->name);
    // What Llama's configuration has not, or otherwise.
    std::string fields;
    if (name == "DeepseekV2ForCausalLM")
      fields = R"("num_key_value_heads":4,"num_experts_per_tok":2)";
    if (name == "DeepseekV3ForCausalLM") fields = R"("num_key_value_heads":4)";
    if (name == "WhisperForConditionalGeneration")
      fields = R"("num_key_value_heads":4,"decoder_attention_heads":4)";
    if (name == "Mamba2ForCausalLM") fields = R"("num_heads":8,"head_dim":16)";
    const auto config = parse_model_config(llama(fields, name));
    BOOST_TEST(config.ok(),
               architecture->name << ": " << (config.ok() ? "" : config.error().message));
  }
}

BOOST_AUTO_TEST_CASE(generation_config_gives_ids_and_sampling_defaults) {
  const auto config = parse_generation_config(
      R"({"eos_token_id":[1,6],"temperature":0.6,"top_k":64,"top_p":null,"bos_token_id":2})");
  BOOST_REQUIRE(config.ok());
  BOOST_TEST((config->eos_token_ids == std::vector<TokenId>{1, 6}));
  BOOST_TEST(*config->temperature == 0.6f);
  BOOST_TEST(*config->top_k == 64);
  BOOST_TEST(!config->top_p.has_value());
  BOOST_TEST(!config->do_sample.has_value());
  BOOST_TEST(*parse_generation_config(R"({"do_sample":false})")->do_sample == false);
  BOOST_TEST(!parse_generation_config(R"({"do_sample":"no"})").ok());
  BOOST_TEST(parse_generation_config(R"({"eos_token_id":7})")->eos_token_ids.front() == 7);
  BOOST_TEST(!parse_generation_config(R"({"eos_token_id":"x"})").ok());
  BOOST_TEST(load_generation_config("/nonexistent").ok());
}

BOOST_AUTO_TEST_CASE(the_rules_of_a_transcript_come_from_the_generation_config) {
  namespace fs = std::filesystem;
  std::string path = (fs::temp_directory_path() / "troupe-rules-XXXXXX").string();
  BOOST_REQUIRE(mkdtemp(path.data()) != nullptr);
  const auto load = [&](const std::string& text) {
    std::ofstream(fs::path(path) / "generation_config.json") << text;
    return load_transcription_rules(path);
  };
  const auto rules =
      load(R"({"eos_token_id":9,"no_timestamps_token_id":11,"suppress_tokens":[3,6],)"
           R"("begin_suppress_tokens":[2,9],"max_initial_timestamp_index":50})");
  BOOST_REQUIRE(rules.ok());
  BOOST_TEST((rules->suppressed == std::vector<TokenId>{3, 6}));
  BOOST_TEST((rules->suppressed_first == std::vector<TokenId>{2, 9}));
  BOOST_TEST(rules->end == 9);
  BOOST_TEST((rules->no_timestamps == TokenId{11}));
  BOOST_TEST((rules->max_initial_timestamp == 50));
  BOOST_TEST(!load(R"({"suppress_tokens":null})")->no_timestamps);
  for (const auto& [text, named] :
       {std::pair{R"([1])", "JSON object"},
        {R"({"suppress_tokens":[1,"x"]})", "suppress_tokens is not a list"},
        {R"({"begin_suppress_tokens":[-1]})", "begin_suppress_tokens is not a list"},
        {R"({"no_timestamps_token_id":4294967296})", "no_timestamps_token_id is 4294967296"},
        {R"({"max_initial_timestamp_index":-2})", "max_initial_timestamp_index is -2"}}) {
    const auto wrong = load(text);
    BOOST_REQUIRE_MESSAGE(!wrong.ok(), text);
    BOOST_TEST(wrong.error().message.find(named) != std::string::npos, wrong.error().message);
  }
  fs::remove_all(path);
  BOOST_TEST(load_transcription_rules(path).ok());  // without the file
}

}  // namespace
}  // namespace troupe
