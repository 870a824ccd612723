#!/usr/bin/env python3
"""Writes a model of a published shape with random bf16 weights, for measurements: its text means nothing.

  make_model.py SHAPE [FOLDER]        SHAPE: qwen3-0.6b, qwen3-moe, llama-1b, gemma3-1b, gemma3-vision; FOLDER: build/models/SHAPE

gemma3-vision has the vision encoder of the published Gemma 3 models before a small language model; qwen3-moe has two layers
of Qwen3-30B-A3B and a small vocabulary. Of the Qwen3 shapes, the same weights are written as GGUF files for llama.cpp, too:
FOLDER/bf16.gguf, q8_0.gguf and q4_0.gguf.

The weights are a function of the shape alone. The tokenizer is a small one of the tests; the ids that it does not know
get words of their own, since clients take a token by its text. Needs numpy.
"""
import json
import pathlib
import struct
import sys
import zlib

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZERS = ROOT / "tests" / "golden" / "tokenizers"
COMMON = dict(tie_word_embeddings=True, torch_dtype="bfloat16", attention_bias=False)
CONFIGS = {
    "qwen3-0.6b": dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", num_hidden_layers=28, hidden_size=1024,
        intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8, head_dim=128, vocab_size=151936,
        hidden_act="silu", rms_norm_eps=1e-6, rope_theta=1000000.0, max_position_embeddings=40960, **COMMON),
    "llama-1b": dict(
        architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=16, hidden_size=2048,
        intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=128256,
        hidden_act="silu", rms_norm_eps=1e-5, rope_theta=500000.0, max_position_embeddings=131072,
        rope_scaling=dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=8192), **COMMON),
    "gemma3-1b": dict(
        architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", num_hidden_layers=26, hidden_size=1152,
        intermediate_size=6912, num_attention_heads=4, num_key_value_heads=1, head_dim=256, vocab_size=262144,
        hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, rope_theta=1000000.0, rope_local_base_freq=10000.0,
        sliding_window=512, sliding_window_pattern=6, query_pre_attn_scalar=256, max_position_embeddings=32768,
        **COMMON),
}
CONFIGS["qwen3-moe"] = CONFIGS["qwen3-0.6b"] | dict(
    architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_hidden_layers=2, hidden_size=2048, intermediate_size=6144,
    num_attention_heads=32, num_key_value_heads=4, vocab_size=32768, num_experts=128, num_experts_per_tok=8,
    moe_intermediate_size=768, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
CONFIGS["gemma3-vision"] = dict(
    architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", torch_dtype="bfloat16", boi_token_index=12,
    eoi_token_index=13, image_token_index=943, mm_tokens_per_image=256,
    text_config=dict(
        model_type="gemma3_text", num_hidden_layers=2, hidden_size=640, intermediate_size=2048, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, vocab_size=960, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
        rope_theta=1000000.0, rope_local_base_freq=10000.0, sliding_window=512, query_pre_attn_scalar=256,
        max_position_embeddings=8192),
    vision_config=dict(
        model_type="siglip_vision_model", hidden_size=1152, intermediate_size=4304, num_hidden_layers=27,
        num_attention_heads=16, image_size=896, patch_size=14, vision_use_head=False))
VISION_FILES = ROOT / "tests" / "golden" / "models" / "models" / "gemma3"
TOKENIZER_OF = {"qwen3-0.6b": "qwen2", "qwen3-moe": "qwen2", "llama-1b": "llama3", "gemma3-1b": "gemma"}


def vision_tensors(vision, text_hidden):
    hidden, inner, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    tower, projector = "vision_tower.vision_model.", "multi_modal_projector."
    residual = (2 * vision["num_hidden_layers"]) ** -0.5

    def linear(name, outputs, inputs, scale=1.0):
        yield f"{tower}{name}.weight", (outputs, inputs), 0.0, scale * inputs ** -0.5
        yield f"{tower}{name}.bias", (outputs,), 0.0, 0.02

    def norm(name):
        yield f"{tower}{name}.weight", (hidden,), 1.0, 0.02
        yield f"{tower}{name}.bias", (hidden,), 0.0, 0.02

    yield f"{tower}embeddings.patch_embedding.weight", (hidden, 3, patch, patch), 0.0, (3 * patch * patch) ** -0.5
    yield f"{tower}embeddings.patch_embedding.bias", (hidden,), 0.0, 0.02
    yield f"{tower}embeddings.position_embedding.weight", ((vision["image_size"] // patch) ** 2, hidden), 0.0, 0.02
    for layer in range(vision["num_hidden_layers"]):
        prefix = f"encoder.layers.{layer}."
        yield from norm(prefix + "layer_norm1")
        for name in ("q_proj", "k_proj", "v_proj"):
            yield from linear(f"{prefix}self_attn.{name}", hidden, hidden)
        yield from linear(prefix + "self_attn.out_proj", hidden, hidden, residual)
        yield from norm(prefix + "layer_norm2")
        yield from linear(prefix + "mlp.fc1", inner, hidden)
        yield from linear(prefix + "mlp.fc2", hidden, inner, residual)
    yield from norm("post_layernorm")
    yield projector + "mm_soft_emb_norm.weight", (hidden,), 0.0, 0.02
    yield projector + "mm_input_projection_weight", (hidden, text_hidden), 0.0, hidden ** -0.5


def tensors(config):
    """(name, shape, mean, standard deviation) of every tensor. The deviations keep the residual stream near 1."""
    if "vision_config" in config:
        for name, *rest in tensors(config["text_config"]):
            yield "language_model." + name, *rest
        yield from vision_tensors(config["vision_config"], config["text_config"]["hidden_size"])
        return
    kind, hidden, inner = config["model_type"], config["hidden_size"], config["intermediate_size"]
    head_dim = config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    norm_mean = 0.0 if kind == "gemma3_text" else 1.0  # Gemma's norms multiply by 1 + weight
    residual = (2 * config["num_hidden_layers"]) ** -0.5
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden), 0.0, 0.02
    for layer in range(config["num_hidden_layers"]):
        def norm(name, size):
            return f"model.layers.{layer}.{name}.weight", (size,), norm_mean, 0.02

        def linear(name, outputs, inputs, scale=1.0):
            return f"model.layers.{layer}.{name}.weight", (outputs, inputs), 0.0, scale * inputs ** -0.5

        yield norm("input_layernorm", hidden)
        yield linear("self_attn.q_proj", queries, hidden)
        yield linear("self_attn.k_proj", keys, hidden)
        yield linear("self_attn.v_proj", keys, hidden)
        yield linear("self_attn.o_proj", hidden, queries, residual)
        if kind != "llama":
            yield norm("self_attn.q_norm", head_dim)
            yield norm("self_attn.k_norm", head_dim)
        yield norm("post_attention_layernorm", hidden)
        if kind == "gemma3_text":
            yield norm("pre_feedforward_layernorm", hidden)
            yield norm("post_feedforward_layernorm", hidden)
        mlps = ["mlp"]
        if "num_experts" in config:
            yield linear("mlp.gate", config["num_experts"], hidden)
            mlps, inner = [f"mlp.experts.{expert}" for expert in range(config["num_experts"])], config["moe_intermediate_size"]
        for mlp in mlps:
            yield linear(mlp + ".gate_proj", inner, hidden)
            yield linear(mlp + ".up_proj", inner, hidden)
            yield linear(mlp + ".down_proj", hidden, inner, residual)
    yield "model.norm.weight", (hidden,), norm_mean, 0.02


def random_bf16(name, shape, mean, deviation):
    """Normal numbers as bf16, which is the upper half of float32."""
    generator = numpy.random.default_rng(zlib.crc32(name.encode()))
    values = generator.standard_normal(shape, dtype=numpy.float32) * numpy.float32(deviation) + numpy.float32(mean)
    return (values.view(numpy.uint32) >> 16).astype(numpy.uint16)


def write_safetensors(path, config):
    """The format: the header's size as u64, the header as JSON, then the tensors one after another."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _, _ in tensors(config):
        begin, end = end, end + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors(config):
            random_bf16(*tensor).tofile(file)


# GGUF, version 3: key-value pairs and tensors' descriptions, then the tensors, each at a multiple of 32 bytes.
GGUF_NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
              "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
              "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_value(value):
    """Its type, and its bytes. In arrays integers are signed, alone they are not."""
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, struct.pack("<Q", len(value.encode())) + value.encode()
    if isinstance(value[0], int):
        return 9, struct.pack("<IQ", 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    return 9, struct.pack("<IQ", 8, len(value)) + b"".join(gguf_value(each)[1] for each in value)


def float32(bf16):
    return (bf16.astype(numpy.uint32) << 16).view(numpy.float32)


def as_f32(bf16):
    return float32(bf16)


def as_bf16(bf16):
    return bf16


def as_q8_0(bf16):
    """Blocks of 32: a float16 scale, 32 signed bytes."""
    blocks = float32(bf16).reshape(-1, 32)
    scale = numpy.abs(blocks).max(1, keepdims=True) / 127
    quants = numpy.rint(blocks / numpy.where(scale == 0, 1, scale)).astype(numpy.int8)
    return numpy.concatenate([scale.astype(numpy.float16).view(numpy.uint8), quants.view(numpy.uint8)], 1)


def as_q4_0(bf16):
    """Blocks of 32: a float16 scale, 16 bytes with two numbers of 4 bits, biased by 8."""
    blocks = float32(bf16).reshape(-1, 32)
    largest = numpy.take_along_axis(blocks, numpy.abs(blocks).argmax(1)[:, None], 1)
    scale = largest / -8
    quants = numpy.clip(numpy.floor(blocks / numpy.where(scale == 0, 1, scale) + 8.5), 0, 15).astype(numpy.uint8)
    return numpy.concatenate([scale.astype(numpy.float16).view(numpy.uint8), quants[:, :16] | (quants[:, 16:] << 4)], 1)


GGUF_TYPES = {"f32": (0, as_f32, 4.0), "q4_0": (2, as_q4_0, 18 / 32), "q8_0": (8, as_q8_0, 34 / 32), "bf16": (30, as_bf16, 2.0)}


def gguf_tensors(config):
    """(GGUF's name, [tensors of the folder that it holds, one after another], shape) of every tensor."""
    experts = {}
    for tensor in tensors(config):
        name, shape = tensor[:2]
        parts = name.removesuffix(".weight").split(".", 3)
        if parts[:2] != ["model", "layers"]:
            yield {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}[".".join(parts)] + ".weight", [tensor], shape
        elif parts[3].startswith("mlp.experts."):
            expert, kind = parts[3].split(".")[2:]
            held = experts.setdefault(f"blk.{parts[2]}.{GGUF_NAMES['mlp.' + kind]}_exps.weight", [])
            held.append(tensor)
            if int(expert) == config["num_experts"] - 1:
                yield f"blk.{parts[2]}.{GGUF_NAMES['mlp.' + kind]}_exps.weight", held, (config["num_experts"], *shape)
        else:
            yield f"blk.{parts[2]}.{GGUF_NAMES[parts[3]]}.weight", [tensor], shape


def gguf_metadata(config, tokenizer):
    architecture = {"qwen3": "qwen3", "qwen3_moe": "qwen3moe"}[config["model_type"]]
    of_model = {"block_count": config["num_hidden_layers"], "context_length": config["max_position_embeddings"],
                "embedding_length": config["hidden_size"], "feed_forward_length": config["intermediate_size"],
                "attention.head_count": config["num_attention_heads"], "attention.head_count_kv": config["num_key_value_heads"],
                "attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"],
                "attention.layer_norm_rms_epsilon": config["rms_norm_eps"], "rope.freq_base": config["rope_theta"]}
    if "num_experts" in config:
        of_model |= {"expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
                     "expert_feed_forward_length": config["moe_intermediate_size"]}
    vocab = tokenizer["model"]["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    words = sorted(vocab, key=vocab.get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    return {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in of_model.items()},
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": words,
            "tokenizer.ggml.token_type": [3 if vocab[word] in special else 1 for word in words], "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": len(words) - 1, "tokenizer.ggml.eos_token_id": len(words) - 1}


def write_gguf(path, config, tokenizer, width):
    """Norms and the router in float32, as llama.cpp wants them; the token embeddings are the head as well."""
    metadata = gguf_metadata(config, tokenizer)
    described, end, held = b"", 0, list(gguf_tensors(config))
    kinds = {name: "f32" if len(shape) == 1 or "ffn_gate_inp" in name else width for name, _, shape in held}
    for name, _, shape in held:
        number, _, size = GGUF_TYPES[kinds[name]]
        described += gguf_value(name)[1] + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        described += struct.pack("<IQ", number, end)
        end += -(-int(numpy.prod(shape) * size) // 32) * 32
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(held), len(metadata)))
        for key, value in metadata.items():
            kind, data = gguf_value(value)
            file.write(gguf_value(key)[1] + struct.pack("<I", kind) + data)
        file.write(described)
        file.write(b"\0" * (-file.tell() % 32))
        for name, parts, _ in held:
            for part in parts:
                GGUF_TYPES[kinds[name]][1](random_bf16(*part)).tofile(file)
            file.write(b"\0" * (-file.tell() % 32))


def with_words(tokenizer, vocab_size):
    """The tokenizer with a word for each id without one."""
    vocab = tokenizer["model"]["vocab"]
    known = set(vocab.values()) | {token["id"] for token in tokenizer["added_tokens"]}
    vocab.update((f"word{token}", token) for token in range(vocab_size) if token not in known)
    return tokenizer


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in CONFIGS:
        sys.exit(__doc__)
    shape = sys.argv[1]
    folder = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else ROOT / "build" / "models" / shape
    folder.mkdir(parents=True, exist_ok=True)
    if "vision_config" in CONFIGS[shape]:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.json"):
            (folder / name).write_text((VISION_FILES / name).read_text())
        processor = json.loads((VISION_FILES / "preprocessor_config.json").read_text())
        side = CONFIGS[shape]["vision_config"]["image_size"]
        processor |= dict(size=dict(height=side, width=side), image_seq_length=CONFIGS[shape]["mm_tokens_per_image"])
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
        last = CONFIGS[shape]["text_config"]["vocab_size"] - 1
    else:
        tokenizer = json.loads((TOKENIZERS / TOKENIZER_OF[shape] / "tokenizer.json").read_text())
        tokenizer = with_words(tokenizer, CONFIGS[shape]["vocab_size"])
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
        last = CONFIGS[shape]["vocab_size"] - 1
    (folder / "config.json").write_text(json.dumps(CONFIGS[shape] | {"bos_token_id": last, "eos_token_id": last}, indent=1))
    write_safetensors(folder / "model.safetensors", CONFIGS[shape])
    for width in ("bf16", "q8_0", "q4_0") if shape.startswith("qwen3") else ():
        write_gguf(folder / f"{width}.gguf", CONFIGS[shape], tokenizer, width)
    print(folder)


if __name__ == "__main__":
    main()
