#!/usr/bin/env python3
"""Writes tests/golden/configs: variants of config.json, and what transformers 5 computes with each of them.

  make_config_goldens.py [FAMILY...]    needs numpy, safetensors, torch and transformers 5, which no test does

With families, only their cases are made anew, by the same version of transformers.

weights/FAMILY.safetensors are tiny random weights, shared by all variants of a family. They hold more than most of them
use (biases, a second head), as published checkpoints do. cases.json is the list: the family, the whole config.json,
what is changed about the tensors, the field that the case is about, and

  logprobs    the log-probability of each token of the prompt after its first, in float32; or
  refused     true where ours must refuse and name the field, as the result would be another;
  fails       true where transformers itself ends with an error or contradicts itself (with and without its cache).

A case of the last kind must be refused or give some result; it is there to show that nothing else happens.
"""
import json
import pathlib
import shutil
import sys
import tempfile
import warnings

import numpy
import torch
import transformers
from safetensors.torch import load_file
from safetensors.torch import save_file as save_torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "golden" / "configs"
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, VOCABULARY, POSITIONS = 4, 32, 48, 4, 2, 96, 4096
NUM_EXPERTS, EXPERT_INNER = 4, 24
STATE_HEADS, STATE_HEAD_DIM, STATE_SIZE = 8, 8, 8
PROMPT = [int(x) for x in numpy.random.default_rng(3).integers(0, VOCABULARY, 48)]
ABSENT = "(absent)"

COMMON = dict(hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
              num_key_value_heads=KV_HEADS, vocab_size=VOCABULARY, max_position_embeddings=POSITIONS,
              rms_norm_eps=1e-6, torch_dtype="bfloat16")
BASES = {
    "llama": dict(COMMON, architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu"),
    "qwen2": dict(COMMON, architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_act="silu"),
    "qwen3": dict(COMMON, architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_act="silu", head_dim=8),
    "mistral": dict(COMMON, architectures=["MistralForCausalLM"], model_type="mistral", hidden_act="silu",
                    sliding_window=8),
    "gemma3": dict(COMMON, architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", head_dim=8,
                   hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=8, sliding_window=8,
                   sliding_window_pattern=2, tie_word_embeddings=False, pad_token_id=0),
    "mixtral": dict(COMMON, architectures=["MixtralForCausalLM"], model_type="mixtral", hidden_act="silu",
                    num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": dict(COMMON, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_act="silu",
                      head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=EXPERT_INNER,
                      norm_topk_prob=True),
    "gemma2": dict(COMMON, architectures=["Gemma2ForCausalLM"], model_type="gemma2", head_dim=8,
                   hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=8, sliding_window=8,
                   attn_logit_softcapping=2.0, final_logit_softcapping=4.0, tie_word_embeddings=False, pad_token_id=0),
    "phi3": dict(COMMON, architectures=["Phi3ForCausalLM"], model_type="phi3", hidden_act="silu", pad_token_id=0),
    "olmo2": dict(COMMON, architectures=["Olmo2ForCausalLM"], model_type="olmo2", hidden_act="silu", pad_token_id=0),
    "granite": dict(COMMON, architectures=["GraniteForCausalLM"], model_type="granite", hidden_act="silu",
                    embedding_multiplier=2.0, residual_multiplier=0.5, attention_multiplier=0.25, logits_scaling=2.0),
    "smollm3": dict(COMMON, architectures=["SmolLM3ForCausalLM"], model_type="smollm3", hidden_act="silu",
                    no_rope_layers=[1, 1, 0, 1], tie_word_embeddings=False, pad_token_id=0),
    "glm4": dict(COMMON, architectures=["Glm4ForCausalLM"], model_type="glm4", hidden_act="silu", head_dim=8,
                 pad_token_id=0),
    "qwen2_moe": dict(COMMON, architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", hidden_act="silu",
                      num_experts=4, num_experts_per_tok=2, moe_intermediate_size=EXPERT_INNER,
                      shared_expert_intermediate_size=INNER),
    "mamba2": dict(architectures=["Mamba2ForCausalLM"], model_type="mamba2", hidden_size=HIDDEN, num_hidden_layers=LAYERS,
                   vocab_size=VOCABULARY, num_heads=STATE_HEADS, head_dim=STATE_HEAD_DIM, state_size=STATE_SIZE, n_groups=2,
                   conv_kernel=4, expand=2, chunk_size=16, torch_dtype="bfloat16"),
    "bamba": dict(COMMON, architectures=["BambaForCausalLM"], model_type="bamba", attn_layer_indices=[1, 3],
                  mamba_n_heads=STATE_HEADS, mamba_d_head=STATE_HEAD_DIM, mamba_d_state=STATE_SIZE, mamba_n_groups=2,
                  mamba_chunk_size=16),
    "falcon_h1": dict(COMMON, architectures=["FalconH1ForCausalLM"], model_type="falcon_h1", mamba_d_ssm=2 * HIDDEN,
                      mamba_n_heads=STATE_HEADS, mamba_d_head=STATE_HEAD_DIM, mamba_d_state=STATE_SIZE, mamba_n_groups=2,
                      mamba_chunk_size=16, mamba_rms_norm=True, mamba_norm_before_gate=False, embedding_multiplier=2.0,
                      key_multiplier=0.5, lm_head_multiplier=0.5, ssm_multipliers=[0.7, 0.9, 0.4, 0.5, 0.35],
                      mlp_multipliers=[0.8, 0.6]),
    "gpt_oss": dict(COMMON, architectures=["GptOssForCausalLM"], model_type="gpt_oss", head_dim=8, sliding_window=8,
                    num_local_experts=4, num_experts_per_tok=2, pad_token_id=0),
    "llama4": dict(COMMON, architectures=["Llama4ForCausalLM"], model_type="llama4_text", head_dim=8,
                   intermediate_size=EXPERT_INNER, intermediate_size_mlp=INNER, no_rope_layers=[1, 1, 0, 1],
                   attention_chunk_size=8, floor_scale=4, num_local_experts=4, num_experts_per_tok=2,
                   interleave_moe_layer_step=2, pad_token_id=0),
    "deepseek_v3": dict(COMMON, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3",
                        num_key_value_heads=HEADS, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8,
                        qk_rope_head_dim=4, v_head_dim=12, n_routed_experts=4, n_group=2, topk_group=1,
                        num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1,
                        moe_intermediate_size=EXPERT_INNER, num_nextn_predict_layers=0),
}
# What they call the mixture in a layer, the matrices of an expert, and its size.
EXPERTS = {"mixtral": ("block_sparse_moe", ("w1", "w3", "w2"), INNER),
           "qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj"), EXPERT_INNER),
           "qwen2_moe": ("mlp", ("gate_proj", "up_proj", "down_proj"), EXPERT_INNER),
           "deepseek_v3": ("mlp", ("gate_proj", "up_proj", "down_proj"), EXPERT_INNER)}
GEMMAS = ("gemma2", "gemma3")
STATES = ("mamba2", "bamba", "falcon_h1")
NORMS = {"gemma2": ["pre_feedforward_layernorm", "post_feedforward_layernorm"],
         "gemma3": ["pre_feedforward_layernorm", "post_feedforward_layernorm"],
         "olmo2": ["post_feedforward_layernorm"], "glm4": ["post_self_attn_layernorm", "post_mlp_layernorm"]}
