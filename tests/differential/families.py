"""Random small configurations, one function per family.

Each takes a random.Random and gives a config.json as people write them: fields in their older and newer places, absent,
null or with a value. transformers judges which are valid; what it does not take is drawn again.
"""
VOCABULARY = (61, 64, 97, 130, 515)
EPSILONS = (1e-6, 1e-5, 1e-3, 0.05)


def maybe(random, fields, **choices):
    """Each field with one of its values, or absent."""
    for key, values in choices.items():
        if random.random() < 0.6:
            fields[key] = random.choice(values)


def heads(random, head_dims=(4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 34, 40, 64, 72, 128), free=True):
    """Numbers of heads; without `free` the size of a head is hidden_size / heads."""
    kv = random.choice((1, 1, 2, 3, 4, 5, 8))
    count = kv * random.choice((1, 2, 3, 4, 7)) if kv < 4 else kv
    size = random.choice(head_dims)
    fields = dict(num_attention_heads=count, num_key_value_heads=kv)
    if free and random.random() < 0.6:
        fields |= dict(head_dim=size, hidden_size=random.choice((20, 24, 32, 36, 48, 50, 64, 136, 200)))
    else:
        fields["hidden_size"] = count * size
    if kv == count and random.random() < 0.3:
        fields["num_key_value_heads"] = None
    return fields


def head_dim(fields, otherwise=None):
    return fields.get("head_dim") or otherwise or fields["hidden_size"] // fields["num_attention_heads"]


def base(random, model_type, architecture, **choices):
    fields = dict(architectures=[architecture], model_type=model_type, vocab_size=random.choice(VOCABULARY),
                  num_hidden_layers=random.choice((1, 2, 3, 5)),
                  max_position_embeddings=random.choice((128, 250, 1024)),
                  bos_token_id=1, eos_token_id=2, pad_token_id=0)
    maybe(random, fields, intermediate_size=(24, 40, 44, 50, 64, 96, 257))
    fields.setdefault("intermediate_size", 36)
    maybe(random, fields, tie_word_embeddings=(True, False), rms_norm_eps=EPSILONS,
          initializer_range=(0.02,), use_cache=(True, False), **choices)
    return fields


