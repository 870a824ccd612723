"""Checkpoints as llama.cpp's own converter writes them to GGUF files, without a vocabulary.

LLAMA_CPP names the folder of llama.cpp's source (the source archive of llama-cpp-python on PyPI has it under vendor)."""
import json
import logging
import os
import pathlib
import sys

SOURCE = os.environ.get("LLAMA_CPP")
# Of families that llama.cpp has; the others are not converted.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "granite", "olmo2", "olmo3",
            "seed_oss", "ernie4_5", "exaone4", "smollm3", "glm4", "glm4_moe", "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss",
            "llama4_text", "deepseek_v2", "deepseek_v3", "mamba2", "falcon_h1", "bamba", "granite_hybrid")
# What such files do not say, as llama.cpp takes it; None: what the class has.
FIXED = {
    "llama4_text": dict(attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1, attn_temperature_tuning=True,
                        use_qk_norm=True, no_rope_layer_interval=4, no_rope_layers=None, moe_layers=None,
                        layer_types=None, attention_bias=False, interleave_moe_layer_step=1),
    "qwen3_moe": dict(norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], use_sliding_window=False),
    "qwen2_moe": dict(norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[], use_sliding_window=False),
    "mixtral": dict(sliding_window=None),
    "deepseek_v2": dict(attention_bias=False),
    "deepseek_v3": dict(attention_bias=False, scoring_func="sigmoid", num_nextn_predict_layers=0, rope_interleave=True),
    "glm4_moe": dict(num_nextn_predict_layers=0),
    "granite_hybrid": dict(mamba_proj_bias=False, time_step_limit=None, rms_norm_eps=1e-5),
    "mistral": dict(sliding_window=None),
    "qwen2": dict(use_sliding_window=False, layer_types=None),
    "qwen3": dict(use_sliding_window=False, layer_types=None),
    "smollm3": dict(no_rope_layers=None, no_rope_layer_interval=4, use_sliding_window=False, sliding_window=None,
                    layer_types=None),
    "mamba2": dict(use_bias=False, time_step_limit=None, norm_before_gate=None),
    "bamba": dict(mamba_proj_bias=False, time_step_limit=None, partial_rotary_factor=None, rope_parameters=None,
                  tie_word_embeddings=False),
    "falcon_h1": dict(mamba_norm_before_gate=False, mamba_proj_bias=False, projectors_bias=False, mlp_multipliers=[0.8, 0.6],
                      ssm_multipliers=[0.7, 0.9, 0.4, 0.5, 0.35], attention_bias=False, mlp_bias=False,
                      tie_word_embeddings=False),
}
# Scaled rotations that the files of a family tell.
ROTATIONS = {"llama": ("llama3",), "exaone4": ("llama3",), "llama4_text": ("llama3",), "gpt_oss": ("yarn",), "olmo3": ("yarn",),
             "deepseek_v2": ("yarn",), "deepseek_v3": ("yarn",)}


def settle(family, config):
    """Fields of a configuration that the files do not tell, as they are read from them."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key) or {}
        if family == "olmo3":
            rope = rope.get("full_attention") or rope
        if rope.get("rope_type", rope.get("type", "default")) not in ("default", *ROTATIONS.get(family, ())):
            config.pop(key)
            config["max_position_embeddings"] = 256  # some rotations stretch it
    if family == "bamba":  # whose class rotates half of a head; a file without states is of another architecture
        config.pop("rope_scaling", None)
        config["attn_rotary_emb"] = config["hidden_size"] // config["num_attention_heads"] // 2
        if config["attn_rotary_emb"] % 2:
            raise ValueError("llama.cpp rotates pairs")
        config["attn_layer_indices"] = [each for each in config["attn_layer_indices"] or [] if each > 0] or [1]
    if family.startswith("deepseek"):  # a file tells neither what yarn multiplies by, nor how groups are chosen
        for key in ("rope_scaling", "rope_parameters"):
            for untold in ("attention_factor", "truncate"):
                (config.get(key) or {}).pop(untold, None)
        if family == "deepseek_v2":
            config["topk_method"] = "greedy" if config["n_group"] == 1 else "group_limited_greedy"
    if family == "granite_hybrid":  # the converter says that heads are rotated where there is nothing else
        config["position_embedding_type"] = None if "mamba" in config["layer_types"] else "rope"
    for key, value in FIXED.get(family, {}).items():
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value


def rename_layer_types(path):
    """Of hybrids, to the names in published files, which the converter knows."""
    config = json.loads(path.read_text())
    if config["model_type"] != "granitemoehybrid":
        return
    names = {"full_attention": "attention", "linear_attention": "mamba"}
    config["layer_types"] = [names.get(each, each) for each in config["layer_types"]]
    path.write_text(json.dumps(config))


def convert(folder, path):
    """Throws what the converter throws of a configuration that it does not take."""
    for each in (SOURCE, f"{SOURCE}/gguf-py"):
        if each not in sys.path:
            sys.path.insert(0, each)
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    logging.disable(logging.WARNING)
    folder = pathlib.Path(folder)
    rename_layer_types(folder / "config.json")
    architecture = get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT)
    with torch.inference_mode():
        model = get_model_class(architecture)(folder, gguf.LlamaFileType.ALL_F32, pathlib.Path(path), eager=True)
        model.set_vocab = lambda: None
        model.write()


def round_decays(checkpoint):
    """The reference gets what the file has: of a float16 checkpoint the converter computes -exp(A_log) in float16."""
    import torch
    if checkpoint.dtype == torch.float16:
        with torch.no_grad():
            for name, weight in checkpoint.model.named_parameters():
                if name.endswith(".A_log"):
                    weight.copy_(weight.half().exp().float().log())


if __name__ == "__main__":
    convert(*sys.argv[1:])