# Matrices that hold others under each other.
FUSED = {"phi3": {"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                  "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")},
         "glm4": {"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}}


def weights(family):
    """Large enough that positions, windows and biases show."""
    random = numpy.random.default_rng(len(family) * 7 + ord(family[-1]))
    head_dim = HIDDEN // HEADS
    norm_mean = 0.0 if family in GEMMAS else 1.0

    def normal(shape, deviation, mean=0.0):
        values = (random.standard_normal(shape) * deviation + mean).astype(numpy.float32)
        return torch.from_numpy(values).to(torch.bfloat16)

    tensors = {"model.embed_tokens.weight": normal((VOCABULARY, HIDDEN), 0.3 if family in GEMMAS else 1.0),
               "lm_head.weight": normal((VOCABULARY, HIDDEN), 0.4),
               "model.norm.weight": normal((HIDDEN,), 0.2, norm_mean)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        sizes = {"self_attn.q_proj": (HEADS * head_dim, HIDDEN), "self_attn.k_proj": (KV_HEADS * head_dim, HIDDEN),
                 "self_attn.v_proj": (KV_HEADS * head_dim, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * head_dim),
                 "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
        for name, shape in sizes.items():
            scale = 2.0 if name in ("self_attn.q_proj", "self_attn.k_proj") else 1.0
            tensors[prefix + name + ".weight"] = normal(shape, scale * shape[1] ** -0.5)
            tensors[prefix + name + ".bias"] = normal((shape[0],), 0.3)
        for fused, parts in FUSED.get(family, {}).items():
            for suffix in (".weight", ".bias"):
                tensors[prefix + fused + suffix] = torch.cat([tensors.pop(prefix + part + suffix) for part in parts])
        for name in ["input_layernorm", "post_attention_layernorm", *NORMS.get(family, ())]:
            tensors[prefix + name + ".weight"] = normal((HIDDEN,), 0.2, norm_mean)
        for name, heads in (("q_norm", HEADS), ("k_norm", KV_HEADS)):
            size = heads * head_dim if family == "olmo2" else head_dim
            tensors[prefix + f"self_attn.{name}.weight"] = normal((size,), 0.2, norm_mean)
        if family in EXPERTS:
            mixture, (gate, up, down), inner = EXPERTS[family]
            tensors[prefix + f"{mixture}.gate.weight"] = normal((NUM_EXPERTS, HIDDEN), 0.5)
            for expert in range(NUM_EXPERTS):
                for name, shape in ((gate, (inner, HIDDEN)), (up, (inner, HIDDEN)), (down, (HIDDEN, inner))):
                    tensors[prefix + f"{mixture}.experts.{expert}.{name}.weight"] = normal(shape, shape[1] ** -0.5)
        if family == "qwen2_moe":
            for name, shape in (("gate_proj", (INNER, HIDDEN)), ("up_proj", (INNER, HIDDEN)),
                                ("down_proj", (HIDDEN, INNER))):
                tensors[prefix + f"mlp.shared_expert.{name}.weight"] = normal(shape, shape[1] ** -0.5)
            tensors[prefix + "mlp.shared_expert_gate.weight"] = normal((1, HIDDEN), 0.3)
        if family in OWN_LAYERS:
            OWN_LAYERS[family](tensors, prefix, normal)
    return tensors


def state_weights(family):
    """Of families with state spaces; of Bamba each layer has both mixers."""
    random = numpy.random.default_rng(ord(family[0]))
    names = {"mamba2": ("backbone.", "embeddings", "norm_f"), "bamba": ("model.", "embed_tokens", "final_layernorm"),
             "falcon_h1": ("model.", "embed_tokens", "final_layernorm")}[family]

    def normal(shape, deviation, mean=0.0):
        values = (random.standard_normal(shape) * deviation + mean).astype(numpy.float32)
        return torch.from_numpy(values).to(torch.bfloat16)

    inner, groups = STATE_HEADS * STATE_HEAD_DIM, 2 * STATE_SIZE
    channels, head_dim = inner + 2 * groups, HIDDEN // HEADS
    tensors = {f"{names[0]}{names[1]}.weight": normal((VOCABULARY, HIDDEN), 1.0),
               "lm_head.weight": normal((VOCABULARY, HIDDEN), 0.4), f"{names[0]}{names[2]}.weight": normal((HIDDEN,), 0.2, 1.0)}
    for layer in range(LAYERS):
        prefix = f"{names[0]}layers.{layer}."
        mixer = prefix + ("mixer." if family == "mamba2" else "mamba.")
        sizes = {mixer + "in_proj": (inner + channels + STATE_HEADS, HIDDEN), mixer + "out_proj": (HIDDEN, inner)}
        if family != "mamba2":
            sizes |= {prefix + "self_attn." + name: shape for name, shape in {
                "q_proj": (HEADS * head_dim, HIDDEN), "k_proj": (KV_HEADS * head_dim, HIDDEN),
                "v_proj": (KV_HEADS * head_dim, HIDDEN), "o_proj": (HIDDEN, HEADS * head_dim)}.items()}
            sizes |= {prefix + "feed_forward." + name: shape for name, shape in {
                "gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}.items()}
        for name, shape in sizes.items():
            tensors[name + ".weight"] = normal(shape, shape[1] ** -0.5)
            tensors[name + ".bias"] = normal((shape[0],), 0.3)
        tensors |= {mixer + "conv1d.weight": normal((channels, 1, 4), 0.5), mixer + "conv1d.bias": normal((channels,), 0.3),
                    mixer + "A_log": normal((STATE_HEADS,), 0.5, 0.5), mixer + "D": normal((STATE_HEADS,), 0.5, 1.0),
                    mixer + "dt_bias": normal((STATE_HEADS,), 1.0), mixer + "norm.weight": normal((inner,), 0.2, 1.0)}
        for name in ["norm"] if family == "mamba2" else ["input_layernorm", "pre_ff_layernorm"]:
            tensors[prefix + name + ".weight"] = normal((HIDDEN,), 0.2, 1.0)
    return tensors


def gpt_oss_layer(tensors, prefix, normal):
    """Biases of experts and router, sinks; experts in one tensor."""
    tensors[prefix + "self_attn.sinks"] = normal((HEADS,), 1.0)
    tensors[prefix + "mlp.router.weight"] = normal((NUM_EXPERTS, HIDDEN), 0.5)
    tensors[prefix + "mlp.router.bias"] = normal((NUM_EXPERTS,), 0.5)
    for name, rows, cols in (("gate_up_proj", 2 * INNER, HIDDEN), ("down_proj", HIDDEN, INNER)):
        tensors[prefix + f"mlp.experts.{name}"] = normal((NUM_EXPERTS, cols, rows), 3 * cols ** -0.5)
        tensors[prefix + f"mlp.experts.{name}_bias"] = normal((NUM_EXPERTS, rows), 1.0)


def llama4_layer(tensors, prefix, normal):
    """Both kinds of MLP under another name; experts in one tensor."""
    for suffix in (".weight", ".bias"):
        for name in ("gate_proj", "up_proj", "down_proj"):
            tensors[prefix + f"feed_forward.{name}{suffix}"] = tensors.pop(prefix + f"mlp.{name}{suffix}")
    tensors[prefix + "feed_forward.router.weight"] = normal((NUM_EXPERTS, HIDDEN), 0.5)
    for name, rows, cols in (("gate_up_proj", 2 * EXPERT_INNER, HIDDEN), ("down_proj", HIDDEN, EXPERT_INNER)):
        tensors[prefix + f"feed_forward.experts.{name}"] = normal((NUM_EXPERTS, cols, rows), 2 * cols ** -0.5)
    for name, rows, cols in (("gate_proj", EXPERT_INNER, HIDDEN), ("up_proj", EXPERT_INNER, HIDDEN),
                             ("down_proj", HIDDEN, EXPERT_INNER)):
        tensors[prefix + f"feed_forward.shared_expert.{name}.weight"] = normal((rows, cols), cols ** -0.5)


def deepseek_layer(tensors, prefix, normal):
    """Latents, with and without one of the queries; a shared expert."""
    sizes = {"q_proj": (HEADS * 12, HIDDEN), "q_a_proj": (16, HIDDEN), "q_b_proj": (HEADS * 12, 16),
             "kv_a_proj_with_mqa": (20, HIDDEN), "kv_b_proj": (HEADS * 20, 16), "o_proj": (HIDDEN, HEADS * 12)}
    for name, shape in sizes.items():
        tensors[prefix + f"self_attn.{name}.weight"] = normal(shape, 2 * shape[1] ** -0.5)
        tensors[prefix + f"self_attn.{name}.bias"] = normal((shape[0],), 0.3)
    for name in ("q_a_layernorm", "kv_a_layernorm"):
        tensors[prefix + f"self_attn.{name}.weight"] = normal((16,), 0.2, 1.0)
    tensors[prefix + "mlp.gate.e_score_correction_bias"] = normal((NUM_EXPERTS,), 0.3)
    for name, rows, cols in (("gate_proj", EXPERT_INNER, HIDDEN), ("up_proj", EXPERT_INNER, HIDDEN),
                             ("down_proj", HIDDEN, EXPERT_INNER)):
        tensors[prefix + f"mlp.shared_experts.{name}.weight"] = normal((rows, cols), cols ** -0.5)


OWN_LAYERS = {"gpt_oss": gpt_oss_layer, "llama4": llama4_layer, "deepseek_v3": deepseek_layer}


CASES = []


def case(families, name, field, refused=False, drop=(), copy=None, **changes):
    for family in families.split():
        config = dict(BASES[family])
        for key, value in changes.items():
            if value == ABSENT:
                config.pop(key, None)
            else:
                config[key] = value
        entry = dict(name=f"{family}: {name}", family=family, field=field, config=config)
        if refused:
            entry["refused"] = True
        if drop:
            entry["drop"] = list(drop)
        if copy:
            entry["copy"] = copy
        CASES.append(entry)


FLAT = "llama qwen2 qwen3 mistral"
ALL = FLAT + " gemma3"
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LINEAR = dict(rope_type="linear", factor=4.0)
LONGROPE = dict(rope_type="longrope", short_factor=[1.0, 1.1, 1.3, 1.5], long_factor=[1.0, 2.0, 4.0, 7.0], factor=4.0,
                original_max_position_embeddings=16)


def rope_cases():
    case(ALL, "as it is", "config.json")
    case(ALL, "a base", "rope_theta", rope_theta=100.0)
    case(FLAT, "the newer layout", "rope_parameters", rope_parameters=dict(rope_type="default", rope_theta=100.0))
    case("llama qwen3", "no type", "rope_parameters", rope_parameters=dict(rope_theta=100.0))
    case("llama qwen3", "the base beside the parameters", "rope_theta", rope_theta=100.0,
         rope_parameters=dict(rope_type="default"))
    case("llama qwen2", "two bases", "rope_theta", rope_theta=100.0,
         rope_parameters=dict(rope_type="default", rope_theta=1000.0))
    for key in ("rope_scaling", "rope_parameters"):
        case("llama qwen3", f"linear, {key}", key, **{key: LINEAR})
        case("llama qwen2", f"yarn, {key}", key, **{key: YARN})
        case("llama mistral", f"llama3, {key}", key, **{key: dict(LLAMA3, original_max_position_embeddings=16)})
        case("llama", f"the older spelling, {key}", key, **{key: dict(type="linear", factor=4.0)})
        case("llama", f"two spellings, {key}", key, **{key: dict(type="yarn", rope_type="linear", factor=4.0)})
        case("qwen3", f"dynamic, {key}", key, **{key: dict(rope_type="dynamic", factor=2.0)})
        case("llama", f"dynamic with an original length, {key}", key,
             **{key: dict(rope_type="dynamic", factor=2.0, original_max_position_embeddings=16)})
        case("llama", f"linear below 1, {key}", "factor", **{key: dict(rope_type="linear", factor=0.5)})
        case("qwen3", f"yarn below 1, {key}", "factor", **{key: dict(YARN, factor=0.5)})
        case("llama", f"llama3 below 1, {key}", "factor",
             **{key: dict(LLAMA3, factor=0.5, original_max_position_embeddings=16)})
        case("llama", f"a factor without a type, {key}", key, **{key: dict(factor=4.0)})
        case("llama", f"longrope, {key}", "longrope", **{key: LONGROPE})
        case("qwen3", f"longrope without a factor, {key}", "longrope",
             **{key: {k: v for k, v in LONGROPE.items() if k != "factor"}})
        case("llama", f"longrope with an attention_factor, {key}", "longrope",
             **{key: dict(LONGROPE, attention_factor=1.5)})
        case("llama", f"longrope of a context that is not longer, {key}", "longrope",
             **{key: dict(LONGROPE, original_max_position_embeddings=POSITIONS)})
        case("llama", f"longrope with too few factors, {key}", "long_factor",
             **{key: dict(LONGROPE, long_factor=[2.0] * 3)})
        case("qwen3", f"proportional, {key}", "proportional",
             **{key: dict(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=1e4)})
        case("llama", f"proportional with a factor, {key}", "proportional",
             **{key: dict(rope_type="proportional", partial_rotary_factor=0.3, factor=4.0)})
        case("qwen3", f"proportional, the whole head, {key}", "proportional",
             **{key: dict(rope_type="proportional")})
        case("llama", f"an unknown key, {key}", key, **{key: dict(LINEAR, mrope_section=[1, 1, 2], beta_slow=3)})
        case("llama", f"attention_factor with linear, {key}", key, **{key: dict(LINEAR, attention_factor=2.0)})
    case("qwen3 mistral", "llama3 without an original length", "rope_scaling", rope_scaling=LLAMA3)
    case("qwen3", "yarn without an original length", "rope_scaling", rope_scaling=dict(rope_type="yarn", factor=4.0))
    for scaling, name in ((YARN, "yarn"), (dict(LLAMA3, original_max_position_embeddings=16), "llama3")):
        case("llama qwen2", f"an original length beside {name} and in it", "original_max_position_embeddings",
             original_max_position_embeddings=2048, rope_scaling=scaling)
        case("llama qwen3", f"an original length beside {name}", "original_max_position_embeddings",
             original_max_position_embeddings=2048,
             rope_scaling={k: v for k, v in scaling.items() if k != "original_max_position_embeddings"})
    case("llama", "an original length beside linear", "original_max_position_embeddings",
         original_max_position_embeddings=32, rope_scaling=LINEAR)
    case("llama", "an original length beside nothing", "original_max_position_embeddings",
         original_max_position_embeddings=32)
    for name, change in {"attention_factor": dict(attention_factor=0.7), "mscale": dict(mscale=0.7),
                         "both mscales": dict(mscale=0.7, mscale_all_dim=1.3), "betas": dict(beta_fast=8, beta_slow=4),
                         "betas of 0": dict(beta_fast=0, beta_slow=0), "null betas": dict(beta_fast=None),
                         "betas the wrong way round": dict(beta_fast=1, beta_slow=64),
                         "truncate false": dict(truncate=False), "truncate null": dict(truncate=None),
                         "factor null": dict(factor=None), "null attention_factor": dict(attention_factor=None),
                         "a base": dict(rope_theta=100.0)}.items():
        case("qwen3", f"yarn, {name}", next(iter(change)), rope_parameters=dict(YARN, **change))
    case("qwen3", "yarn without a factor", "factor", rope_parameters={k: v for k, v in YARN.items() if k != "factor"})
    case("llama", "linear without a factor", "factor", rope_parameters=dict(rope_type="linear"))

    own = dict(rope_type="default", rope_theta=100.0)
    case(FLAT, "rope_scaling beside rope_parameters, the base is lost", "rope_scaling", refused=True,
         rope_parameters=own, rope_scaling=YARN)
    case(FLAT, "rope_scaling beside rope_parameters, with the base", "rope_scaling", rope_parameters=own,
         rope_scaling=dict(YARN, rope_theta=100.0))
    case("llama qwen3", "rope_scaling beside rope_parameters, the base beside both", "rope_scaling",
         rope_parameters=own, rope_theta=100.0, rope_scaling=YARN)
    case("llama qwen3", "rope_scaling beside rope_parameters without a base", "rope_scaling",
         rope_parameters=dict(rope_type="default"), rope_scaling=LINEAR)
    case("llama qwen2", "rope_scaling beside scaled rope_parameters", "rope_scaling",
         rope_parameters=dict(rope_type="linear", factor=8.0, rope_theta=1e4), rope_scaling=LINEAR)
    case("llama", "empty rope_scaling beside rope_parameters", "rope_scaling", rope_parameters=own, rope_scaling={})
    case("llama", "null rope_scaling beside rope_parameters", "rope_scaling", rope_parameters=own, rope_scaling=None)
    case("llama qwen2", "nested rope_parameters", "full_attention", refused=True,
         rope_parameters=dict(full_attention=LINEAR))
    case("qwen3", "nested rope_parameters for its types", "full_attention", refused=True,
         rope_parameters=dict(full_attention=LINEAR, sliding_attention=LINEAR))
    case(ALL, "partial_rotary_factor", "partial_rotary_factor", partial_rotary_factor=0.5)
    case("llama", "partial_rotary_factor in the parameters", "partial_rotary_factor",
         rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5))
    case("llama qwen3", "partial_rotary_factor with linear", "partial_rotary_factor", refused=True,
         partial_rotary_factor=0.5, rope_scaling=LINEAR)
    case("gemma3", "partial_rotary_factor with linear", "partial_rotary_factor", refused=True,
         rope_scaling=dict(LINEAR, partial_rotary_factor=0.5))


def gemma_rope_cases():
    case("gemma3", "a local base", "rope_local_base_freq", rope_local_base_freq=100.0)
    case("gemma3", "two bases", "rope_theta", rope_local_base_freq=100.0, rope_theta=1000.0)
    case("gemma3", "rope_scaling", "rope_scaling", rope_scaling=LINEAR, rope_theta=100.0)
    case("gemma3", "rope_scaling with a base", "rope_scaling", rope_scaling=dict(LINEAR, rope_theta=100.0))
    both = dict(full_attention=dict(LINEAR, rope_theta=1000.0),
                sliding_attention=dict(rope_type="default", rope_theta=100.0))
    case("gemma3", "nested rope_parameters", "rope_parameters", rope_parameters=both)
    case("gemma3", "nested without the local base", "rope_parameters",
         rope_parameters=dict(full_attention=dict(LINEAR, rope_theta=1000.0),
                              sliding_attention=dict(rope_type="default")))
    case("gemma3", "nested without the local base, which is beside them", "rope_local_base_freq",
         rope_local_base_freq=100.0, rope_parameters=dict(full_attention=LINEAR,
                                                          sliding_attention=dict(rope_type="default")))
    case("gemma3", "nested without the local base, another base beside them", "rope_theta", rope_theta=100.0,
         rope_parameters=dict(full_attention=LINEAR, sliding_attention=dict(rope_type="default")))
    case("gemma3", "nested without the global base", "rope_theta", rope_theta=100.0,
         rope_parameters=dict(full_attention=LINEAR, sliding_attention=dict(rope_theta=10.0)))
    case("gemma3", "nested of local layers alone", "rope_parameters",
         rope_parameters=dict(sliding_attention=dict(LINEAR, rope_theta=100.0)))
    case("gemma3", "nested of global layers alone", "rope_parameters", rope_parameters=dict(full_attention=LINEAR))
    case("gemma3", "nested with null", "rope_parameters",
         rope_parameters=dict(full_attention=None, sliding_attention=dict(LINEAR)))
    case("gemma3", "rope_scaling beside nested rope_parameters", "rope_scaling", rope_parameters=both,
         rope_scaling=dict(rope_type="linear", factor=8.0))
    case("gemma3", "rope_scaling beside nested rope_parameters of local layers", "rope_scaling", refused=True,
         rope_parameters=dict(sliding_attention=dict(rope_type="default")), rope_scaling=LINEAR)
    case("gemma3", "flat rope_parameters", "rope_parameters",
         rope_parameters=dict(LINEAR, rope_theta=100.0))
    case("gemma3", "flat rope_parameters with a base beside them", "rope_parameters", rope_theta=1000.0,
         rope_parameters=dict(rope_type="default", rope_theta=100.0))
    case("gemma3", "yarn of global layers", "rope_parameters", rope_parameters=dict(full_attention=YARN))
    case("gemma3", "yarn of global layers, an original length beside", "original_max_position_embeddings",
         original_max_position_embeddings=1024,
         rope_parameters=dict(full_attention=dict(rope_type="yarn", factor=4.0)))
    case("gemma3", "yarn of global layers without truncation", "truncate", refused=True,
         rope_parameters=dict(full_attention=dict(YARN, truncate=False)))
    case("gemma3", "the older spelling", "rope_scaling", rope_scaling=dict(type="linear", factor=4.0))


def attention_cases():
    for value, name in ((False, "false"), (None, "null"), (True, "true")):
        case(ALL, f"is_causal {name}", "is_causal", refused=value is not True, is_causal=value)
    case("llama", "attention_chunk_size", "attention_chunk_size", refused=True, attention_chunk_size=8)
    case("mistral", "attention_chunk_size", "attention_chunk_size", refused=True, attention_chunk_size=8,
         sliding_window=None)
    case("qwen3", "attention_chunk_size", "attention_chunk_size", attention_chunk_size=8)
    case("llama", "null attention_chunk_size", "attention_chunk_size", attention_chunk_size=None)
    case("llama", "sliding_window", "sliding_window", refused=True, sliding_window=8)
    case("llama", "null sliding_window", "sliding_window", sliding_window=None)
    case("llama", "a window beyond the context", "sliding_window", sliding_window=POSITIONS)
    case("llama", "layer_types, all full", "layer_types", layer_types=["full_attention"] * LAYERS)
    case("llama", "layer_types with windows", "layer_types", refused=True, sliding_window=None,
         layer_types=["sliding_attention"] + ["full_attention"] * 3)
    case("mistral", "no window", "sliding_window", sliding_window=None)
    case("mistral", "the window of its class", "sliding_window", sliding_window=ABSENT)
    case("mistral", "layer_types, all windowed", "layer_types", layer_types=["sliding_attention"] * LAYERS)
    case("mistral", "layer_types, some windowed", "layer_types", refused=True,
         layer_types=["full_attention", "sliding_attention"] * 2)
    case("mistral", "use_sliding_window false", "use_sliding_window", use_sliding_window=False)
    mixed = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    case("qwen2 qwen3", "a window that is not used", "sliding_window", sliding_window=8)
    case("qwen2 qwen3", "a window in the last layers", "max_window_layers", sliding_window=8,
         use_sliding_window=True, max_window_layers=2)
    case("qwen2 qwen3", "a null window", "sliding_window", sliding_window=None, use_sliding_window=True,
         max_window_layers=0)
    case("qwen2", "the window of its class", "sliding_window", use_sliding_window=True, max_window_layers=0)
    case("qwen2 qwen3", "layer_types", "layer_types", sliding_window=8, use_sliding_window=True, layer_types=mixed)
    case("qwen2 qwen3", "layer_types without a window", "layer", refused=True, sliding_window=8, layer_types=mixed)
    case("qwen3", "layer_types with a null window", "layer", refused=True, sliding_window=None,
         use_sliding_window=True, layer_types=mixed)
    case("qwen3", "chunked layers", "layer", refused=True, layer_types=["chunked_attention"] * LAYERS)
    case("qwen3", "too few layer_types", "layer_types", refused=True, layer_types=["full_attention"] * 3)
    case("qwen3", "the older name of full attention", "layer_types", layer_types=["attention"] * LAYERS)
    case("qwen3", "many max_window_layers", "max_window_layers", sliding_window=8, use_sliding_window=True,
         max_window_layers=100000)
    case("gemma3", "a null window", "sliding_window", refused=True, sliding_window=None)
    case("gemma3", "a null window and no layer that has one", "sliding_window", sliding_window=None,
         sliding_window_pattern=1)
    case("gemma3", "the pattern of its class", "sliding_window_pattern", sliding_window_pattern=ABSENT)
    case("gemma3", "the private name of the pattern", "_sliding_window_pattern", sliding_window_pattern=ABSENT,
         _sliding_window_pattern=2)
    case("gemma3", "two patterns", "_sliding_window_pattern", _sliding_window_pattern=3)
    case("gemma3", "layer_types", "layer_types", layer_types=mixed)
    case("gemma3", "attn_logit_softcapping", "attn_logit_softcapping", attn_logit_softcapping=2.0)
    case("llama", "attn_logit_softcapping", "attn_logit_softcapping", attn_logit_softcapping=2.0)
    case("gemma3", "final_logit_softcapping", "final_logit_softcapping", final_logit_softcapping=2.0)
    case("llama", "final_logit_softcapping", "final_logit_softcapping", final_logit_softcapping=2.0)
    case("gemma3", "use_bidirectional_attention", "use_bidirectional_attention", refused=True,
         use_bidirectional_attention=True)
    case("qwen3", "use_bidirectional_attention", "use_bidirectional_attention", use_bidirectional_attention=True)
    case("gemma3", "the scalar of its class", "query_pre_attn_scalar", query_pre_attn_scalar=ABSENT)
    case("llama", "query_pre_attn_scalar", "query_pre_attn_scalar", query_pre_attn_scalar=100)


def other_cases():
    case(FLAT, "swish", "hidden_act", hidden_act="swish")
    case("llama gemma3", "gelu", "gelu", refused=True, hidden_act="gelu", hidden_activation="gelu")
    case("gemma3", "gelu_new", "hidden_activation", hidden_activation="gelu_new")
    case("gemma3", "gelu_accurate", "hidden_activation", hidden_activation="gelu_accurate")
    case("gemma3", "hidden_act", "hidden_act", hidden_act="relu")
    case(ALL, "mlp_bias", "mlp_bias", mlp_bias=True)
    case(ALL, "attention_bias", "attention_bias", attention_bias=True)
    case("llama qwen3", "a null number of KV heads", "num_key_value_heads", num_key_value_heads=None)
    case("mistral", "a null number of KV heads", "num_key_value_heads", num_key_value_heads=None)
    case("llama", "a null head size", "head_dim", head_dim=None)
    case(FLAT, "another epsilon", "rms_norm_eps", rms_norm_eps=0.5)
    case("mistral qwen2", "the epsilon of its class", "rms_norm_eps", rms_norm_eps=ABSENT)
    for family in ALL.split():
        case(family, "tied, another head is stored", "tie_word_embeddings", tie_word_embeddings=True)
        case(family, "tied, no head is stored", "tie_word_embeddings", tie_word_embeddings=True,
             drop=["lm_head.weight"])
    case("qwen3", "tied, the same head is stored", "tie_word_embeddings", tie_word_embeddings=True,
         copy={"lm_head.weight": "model.embed_tokens.weight"})
    case("gemma3", "tied by its class", "tie_word_embeddings", tie_word_embeddings=ABSENT, drop=["lm_head.weight"])
    case("llama", "model_type mistral", "model_type", model_type="mistral")
    case("llama", "model_type mistral with a window", "model_type", model_type="mistral", sliding_window=8)
    case("llama", "model_type mistral with biases", "model_type", model_type="mistral", attention_bias=True)
    case("mistral", "model_type llama", "model_type", model_type="llama", sliding_window=None)
    case("llama", "model_type qwen2", "model_type", model_type="qwen2")
    case("qwen2", "model_type llama", "model_type", model_type="llama")
    case("qwen2", "model_type qwen3", "model_type", model_type="qwen3", head_dim=8)
    case("llama", "model_type stablelm", "model_type", refused=True, model_type="stablelm")
    case("llama", "text_config", "text_config", refused=True, text_config=dict(rope_theta=100.0))
    case("qwen3", "per_layer_config", "per_layer_config", refused=True, per_layer_config={"0": {"rms_norm_eps": 0.5}})
    case(ALL, "fields of other families", "residual_multiplier", residual_multiplier=0.2, logits_scaling=8.0,
         embedding_multiplier=12.0, attention_multiplier=0.1, logit_scale=0.5, qk_layernorm=True, use_qk_norm=True,
         clip_qkv=1.0, alibi=True, parallel_attn=True, no_rope_layers=[1, 0, 1, 0], pretraining_tp=2, scale_emb=3)


def experts_cases():
    both = "mixtral qwen3_moe"
    case(both, "as it is", "config.json")
    case(both, "a base", "rope_theta", rope_theta=100.0)
    case(both, "the newer layout", "rope_parameters", rope_parameters=dict(rope_type="default", rope_theta=100.0))
    case(both, "linear", "rope_scaling", rope_scaling=LINEAR)
    case(both, "yarn", "rope_parameters", rope_parameters=YARN)
    case(both, "another epsilon", "rms_norm_eps", rms_norm_eps=0.5)
    case(both, "the epsilon of its class", "rms_norm_eps", rms_norm_eps=ABSENT)
    case(both, "a null number of KV heads", "num_key_value_heads", num_key_value_heads=None)
    case(both, "attention_bias", "attention_bias", attention_bias=True)
    case(both, "mlp_bias", "mlp_bias", mlp_bias=True)
    case(both, "partial_rotary_factor", "partial_rotary_factor", partial_rotary_factor=0.5)
    case(both, "is_causal false", "is_causal", refused=True, is_causal=False)
    case(both, "gelu", "gelu", refused=True, hidden_act="gelu")
    case(both, "tied, another head is stored", "tie_word_embeddings", tie_word_embeddings=True)
    case(both, "tied, no head is stored", "tie_word_embeddings", tie_word_embeddings=True, drop=["lm_head.weight"])
    # The router.
    for chosen in (1, 3, 4):
        case(both, f"{chosen} of 4 experts", "num_experts_per_tok", num_experts_per_tok=chosen)
    case(both, "more experts chosen than there are", "num_experts_per_tok", num_experts_per_tok=5)
    case("mixtral", "as many chosen as in its class", "num_experts_per_tok", num_experts_per_tok=ABSENT)
    case("qwen3_moe", "as many chosen as in its class", "num_experts_per_tok", num_experts_per_tok=ABSENT)
    case("mixtral", "the other name of the number of experts", "num_experts", num_local_experts=ABSENT, num_experts=4)
    case("qwen3_moe", "the other name of the number of experts", "num_local_experts", num_experts=ABSENT,
         num_local_experts=4)
    case("mixtral", "two numbers of experts", "num_experts", refused=True, num_experts=3)
    case("qwen3_moe", "two numbers of experts", "num_local_experts", refused=True, num_local_experts=3)
    case("qwen3_moe", "weights of all experts", "norm_topk_prob", norm_topk_prob=False)
    case("qwen3_moe", "the weights of its class", "norm_topk_prob", norm_topk_prob=ABSENT)
    case("mixtral", "norm_topk_prob", "norm_topk_prob", norm_topk_prob=False)
    case(both, "what training uses", "router_aux_loss_coef", router_aux_loss_coef=0.5, router_jitter_noise=0.3,
         output_router_logits=False)
    # Which layers have experts.
    case("qwen3_moe", "dense layers by number", "mlp_only_layers", mlp_only_layers=[0, 2])
    case("qwen3_moe", "a dense layer that is not there", "mlp_only_layers", mlp_only_layers=[7])
    case("qwen3_moe", "null mlp_only_layers", "mlp_only_layers", mlp_only_layers=None)
    case("qwen3_moe", "every second layer", "decoder_sparse_step", decoder_sparse_step=2)
    case("qwen3_moe", "every third layer, and one of them dense", "mlp_only_layers", decoder_sparse_step=3,
         mlp_only_layers=[2])
    case("qwen3_moe", "shared experts of another family", "shared_expert_intermediate_size",
         shared_expert_intermediate_size=48)
    case("qwen3_moe", "the size of its class", "moe_intermediate_size", moe_intermediate_size=ABSENT)
    # Windows.
    case("mixtral", "a window", "sliding_window", sliding_window=8)
    case("mixtral", "a null window", "sliding_window", sliding_window=None)
    case("qwen3_moe", "a window that is not used", "sliding_window", sliding_window=8)
    case("qwen3_moe", "a window", "use_sliding_window", sliding_window=8, use_sliding_window=True)
    case("qwen3_moe", "a window and max_window_layers", "max_window_layers", sliding_window=8,
         use_sliding_window=True, max_window_layers=2)
    case("qwen3_moe", "model_type qwen3", "model_type", model_type="qwen3")
    case("mixtral", "model_type mistral", "model_type", model_type="mistral")


def family_cases():
    """The common and the specific fields of the most recent families."""
    plain = "olmo2 granite smollm3 glm4 qwen2_moe"
    every = plain + " gemma2 phi3"
    case(every, "as it is", "config.json")
    case(every, "a base", "rope_theta", rope_theta=100.0)
    case(every, "the newer layout", "rope_parameters", rope_parameters=dict(rope_type="default", rope_theta=100.0))
    case(every, "linear", "rope", rope_scaling=LINEAR)
    case(every, "yarn", "rope", rope_parameters=YARN)
    case("granite smollm3", "llama3", "rope_parameters",
         rope_parameters=dict(LLAMA3, original_max_position_embeddings=16))
    case("olmo2 granite qwen2_moe", "longrope", "rope_parameters", rope_parameters=LONGROPE)
    case(every, "partial_rotary_factor", "partial_rotary_factor", partial_rotary_factor=0.75)
    case("phi3 glm4", "partial_rotary_factor in the parameters", "partial_rotary_factor",
         rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.25))
    case("glm4", "an odd part of a head", "partial_rotary_factor", partial_rotary_factor=0.65)
    case("glm4", "an odd part of a head with linear", "partial_rotary_factor", partial_rotary_factor=0.65,
         rope_scaling=LINEAR)
    case("glm4", "proportional", "proportional",
         rope_parameters=dict(rope_type="proportional", partial_rotary_factor=0.75))
    case("glm4", "partial_rotary_factor with linear", "partial_rotary_factor", partial_rotary_factor=0.75,
         rope_scaling=LINEAR)
    case(every, "is_causal false", "is_causal", refused=True, is_causal=False)
    case("olmo2 granite glm4", "sliding_window", "sliding_window", refused=True, sliding_window=8)
    case(plain + " phi3", "gelu", "gelu", refused=True, hidden_act="gelu")
    case("gemma2", "gelu", "gelu", refused=True, hidden_activation="gelu")
    case(every, "attention_bias", "attention_bias", attention_bias=True)
    case("glm4", "no attention_bias", "attention_bias", attention_bias=False)
    case(every, "mlp_bias", "mlp_bias", mlp_bias=True)
    case(every, "another epsilon", "rms_norm_eps", rms_norm_eps=0.5)
    case(every, "the epsilon of its class", "rms_norm_eps", rms_norm_eps=ABSENT)
    case(plain + " phi3", "a null number of KV heads", "num_key_value_heads", num_key_value_heads=None)
    case(every, "tied, another head is stored", "tie_word_embeddings", tie_word_embeddings=True)
    case(every, "tied, no head is stored", "tie_word_embeddings", tie_word_embeddings=True, drop=["lm_head.weight"])
    case("smollm3 gemma2", "tied by its class", "tie_word_embeddings", tie_word_embeddings=ABSENT,
         drop=["lm_head.weight"])
    case(every, "fields of other families", "clip_qkv", logit_scale=0.5, qk_layernorm=True, use_qk_norm=True,
         clip_qkv=1.0, alibi=True, parallel_attn=True, pretraining_tp=2, scale_emb=3)
    mixed = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    # Gemma 2.
    case("gemma2", "the caps of its class", "softcapping", attn_logit_softcapping=ABSENT,
         final_logit_softcapping=ABSENT)
    case("gemma2", "no caps", "softcapping", attn_logit_softcapping=None, final_logit_softcapping=None)
    case("gemma2", "a cap of 0", "final_logit_softcapping", refused=True, final_logit_softcapping=0.0)
    case("gemma2", "the scalar of its class", "query_pre_attn_scalar", query_pre_attn_scalar=ABSENT)
    case("gemma2", "layer_types", "layer_types", layer_types=mixed)
    case("gemma2", "a null window", "sliding_window", refused=True, sliding_window=None)
    case("gemma2", "a null window and no layer that has one", "sliding_window", sliding_window=None,
         layer_types=["full_attention"] * LAYERS)
    case("gemma2", "use_bidirectional_attention", "use_bidirectional_attention", refused=True,
         use_bidirectional_attention=True)
    # Phi-3.
    outside = {k: v for k, v in LONGROPE.items() if k not in ("original_max_position_embeddings", "factor")}
    case("phi3", "a window", "sliding_window", sliding_window=8)
    for name in ("longrope", "su", "yarn"):
        case("phi3", f"{name}, as published", "rope_scaling", original_max_position_embeddings=16,
             rope_scaling=dict({k: v for k, v in outside.items() if k != "rope_type"}, type=name))
    case("phi3", "longrope with a factor and an attention_factor", "rope_scaling", original_max_position_embeddings=16,
         rope_scaling=dict(outside, factor=8.0, attention_factor=1.2))
    case("phi3", "longrope, the original length of its class", "rope_scaling", rope_scaling=LONGROPE)
    case("phi3", "longrope of a part", "rope_scaling", original_max_position_embeddings=16, partial_rotary_factor=0.5,
         rope_scaling=dict(outside, short_factor=[1.0, 1.5], long_factor=[1.5, 7.0]))
    case("phi3", "longrope with too few factors", "short_factor", original_max_position_embeddings=16,
         rope_scaling=dict(outside, short_factor=[1.0]))
    # Granite.
    for key, value in (("embedding_multiplier", 3.0), ("residual_multiplier", 0.2), ("attention_multiplier", 0.6),
                       ("logits_scaling", 0.5)):
        case("granite", f"another {key}", key, **{key: value})
        case("granite", f"the {key} of its class", key, **{key: ABSENT})
    case("granite", "a scaling of 0", "logits_scaling", logits_scaling=0.0)
    # SmolLM3.
    case("smollm3", "an interval", "no_rope_layer_interval", no_rope_layers=None, no_rope_layer_interval=2)
    case("smollm3", "the interval of its class", "no_rope_layers", no_rope_layers=ABSENT)
    case("smollm3", "too few layers", "no_rope_layers", no_rope_layers=[1, 0])
    case("smollm3", "a window", "use_sliding_window", use_sliding_window=True, sliding_window=8)
    case("smollm3", "a window that is not used", "sliding_window", sliding_window=8)
    case("smollm3", "layer_types", "layer_types", use_sliding_window=True, sliding_window=8, layer_types=mixed)
    # Qwen2 with experts.
    for chosen in (1, 3, 4):
        case("qwen2_moe", f"{chosen} of 4 experts", "num_experts_per_tok", num_experts_per_tok=chosen)
    case("qwen2_moe", "more experts chosen than there are", "num_experts_per_tok", num_experts_per_tok=5)
    case("qwen2_moe", "normalised weights", "norm_topk_prob", norm_topk_prob=True)
    case("qwen2_moe", "no qkv_bias", "qkv_bias", qkv_bias=False)
    case("qwen2_moe", "dense layers by number", "mlp_only_layers", mlp_only_layers=[0, 2])
    case("qwen2_moe", "every second layer", "decoder_sparse_step", decoder_sparse_step=2)
    case("qwen2_moe", "the sizes of its class", "moe_intermediate_size", moe_intermediate_size=ABSENT,
         shared_expert_intermediate_size=ABSENT)
    case("qwen2_moe", "a window that is not used", "sliding_window", sliding_window=8)
    case("qwen2_moe", "a window", "use_sliding_window", sliding_window=8, use_sliding_window=True)
    case("qwen2_moe", "a window in the first layers", "max_window_layers", sliding_window=8, use_sliding_window=True,
         max_window_layers=2)
    case("qwen2_moe", "layer_types", "layer_types", sliding_window=8, use_sliding_window=True, layer_types=mixed)


def state_cases():
    states = "mamba2 bamba falcon_h1"
    case(states, "plain", "")
    case(states, "tied", "tie_word_embeddings", tie_word_embeddings=True)
    case(states, "another activation", "gelu", refused=True, hidden_act="gelu")
    case(states, "a time step that has no limit", "time_step_limit", time_step_limit=[0.0, {"__float__": "Infinity"}])
    case(states, "limits of the time step", "time_step_limit", time_step_limit=[0.2, 0.5])
    case("mamba2", "another epsilon", "layer_norm_epsilon", layer_norm_epsilon=0.1)
    case("bamba falcon_h1", "another epsilon", "rms_norm_eps", rms_norm_eps=0.1)
    case("mamba2", "without the convolution's biases", "use_conv_bias", use_conv_bias=False)
    case("bamba falcon_h1", "without the convolution's biases", "mamba_conv_bias", mamba_conv_bias=False)
    case("mamba2", "biases", "use_bias", use_bias=True)
    case("bamba falcon_h1", "biases of in_proj", "mamba_proj_bias", mamba_proj_bias=True)
    case("falcon_h1", "biases of out_proj", "projectors_bias", projectors_bias=True)
    case("bamba falcon_h1", "biases of attention", "attention_bias", attention_bias=True)
    case("bamba", "biases of the MLP", "mlp_bias", mlp_bias=True)
    case("falcon_h1", "biases of the MLP beside multipliers", "mlp_bias", refused=True, mlp_bias=True)
    case("falcon_h1", "biases of the MLP", "mlp_bias", mlp_bias=True, mlp_multipliers=[1.0, 0.5])
    case("mamba2", "a residual stream of another type", "residual_in_fp32", residual_in_fp32=False)
    case("mamba2", "the norm before the gate, which it has not", "norm_before_gate", norm_before_gate=True)
    case("mamba2", "one group", "n_groups", n_groups=1)
    case("mamba2", "heads that are not as many as the size", "num_heads", num_heads=4)
    case("bamba falcon_h1", "heads that are not as many as the size", "mamba_n_heads", mamba_n_heads=4)
    case("mamba2", "another kernel", "conv_kernel", conv_kernel=3)
    case("bamba falcon_h1", "heads of any size", "mamba_d_head", mamba_d_head="auto")
    case("falcon_h1", "a size that is not given", "mamba_d_ssm", mamba_d_ssm=None)
    case("bamba", "no attention", "attn_layer_indices", attn_layer_indices=ABSENT)
    case("bamba", "attention in other layers", "attn_layer_indices", attn_layer_indices=[0, 2, 9])
    case("bamba falcon_h1", "another base", "rope_theta", rope_theta=100.0)
    case("bamba falcon_h1", "linear scaling", "rope_scaling", rope_scaling={"type": "linear", "factor": 2.0})
    case("bamba", "another part that is rotated", "partial_rotary_factor", partial_rotary_factor=0.25)
    case("bamba", "parameters with another part", "partial_rotary_factor",
         rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25})
    case("falcon_h1", "no norm", "mamba_rms_norm", mamba_rms_norm=False)
    case("falcon_h1", "the norm before the gate", "mamba_norm_before_gate", mamba_norm_before_gate=True)
    case("falcon_h1", "the settings of its class", "ssm_multipliers", mamba_rms_norm=ABSENT,
         mamba_norm_before_gate=ABSENT, ssm_multipliers=ABSENT, mlp_multipliers=ABSENT, key_multiplier=ABSENT,
         lm_head_multiplier=ABSENT, embedding_multiplier=ABSENT)
    case("falcon_h1", "all multipliers", "attention_in_multiplier", attention_in_multiplier=0.9,
         attention_out_multiplier=0.7, ssm_in_multiplier=1.25, ssm_out_multiplier=0.4)
    case("falcon_h1", "too few multipliers", "ssm_multipliers", ssm_multipliers=[0.5, 0.5])


def mixture_cases():
    """gpt-oss, Llama 4, DeepSeek-V3."""
    every = "gpt_oss llama4 deepseek_v3"
    case(every, "as it is", "config.json")
    case(every, "a base", "rope_theta", rope_theta=100.0)
    case(every, "the newer layout", "rope_parameters", rope_parameters=dict(rope_type="default", rope_theta=100.0))
    case(every, "linear", "rope", rope_scaling=LINEAR)
    case(every, "yarn", "rope", rope_parameters=YARN)
    case(every, "yarn with both mscales", "rope", rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=1.3))
    case("deepseek_v3", "yarn, the older spelling", "rope_scaling",
         rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=1024, mscale_all_dim=1.0))
    case("deepseek_v3", "linear with an mscale", "mscale_all_dim", rope_scaling=dict(LINEAR, mscale_all_dim=1.0))
    case("llama4", "llama3", "rope_parameters", rope_parameters=dict(LLAMA3, original_max_position_embeddings=16))
    case(every, "partial_rotary_factor", "partial_rotary_factor", partial_rotary_factor=0.5)
    case(every, "is_causal false", "is_causal", refused=True, is_causal=False)
    case("llama4 deepseek_v3", "gelu", "gelu", refused=True, hidden_act="gelu")
    case(every, "attention_bias", "attention_bias", attention_bias=True)
    case("gpt_oss", "no attention_bias", "attention_bias", attention_bias=False)
    case(every, "mlp_bias", "mlp_bias", mlp_bias=True)
    case(every, "another epsilon", "rms_norm_eps", rms_norm_eps=0.5)
    case(every, "the epsilon of its class", "rms_norm_eps", rms_norm_eps=ABSENT)
    case("gpt_oss llama4", "a null number of KV heads", "num_key_value_heads", num_key_value_heads=None)
    case("deepseek_v3", "a null number of KV heads", "num_key_value_heads", num_key_value_heads=None)
    case("deepseek_v3", "fewer KV heads", "num_key_value_heads", refused=True, num_key_value_heads=2)
    case(every, "tied, another head is stored", "tie_word_embeddings", tie_word_embeddings=True)
    case(every, "tied, no head is stored", "tie_word_embeddings", tie_word_embeddings=True, drop=["lm_head.weight"])
    for chosen in (1, 3, 4):
        case("gpt_oss llama4", f"{chosen} of 4 experts", "num_experts_per_tok", num_experts_per_tok=chosen)
    case(every, "more experts chosen than there are", "num_experts_per_tok", num_experts_per_tok=5)
    case("gpt_oss", "the other name of the number of experts", "num_experts", num_local_experts=ABSENT, num_experts=4)
    case("gpt_oss", "two numbers of experts", "num_experts", refused=True, num_experts=3)
    # gpt-oss.
    case("gpt_oss", "another limit", "swiglu_limit", swiglu_limit=0.5)
    case("gpt_oss", "another alpha", "swiglu_alpha", swiglu_alpha=0.7)
    case("gpt_oss", "layer_types", "layer_types", layer_types=["full_attention", "sliding_attention"] * 2)
    case("gpt_oss", "chunked layers", "layer", refused=True, layer_types=["chunked_attention"] * LAYERS)
    case("gpt_oss", "a null window", "sliding_window", refused=True, sliding_window=None)
    case("gpt_oss", "the window of its class", "sliding_window", sliding_window=ABSENT)
    case("gpt_oss", "a head of the hidden size", "head_dim", head_dim=None)
    # Llama 4.
    case("llama4", "an interval", "no_rope_layer_interval", no_rope_layers=None, no_rope_layer_interval=2)
    case("llama4", "the interval of its class", "no_rope_layers", no_rope_layers=ABSENT)
    case("llama4", "no layer with an interval", "no_rope_layers", no_rope_layers=[])
    case("llama4", "too few layers", "no_rope_layers", no_rope_layers=[1, 0])
    case("llama4", "more layers than there are", "no_rope_layers", no_rope_layers=[1, 0, 1, 0, 1, 1])
    case("llama4", "no temperature", "attn_temperature_tuning", attn_temperature_tuning=False)
    case("llama4", "another temperature", "attn_scale", attn_scale=0.5)
    case("llama4", "the floor of its class", "floor_scale", floor_scale=ABSENT)
    case("llama4", "no norms", "use_qk_norm", use_qk_norm=False)
    case("llama4", "null chunks", "attention_chunk_size", refused=True, attention_chunk_size=None)
    case("llama4", "the chunks of its class", "attention_chunk_size", attention_chunk_size=ABSENT)
    case("llama4", "layer_types", "layer_types", layer_types=["full_attention", "chunked_attention"] * 2)
    case("llama4", "windowed layers", "layer", refused=True, layer_types=["sliding_attention"] * LAYERS)
    case("llama4", "experts everywhere", "interleave_moe_layer_step", interleave_moe_layer_step=1)
    case("llama4", "the layers of its class", "interleave_moe_layer_step", interleave_moe_layer_step=ABSENT)
    case("llama4", "layers with experts by number", "moe_layers", moe_layers=[0, 3])
    case("llama4", "no layers with experts", "moe_layers", moe_layers=[])
    # DeepSeek-V3.
    case("deepseek_v3", "queries without a latent", "q_lora_rank", q_lora_rank=None)
    case("deepseek_v3", "queries without a latent, with biases", "attention_bias", q_lora_rank=None,
         attention_bias=True)
    case("deepseek_v3", "halves are rotated", "rope_interleave", rope_interleave=False)
    case("deepseek_v3", "both groups", "topk_group", topk_group=2)
    case("deepseek_v3", "one group", "n_group", n_group=1)
    case("deepseek_v3", "groups that do not divide the experts", "n_group", refused=True, n_group=3)
    case("deepseek_v3", "groups of one", "n_group", refused=True, n_group=4)
    case("deepseek_v3", "more groups chosen than there are", "topk_group", refused=True, topk_group=3)
    case("deepseek_v3", "more experts chosen than in the groups", "topk_group", refused=True, num_experts_per_tok=3)
    case("deepseek_v3", "weights as they are", "norm_topk_prob", norm_topk_prob=False)
    case("deepseek_v3", "another scaling factor", "routed_scaling_factor", routed_scaling_factor=0.5)
    case("deepseek_v3", "more dense layers", "first_k_dense_replace", first_k_dense_replace=3)
    case("deepseek_v3", "no dense layers", "first_k_dense_replace", first_k_dense_replace=0)
    case("deepseek_v3", "softmax", "scoring_func", refused=True, scoring_func="softmax")
    case("deepseek_v3", "another choice", "topk_method", refused=True, topk_method="greedy")
    case("deepseek_v3", "every second layer", "moe_layer_freq", refused=True, moe_layer_freq=2)
    case("deepseek_v3", "what published models say", "scoring_func", scoring_func="sigmoid", topk_method="noaux_tc",
         moe_layer_freq=1, ep_size=1, pretraining_tp=1, num_nextn_predict_layers=1, aux_loss_alpha=0.001, seq_aux=True)


def reference(folder):
    """The log-probabilities of the prompt, or why there are none."""
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    parameters = getattr(model.config, "rope_parameters", {})
    if parameters.get("rope_type") == "longrope" and POSITIONS > parameters["original_max_position_embeddings"]:
        # One set of factors for all positions, by the context that the model serves.
        model.model.rotary_emb.original_inv_freq, _ = ROPE_INIT_FUNCTIONS["longrope"](
            model.config, "cpu", seq_len=parameters["original_max_position_embeddings"] + 1)
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0]
        past, rows = {}, []
        for begin, end in ((0, 40), (40, 41), (41, 42), (42, 43), (43, 44)):
            past |= {} if "mamba2" in model.config.model_type else {"position_ids": torch.arange(begin, end)[None]}
            step = model(ids[:, begin:end], use_cache=True, **past)
            past = {key: step[key] for key in ("cache", "cache_params", "past_key_values") if step.get(key) is not None}
            rows.append(step.logits[0])
    difference = (torch.cat(rows) - logits[:44]).abs().max().item()
    if not difference < 1e-3:
        raise ValueError(f"with and without a cache the logits differ by {difference}")
    found = torch.log_softmax(logits.double(), -1)
    found = [round(found[i, PROMPT[i + 1]].item(), 5) for i in range(len(PROMPT) - 1)]
    if not all(numpy.isfinite(found)):
        raise ValueError("the logits are not finite")
    return found


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    (FOLDER / "weights").mkdir(parents=True, exist_ok=True)
    families = sys.argv[1:] or list(BASES)
    stored = json.loads((FOLDER / "cases.json").read_text()) if sys.argv[1:] else None
    assert stored is None or stored["transformers"] == transformers.__version__, stored["transformers"]
    for family in families:
        path = FOLDER / "weights" / f"{family}.safetensors"
        save_torch(state_weights(family) if family in STATES else weights(family), path, metadata={"format": "pt"})
        path.chmod(0o644)
    rope_cases()
    gemma_rope_cases()
    attention_cases()
    other_cases()
    experts_cases()
    family_cases()
    state_cases()
    mixture_cases()
    assert len({entry["name"] for entry in CASES}) == len(CASES)
    plain = {}
    for i, entry in enumerate(CASES):
        if entry["family"] not in families:
            CASES[i] = next(known for known in stored["cases"] if known["name"] == entry["name"])
            continue
        folder = pathlib.Path(tempfile.mkdtemp())
        (folder / "config.json").write_text(json.dumps(entry["config"]))
        tensors = load_file(FOLDER / "weights" / f"{entry['family']}.safetensors")
        for target, source in entry.get("copy", {}).items():
            tensors[target] = tensors[source].clone()
        for name in entry.get("drop", ()):
            del tensors[name]
        save_torch(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        note = ""
        try:
            found = reference(folder)
            plain.setdefault(entry["family"], found)
            note = f"{max(abs(a - b) for a, b in zip(found, plain[entry['family']])):.4f}"
            if not entry.get("refused"):
                entry["logprobs"] = found
        except Exception as error:  # whatever it is, it is the answer
            note = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
            if not entry.get("refused"):
                entry["fails"] = True
        shutil.rmtree(folder)
        print(f"{entry['name']:80} {'refused ' if entry.get('refused') else ''}{note}", flush=True)
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in CASES)
    (FOLDER / "cases.json").write_text(
        '{"transformers":"%s","prompt":%s,"cases":[\n%s\n]}\n'
        % (transformers.__version__, json.dumps(PROMPT, separators=(",", ":")), lines))


if __name__ == "__main__":
    main()