def scaled_rope(random, kind, rotated, positions):
    """The parameters of one kind of scaling."""
    scaling = {}
    if kind == "linear":
        scaling["factor"] = random.choice((1.0, 2.0, 3.5, 8))
    if kind == "dynamic":
        scaling["factor"] = random.choice((4.0, 8.0))
    if kind == "llama3":
        scaling = dict(factor=random.choice((2.0, 8.0, 32.0)), low_freq_factor=random.choice((1.0, 1, 2.0)),
                       high_freq_factor=random.choice((4.0, 8, 3.0)),
                       original_max_position_embeddings=random.choice((8, 30, 64)))
    if kind == "yarn":
        scaling["factor"] = random.choice((2.0, 4.0, 16, 40.0))
        if random.random() < 0.8:
            scaling["original_max_position_embeddings"] = random.choice((16, 32, 100, positions))
        maybe(random, scaling, beta_fast=(32, 32.0, 8.0, 4), beta_slow=(1, 1.0, 2.0), truncate=(True, False),
              attention_factor=(0.7, 1.3, None))
        if random.random() < 0.3:
            scaling |= dict(mscale=random.choice((1.0, 0.7, 0)), mscale_all_dim=random.choice((1.0, 0.5, 0)))
    if kind == "longrope":
        scaling = dict(short_factor=[random.choice((1.0, 1.1, 1.5)) for _ in range((rotated + 1) // 2)],
                       long_factor=[random.choice((1.0, 2.0, 5.5)) for _ in range((rotated + 1) // 2)],
                       original_max_position_embeddings=random.choice((4, positions)))
        maybe(random, scaling, factor=(2.0, 8.0), attention_factor=(1.1, 0.9, None))
    return scaling


def rope(random, fields, rotated, kinds=("linear", "dynamic", "llama3", "yarn", "longrope"), part=None):
    """A rotation for all layers. part: the key stands in the parameters, or beside them."""
    kind = random.choice(("default", *kinds)) if random.random() < 0.8 else None
    theta = random.choice((100.0, 1000, 10000.0, 500000.0))
    if kind == "dynamic":
        fields["max_position_embeddings"] = random.choice((16, 30))
    parameters = {} if kind is None else {"rope_type": kind} | scaled_rope(random, kind, rotated,
                                                                         fields["max_position_embeddings"])
    if random.random() < 0.5:  # the newer layout
        parameters.setdefault("rope_type", "default")
        parameters["rope_theta"] = theta
        if part is not None:
            parameters["partial_rotary_factor"] = part
        fields["rope_parameters"] = parameters
        return
    maybe(random, fields, rope_theta=(theta,))
    if part is not None:
        fields["partial_rotary_factor"] = part
    if kind not in (None, "default"):
        if random.random() < 0.4:
            parameters["type"] = parameters.pop("rope_type")
        fields["rope_scaling"] = parameters
    elif random.random() < 0.3:
        fields["rope_scaling"] = None


def drop_dynamic(fields):
    """Where the reference cannot take tokens one at a time, a rotation that grows with the text is another."""
    for key in ("rope_scaling", "rope_parameters"):
        if "dynamic" in (fields.get(key) or {}).values():
            del fields[key]
            fields["max_position_embeddings"] = 128
    return fields


def windows(random, fields, always=False):
    """layer_types for a family that asks its layers one by one."""
    if always or random.random() < 0.4:
        fields["layer_types"] = [random.choice(("sliding_attention", "full_attention"))
                                 for _ in range(fields["num_hidden_layers"])]


def llama(random):
    fields = base(random, "llama", "LlamaForCausalLM", attention_bias=(True, False), mlp_bias=(True, False),
                  hidden_act=("silu", "swish"), pretraining_tp=(1, 2)) | heads(random)
    rope(random, fields, head_dim(fields))
    return fields


def mistral(random):
    fields = base(random, "mistral", "MistralForCausalLM", hidden_act=("silu",),
                  sliding_window=(None, 2, 3, 8, 24, 4096)) | heads(random)
    rope(random, fields, head_dim(fields))
    return fields


def qwen_windows(random, fields):
    maybe(random, fields, use_sliding_window=(True, True, False), sliding_window=(None, 3, 8, 24),
          max_window_layers=(0, 1, 2, 28))
    windows(random, fields)


def qwen2(random):
    fields = base(random, "qwen2", "Qwen2ForCausalLM") | heads(random)
    qwen_windows(random, fields)
    rope(random, fields, head_dim(fields))
    return fields


def qwen3(random):
    fields = base(random, "qwen3", "Qwen3ForCausalLM", attention_bias=(True, False)) | heads(random)
    fields.setdefault("head_dim", 12)
    qwen_windows(random, fields)
    rope(random, fields, head_dim(fields))
    return fields


def gemma2(random):
    fields = base(random, "gemma2", "Gemma2ForCausalLM", attention_bias=(True, False),
                  hidden_activation=("gelu_pytorch_tanh", None), query_pre_attn_scalar=(8, 20, 256),
                  attn_logit_softcapping=(1.5, 5.0, 50.0, None), final_logit_softcapping=(2.0, 30.0, None),
                  sliding_window=(3, 8, 24)) | heads(random)
    fields.setdefault("head_dim", 14)
    windows(random, fields)
    rope(random, fields, head_dim(fields))
    return fields


def gemma3_rope(random, fields):
    positions, size = fields["max_position_embeddings"], head_dim(fields)
    scaled = {"rope_type": random.choice(("linear", "yarn", "llama3", "default"))}
    scaled |= scaled_rope(random, scaled["rope_type"], size, positions)
    maybe(random, fields, rope_local_base_freq=(100.0, 10000.0))
    if random.random() < 0.4:
        fields["rope_parameters"] = dict(
            full_attention=dict(scaled, rope_theta=random.choice((1000.0, 1e6))),
            sliding_attention=dict(rope_type="default", rope_theta=random.choice((100.0, 1e4))))
        return
    maybe(random, fields, rope_theta=(1000.0, 1e6))
    if scaled["rope_type"] != "default":
        fields["rope_scaling"] = scaled


def gemma3_text(random, **others):
    fields = base(random, "gemma3_text", "Gemma3ForCausalLM", attention_bias=(True, False),
                  hidden_activation=("gelu_pytorch_tanh",), query_pre_attn_scalar=(8, 20, 256),
                  attn_logit_softcapping=(None, 5.0), final_logit_softcapping=(None, 2.0), sliding_window=(3, 8, 24),
                  sliding_window_pattern=(1, 2, 3, 6)) | heads(random)
    fields.setdefault("head_dim", 14)
    windows(random, fields)
    gemma3_rope(random, fields)
    return fields


def phi3(random):
    fields = base(random, "phi3", "Phi3ForCausalLM", sliding_window=(None, 3, 8, 24), attention_bias=(True, False))
    fields |= heads(random, free=False)
    part = random.choice((None, None, 1.0, 0.5, 0.75))
    size = head_dim(fields)
    rotated = int(size * (part or 1))
    rope(random, fields, rotated, ("longrope",), part)
    for key in ("rope_scaling", "rope_parameters"):
        if random.random() < 0.6 and fields.get(key) and "original_max_position_embeddings" in fields[key]:
            fields["original_max_position_embeddings"] = fields[key].pop("original_max_position_embeddings")
    return fields


def granite(random):
    fields = base(random, "granite", "GraniteForCausalLM", attention_bias=(True, False), mlp_bias=(True, False),
                  embedding_multiplier=(0.5, 2.0, 12), residual_multiplier=(0.22, 1.5), attention_multiplier=(0.1, 0.5),
                  logits_scaling=(0.5, 4.0, 8)) | heads(random, free=False)
    rope(random, fields, head_dim(fields))
    return fields


def olmo2(random):
    fields = base(random, "olmo2", "Olmo2ForCausalLM", attention_bias=(True, False)) | heads(random, free=False)
    rope(random, fields, head_dim(fields))
    return fields


def olmo3(random):
    fields = base(random, "olmo3", "Olmo3ForCausalLM", attention_bias=(True, False), sliding_window=(3, 8, 24))
    fields |= heads(random, free=False)
    windows(random, fields)
    gemma3_rope(random, fields)
    return fields


def seed_oss(random):
    fields = base(random, "seed_oss", "SeedOssForCausalLM", attention_bias=(True, False), attention_out_bias=(True, False),
                  mlp_bias=(True, False), residual_dropout=(0.1,)) | heads(random)
    fields.setdefault("head_dim", 12)
    rope(random, fields, head_dim(fields))
    return fields


def ernie4_5(random):
    fields = base(random, "ernie4_5", "Ernie4_5ForCausalLM", use_bias=(True, False)) | heads(random)
    fields.setdefault("head_dim", 12)
    rope(random, fields, head_dim(fields))
    return fields


def exaone4(random):
    fields = base(random, "exaone4", "Exaone4ForCausalLM", sliding_window=(3, 8, 24, None),
                  sliding_window_pattern=(1, 2, 4)) | heads(random)
    if random.random() < 0.5 or fields.get("sliding_window", 1) is None:
        kinds = ("full_attention",) if fields.get("sliding_window", 1) is None else ("sliding_attention", "full_attention")
        fields["layer_types"] = [random.choice(kinds) for _ in range(fields["num_hidden_layers"])]
    rope(random, fields, head_dim(fields))
    return fields


def smollm3(random):
    fields = base(random, "smollm3", "SmolLM3ForCausalLM", attention_bias=(True, False), mlp_bias=(True, False),
                  no_rope_layer_interval=(2, 3, 4), use_sliding_window=(True, False),
                  sliding_window=(None, 3, 8, 24)) | heads(random, free=False)
    if random.random() < 0.5:
        fields["no_rope_layers"] = [random.choice((0, 1)) for _ in range(fields["num_hidden_layers"])]
    windows(random, fields)
    rope(random, fields, head_dim(fields))
    return fields


def glm4(random):
    fields = base(random, "glm4", "Glm4ForCausalLM", attention_bias=(True, False)) | heads(random)
    fields.setdefault("head_dim", 16)
    part = random.choice((None, 1.0, 0.5, 0.75, 0.25))
    rope(random, fields, int(head_dim(fields) * (part or 0.5)), part=part)
    return fields


def glm4_moe(random):
    fields = base(random, "glm4_moe", "Glm4MoeForCausalLM", attention_bias=(True, False), use_qk_norm=(True, False),
                  norm_topk_prob=(True, False), routed_scaling_factor=(1.0, 2.5), first_k_dense_replace=(0, 1, 2),
                  n_shared_experts=(1, 2), num_nextn_predict_layers=(0, 1)) | heads(random)
    grouped_experts(random, fields)
    part = random.choice((None, 1.0, 0.5, 0.75, 0.25))
    rope(random, fields, int(head_dim(fields) * (part or 0.5)), part=part)
    return fields


def choose_experts(random, fields, key):
    """How many there are, and how many each token takes; it may take all."""
    fields[key] = random.choice((1, 2, 3, 4, 8, 17))
    fields["num_experts_per_tok"] = min(random.choice((1, 2, 3, fields[key])), fields[key])


def mixtral(random):
    fields = base(random, "mixtral", "MixtralForCausalLM", sliding_window=(None, 3, 8, 24),
                  router_jitter_noise=(0.0,)) | heads(random)
    choose_experts(random, fields, "num_local_experts")
    rope(random, fields, head_dim(fields))
    return fields


def qwen_experts(random, fields):
    choose_experts(random, fields, "num_experts")
    fields["moe_intermediate_size"] = random.choice((12, 20, 24, 33, 96))
    maybe(random, fields, norm_topk_prob=(True, False), decoder_sparse_step=(1, 2), mlp_only_layers=([], [0], [1, 7]))


def qwen2_moe(random):
    fields = base(random, "qwen2_moe", "Qwen2MoeForCausalLM", qkv_bias=(True, False)) | heads(random, free=False)
    qwen_experts(random, fields)
    fields["shared_expert_intermediate_size"] = random.choice((16, 20, 48))
    qwen_windows(random, fields)
    rope(random, fields, head_dim(fields))
    return fields


def qwen3_moe(random):
    fields = base(random, "qwen3_moe", "Qwen3MoeForCausalLM", attention_bias=(True, False),
                  use_sliding_window=(True, False), sliding_window=(None, 3, 8, 24)) | heads(random)
    qwen_experts(random, fields)
    rope(random, fields, head_dim(fields))
    return fields


def llama4_text(random):
    fields = base(random, "llama4_text", "Llama4ForCausalLM", attention_bias=(True, False), use_qk_norm=(True, False),
                  attn_temperature_tuning=(True, False, 4), floor_scale=(4, 16, 8192), attn_scale=(0.1, 0.4),
                  attention_chunk_size=(4, 8, 32, 8192), intermediate_size_mlp=(40, 56),
                  interleave_moe_layer_step=(1, 2)) | heads(random)
    fields.setdefault("head_dim", 12)
    fields.setdefault("intermediate_size_mlp", 48)
    choose_experts(random, fields, "num_local_experts")
    layers = fields["num_hidden_layers"]
    if random.random() < 0.4:
        fields["no_rope_layers"] = [random.choice((0, 1)) for _ in range(layers)]
    elif random.random() < 0.5:
        fields["no_rope_layer_interval"] = random.choice((2, 3))
    if random.random() < 0.3:
        fields["moe_layers"] = sorted(random.sample(range(layers), random.randint(0, layers)))
    if random.random() < 0.2:
        fields["layer_types"] = [random.choice(("chunked_attention", "full_attention")) for _ in range(layers)]
    rope(random, fields, head_dim(fields), ("llama3", "linear", "yarn"))
    return fields


def gpt_oss(random):
    fields = base(random, "gpt_oss", "GptOssForCausalLM", attention_bias=(True, False), sliding_window=(3, 8, 24))
    fields |= heads(random)
    fields.setdefault("head_dim", 12)
    choose_experts(random, fields, "num_local_experts")
    windows(random, fields)
    rope(random, fields, head_dim(fields), ("yarn", "linear", "llama3"))
    return fields


def grouped_experts(random, fields):
    groups, size = random.choice(((1, 4), (2, 2), (2, 4), (4, 2), (1, 17), (8, 4)))
    chosen_groups = random.randint(1, groups)
    fields |= dict(n_group=groups, topk_group=chosen_groups, n_routed_experts=groups * size,
                   num_experts_per_tok=min(random.choice((1, 2, 3, chosen_groups * size)), chosen_groups * size),
                   moe_intermediate_size=random.choice((12, 20, 24, 72)))


def latent_attention(random, fields):
    count = random.choice((1, 2, 3, 4, 7))
    fields |= dict(num_attention_heads=count, num_key_value_heads=count, hidden_size=random.choice((24, 32, 50, 136)),
                   q_lora_rank=random.choice((None, 10, 16, 96)), kv_lora_rank=random.choice((8, 12, 20, 32, 128)),
                   qk_nope_head_dim=random.choice((4, 8, 10, 64)), qk_rope_head_dim=random.choice((2, 4, 6, 8, 32)),
                   v_head_dim=random.choice((4, 6, 12, 16, 64)))
    rope(random, fields, fields["qk_rope_head_dim"], ("yarn", "yarn", "linear", "llama3"))


def deepseek_v2(random):
    fields = base(random, "deepseek_v2", "DeepseekV2ForCausalLM", attention_bias=(True, False),
                  routed_scaling_factor=(1.0, 2.5), first_k_dense_replace=(0, 1, 2), n_shared_experts=(1, 2),
                  topk_method=("greedy", "group_limited_greedy"))
    latent_attention(random, fields)
    grouped_experts(random, fields)
    return fields


def deepseek_v3(random):
    fields = base(random, "deepseek_v3", "DeepseekV3ForCausalLM", attention_bias=(True, False),
                  rope_interleave=(True, False), norm_topk_prob=(True, False), routed_scaling_factor=(1.0, 2.5),
                  first_k_dense_replace=(0, 1, 2), n_shared_experts=(1, 2), num_nextn_predict_layers=(0, 1))
    latent_attention(random, fields)
    grouped_experts(random, fields)
    return fields


def states(random, keys, inner, head_dims=(4, 6, 8, 12, 32, 64)):
    """Sizes of a state space; keys: what the family calls them. inner: the size of all heads, if it is given."""
    size = random.choice([each for each in head_dims if inner % each == 0] or [1])
    count = inner // size
    groups = random.choice([each for each in (1, 2, 3, 4, 8) if count % each == 0])
    sizes = dict(num_heads=count, head_dim=size, state_size=random.choice((4, 8, 10, 16, 64, 128)), n_groups=groups,
                 conv_kernel=random.choice((2, 3, 4)), chunk_size=random.choice((4, 8, 16, 256)))
    return {keys.get(key, key): value for key, value in sizes.items()}


MAMBA_KEYS = dict(num_heads="mamba_n_heads", head_dim="mamba_d_head", state_size="mamba_d_state",
                  n_groups="mamba_n_groups", conv_kernel="mamba_d_conv", chunk_size="mamba_chunk_size")


def mamba2(random):
    hidden, expand = random.choice((24, 32, 48, 128, 136)), random.choice((1, 2, 3))
    fields = dict(architectures=["Mamba2ForCausalLM"], model_type="mamba2", vocab_size=random.choice(VOCABULARY),
                  num_hidden_layers=random.choice((1, 2, 3)), hidden_size=hidden, expand=expand, bos_token_id=1,
                  eos_token_id=2, pad_token_id=0) | states(random, {}, hidden * expand)
    maybe(random, fields, use_bias=(True, False), use_conv_bias=(True, False), rms_norm=(True, False),
          layer_norm_epsilon=EPSILONS, tie_word_embeddings=(True, False), residual_in_fp32=(True, False),
          hidden_act=("silu",), time_step_limit=([0.0, float("inf")], [0.01, 0.5], [0.0, 1.0]),
          norm_before_gate=(True, False))
    return fields


def bamba(random):
    fields = base(random, "bamba", "BambaForCausalLM", attention_bias=(True, False), mlp_bias=(True, False),
                  mamba_conv_bias=(True, False), mamba_proj_bias=(True, False),
                  time_step_limit=([0.0, float("inf")], [0.01, 0.5])) | heads(random, free=False)
    fields["attn_layer_indices"] = [layer for layer in range(fields["num_hidden_layers"]) if random.random() < 0.5]
    if random.random() < 0.2:
        fields["attn_layer_indices"] = None
    expand = random.choice((1, 2))
    fields |= dict(mamba_expand=expand) | states(random, MAMBA_KEYS, fields["hidden_size"] * expand)
    rope(random, fields, head_dim(fields) // 2, part=random.choice((None, 0.5, 1.0)))
    return drop_dynamic(fields)


def granite_hybrid(random):
    fields = base(random, "granitemoehybrid", "GraniteMoeHybridForCausalLM", attention_bias=(True, False),
                  mamba_conv_bias=(True, False), mamba_proj_bias=(True, False),
                  time_step_limit=([0.0, float("inf")], [0.01, 0.5]), embedding_multiplier=(0.5, 2.0, 12),
                  residual_multiplier=(0.22, 1.5), attention_multiplier=(0.1, 0.5), logits_scaling=(0.5, 4.0, 8),
                  position_embedding_type=("rope", None)) | heads(random, free=False)
    layers = fields["num_hidden_layers"]
    fields["layer_types"] = [random.choice(("mamba", "mamba", "attention")) for _ in range(layers)]
    fields["shared_intermediate_size"] = random.choice((16, 20, 48))
    fields["num_local_experts"] = 0
    if random.random() < 0.6:
        choose_experts(random, fields, "num_local_experts")
    expand = random.choice((1, 2))
    fields |= dict(mamba_expand=expand) | states(random, MAMBA_KEYS, fields["hidden_size"] * expand)
    rope(random, fields, head_dim(fields))
    return drop_dynamic(fields)


def falcon_h1(random):
    fields = base(random, "falcon_h1", "FalconH1ForCausalLM", attention_bias=(True, False), mlp_bias=(True, False),
                  mamba_conv_bias=(True, False), mamba_proj_bias=(True, False), projectors_bias=(True, False),
                  mamba_rms_norm=(True, False), mamba_norm_before_gate=(True, False),
                  embedding_multiplier=(0.5, 2.0), lm_head_multiplier=(0.5, 2), key_multiplier=(0.5, 2.0, 1),
                  attention_in_multiplier=(0.5, 2.0), attention_out_multiplier=(0.5, 2.0), ssm_in_multiplier=(0.5, 2.0),
                  ssm_out_multiplier=(0.5, 2.0), mlp_multipliers=([0.8, 0.6], None), mamba_use_mlp=(True,),
                  ssm_multipliers=([0.7, 0.9, 0.4, 0.5, 0.35], None)) | heads(random)
    inner = random.choice((24, 48, 64, 192))
    fields |= dict(mamba_d_ssm=inner) | states(random, MAMBA_KEYS, inner)
    if random.random() < 0.2:
        fields["mamba_d_ssm"] = None
        fields |= dict(mamba_expand=2) | states(random, MAMBA_KEYS, fields["hidden_size"] * 2)
    rope(random, fields, head_dim(fields))
    return fields


def whisper(random):
    count = random.choice((1, 2, 3, 4, 5))
    fields = dict(architectures=["WhisperForConditionalGeneration"], model_type="whisper",
                  d_model=count * random.choice((6, 8, 14, 16, 64)), decoder_attention_heads=count,
                  encoder_attention_heads=count, encoder_layers=random.choice((1, 2, 3)),
                  decoder_layers=random.choice((1, 2, 3)), encoder_ffn_dim=random.choice((20, 33, 48, 160)),
                  decoder_ffn_dim=random.choice((20, 33, 48, 160)), num_mel_bins=random.choice((8, 20, 80, 128)),
                  max_source_positions=random.choice((5, 20, 37, 150)), max_target_positions=64,
                  vocab_size=random.choice(VOCABULARY), bos_token_id=1, eos_token_id=2, pad_token_id=0,
                  decoder_start_token_id=1)
    if random.random() < 0.2:  # their other names
        fields["num_hidden_layers"] = fields.pop("encoder_layers")
        fields["num_attention_heads"] = fields.pop("encoder_attention_heads")
    maybe(random, fields, scale_embedding=(True, False), activation_function=("gelu", "gelu"),
          tie_word_embeddings=(True, False))
    return fields


def bert(random):
    count = random.choice((1, 2, 3, 4))
    fields = dict(architectures=["BertModel"], model_type="bert", hidden_size=count * random.choice((6, 8, 14, 16, 22)),
                  num_attention_heads=count, num_hidden_layers=random.choice((1, 2, 3)),
                  intermediate_size=random.choice((20, 33, 48)), vocab_size=random.choice(VOCABULARY),
                  max_position_embeddings=64, pad_token_id=0)
    maybe(random, fields, type_vocab_size=(1, 2, 3), layer_norm_eps=(1e-12, 1e-5, 0.05), hidden_act=("gelu",),
          position_embedding_type=("absolute",))
    return fields


def roberta(random):
    name, kind = random.choice((("Roberta", "roberta"), ("XLMRoberta", "xlm-roberta")))
    fields = bert(random) | dict(architectures=[name + "Model"], model_type=kind)
    maybe(random, fields, pad_token_id=(0, 1, 3))
    return fields


CLASSIFIED = (bert, roberta, llama, mistral, qwen2, qwen3, gemma2, phi3, olmo2, seed_oss, smollm3, glm4, mixtral, qwen2_moe,
              qwen3_moe, gpt_oss, deepseek_v3)


def classifier(random):
    """A head of classes on any family that has one."""
    fields = drop_dynamic(random.choice(CLASSIFIED)(random))
    family = fields["architectures"][0].removesuffix("ForCausalLM").removesuffix("Model")
    fields["architectures"] = [family + "ForSequenceClassification"]
    if random.random() < 0.6:
        fields["id2label"] = {str(i): f"label {i}" for i in range(random.choice((1, 2, 5)))}
    maybe(random, fields, problem_type=("single_label_classification", "multi_label_classification", "regression"),
          classifier_dropout=(0.1,))
    return fields


def qwen3_embedding(random):
    fields = drop_dynamic(qwen3(random))
    fields["architectures"] = [random.choice(("Qwen3ForCausalLM", "Qwen3Model"))]
    return fields


def vision_tower(random, kind):
    count, patch = random.choice((1, 2, 4)), random.choice((4, 7, 14))
    fields = dict(model_type=kind, hidden_size=count * random.choice((8, 12, 18)), num_attention_heads=count,
                  num_hidden_layers=random.choice((1, 2, 3)), intermediate_size=random.choice((20, 33, 48)),
                  image_size=patch * 4 + random.choice((0, 0, 1)), patch_size=patch)
    maybe(random, fields, layer_norm_eps=EPSILONS)
    if kind == "clip_vision_model":
        maybe(random, fields, hidden_act=("quick_gelu", "gelu"), projection_dim=(16,))
    elif random.random() < 0.5:
        fields |= dict(vision_use_head=False)
    return fields


def gemma3(random):
    text = gemma3_text(random)
    del text["architectures"]
    text["sliding_window"] = random.choice((16, 24))  # images longer than it: see quirk 4 of the golden data's README
    image = text["vocab_size"] - 1
    fields = dict(architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", text_config=text,
                  vision_config=dict(vision_tower(random, "siglip_vision_model"), vision_use_head=False),
                  image_token_index=image, boi_token_index=3, eoi_token_index=4,
                  mm_tokens_per_image=random.choice((1, 4, 16)))
    if random.random() < 0.3:
        for name in ("image_token", "boi_token", "eoi_token"):
            fields[name + "_id"] = fields.pop(name + "_index")
    maybe(random, fields, tie_word_embeddings=(True, False), eos_token_id=([1, 2],), initializer_range=(0.02,))
    return fields


def llava(random):
    text = random.choice((llama, mistral, qwen2))(random)
    del text["architectures"]
    drop_dynamic(text)
    fields = dict(architectures=["LlavaForConditionalGeneration"], model_type="llava", text_config=text,
                  vision_config=vision_tower(random, random.choice(("clip_vision_model", "siglip_vision_model"))),
                  image_token_index=text["vocab_size"] - 1)
    layers = fields["vision_config"]["num_hidden_layers"]
    maybe(random, fields, projector_hidden_act=("gelu", "gelu_pytorch_tanh"), multimodal_projector_bias=(True, False),
          vision_feature_layer=(-1, -2, 1, layers), vision_feature_select_strategy=("default", "full"),
          tie_word_embeddings=(True, False))
    return fields


FAMILIES = {function.__name__: function for function in (
    llama, mistral, qwen2, qwen3, gemma2, gemma3_text, phi3, granite, olmo2, olmo3, seed_oss, ernie4_5, exaone4, smollm3, glm4,
    glm4_moe, mixtral, qwen2_moe, qwen3_moe, llama4_text, gpt_oss, deepseek_v2, deepseek_v3, mamba2, bamba,
    granite_hybrid, falcon_h1, whisper, bert, roberta, classifier,
    qwen3_embedding, gemma3, llava)}

STRUCTURE = {"architectures", "model_type", "text_config", "vision_config", "rope_scaling", "rope_parameters",
             "head_dim", "max_position_embeddings"}


def foreign_fields(config, random):
    """A few fields that other families have, with their values: some are ignored, some are not."""
    others = {}
    for function in random.sample(list(FAMILIES.values()), 3):
        others |= function(random)
    names = sorted(set(others) - set(config) - STRUCTURE)
    return {name: others[name] for name in random.sample(names, min(len(names), random.randint(1, 4)))}
