#!/usr/bin/env python3
"""Writes tests/golden/models: tiny random checkpoints in bfloat16, and what transformers 5 computes with them.

  make_model_goldens.py [NAME...]     needs numpy, safetensors, torch and transformers 5, which no test does

For the architectures in CONFIGS; models/NAME is a model folder as it is published, goldens/NAME what float32 gives:
prompts with 64 greedy tokens each, at every step of which the best token leads by at least MIN_GAP; logits; and how far
the reference's own bfloat16 is from them. The other models there were made elsewhere, in the same layout.
"""
import json
import pathlib
import shutil
import sys
import warnings

import numpy
import torch
import transformers
from safetensors.numpy import save_file as save_numpy
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

MODELS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models"
LENGTHS = [1, 7, 16, 17, 33, 100, 300]
NUM_GREEDY, NUM_TEXT, MIN_GAP, MIN_DISTINCT, CLEAR_GAP = 64, 48, 2e-4, 80, 0.5
TEXTS = ["Once upon a time, in a small village,", "def add(a, b):\n    \"\"\"Return"]

COMMON = dict(num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
              torch_dtype="bfloat16", attention_dropout=0.0, use_cache=True)
CONFIGS = {
    "gemma2": dict(
        COMMON, architectures=["Gemma2ForCausalLM"], model_type="gemma2", hidden_size=64, intermediate_size=128,
        head_dim=24, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, query_pre_attn_scalar=20,
        sliding_window=20, attn_logit_softcapping=4.0, final_logit_softcapping=9.0, rope_theta=10000.0),
    "phi3": dict(
        COMMON, architectures=["Phi3ForCausalLM"], model_type="phi3", hidden_size=96, intermediate_size=160,
        hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, original_max_position_embeddings=64,
        partial_rotary_factor=0.75, sliding_window=None, tie_word_embeddings=False, resid_pdrop=0.0, embd_pdrop=0.0,
        rope_scaling=dict(type="longrope", short_factor=[1.0, 1.0, 1.125, 1.25, 1.375, 1.5, 1.75, 2.0, 2.5],
                          long_factor=[1.0, 1.25, 1.5, 2.25, 3.5, 5.0, 8.0, 12.0, 16.0])),
    "olmo2": dict(
        COMMON, architectures=["Olmo2ForCausalLM"], model_type="olmo2", hidden_size=96, intermediate_size=160,
        hidden_act="silu", rms_norm_eps=1e-6, rope_theta=500000.0, rope_scaling=None, attention_bias=False,
        tie_word_embeddings=False),
    "granite": dict(
        COMMON, architectures=["GraniteForCausalLM"], model_type="granite", hidden_size=80, intermediate_size=160,
        hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, attention_bias=False,
        mlp_bias=False, tie_word_embeddings=True, embedding_multiplier=2.5, residual_multiplier=0.7,
        attention_multiplier=0.3, logits_scaling=1.6),
    "smollm3": dict(
        COMMON, architectures=["SmolLM3ForCausalLM"], model_type="smollm3", hidden_size=64, intermediate_size=160,
        hidden_act="silu", rms_norm_eps=1e-6, rope_theta=50000.0, rope_scaling=None, attention_bias=False,
        mlp_bias=False, tie_word_embeddings=True, no_rope_layers=[1, 0, 1, 0], no_rope_layer_interval=4,
        use_sliding_window=False, sliding_window=None, max_window_layers=4, layer_types=["full_attention"] * 4),
    "glm4": dict(
        COMMON, architectures=["Glm4ForCausalLM"], model_type="glm4", hidden_size=64, intermediate_size=144,
        head_dim=20, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, partial_rotary_factor=0.5,
        attention_bias=True, tie_word_embeddings=False),
    "qwen2_moe": dict(
        COMMON, architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", hidden_size=64, intermediate_size=128,
        hidden_act="silu", rms_norm_eps=1e-6, rope_theta=1000000.0, decoder_sparse_step=1, mlp_only_layers=[2],
        moe_intermediate_size=32, shared_expert_intermediate_size=64, num_experts=6, num_experts_per_tok=2,
        norm_topk_prob=False, max_window_layers=4, use_sliding_window=False, sliding_window=1024,
        output_router_logits=False, router_aux_loss_coef=0.001, tie_word_embeddings=False),
    "olmo3": dict(
        COMMON, architectures=["Olmo3ForCausalLM"], model_type="olmo3", hidden_size=64, intermediate_size=144,
        hidden_act="silu", rms_norm_eps=1e-6, rope_theta=500000.0, attention_bias=False, tie_word_embeddings=False,
        sliding_window=20, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64,
                                             beta_fast=32, beta_slow=1, attention_factor=1.1)),
    "seed_oss": dict(
        COMMON, architectures=["SeedOssForCausalLM"], model_type="seed_oss", hidden_size=64, intermediate_size=144,
        head_dim=24, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0, attention_bias=True,
        attention_out_bias=False, mlp_bias=False, residual_dropout=0.0, tie_word_embeddings=False),
    "ernie4_5": dict(
        COMMON, architectures=["Ernie4_5ForCausalLM"], model_type="ernie4_5", hidden_size=64, intermediate_size=144,
        head_dim=24, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=500000.0, use_bias=False, tie_word_embeddings=False),
    "exaone4": dict(
        COMMON, architectures=["Exaone4ForCausalLM"], model_type="exaone4", hidden_size=64, intermediate_size=144,
        hidden_act="silu", rms_norm_eps=1e-5, rope_theta=1000000.0, tie_word_embeddings=False, sliding_window=20,
        sliding_window_pattern=4, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                                    high_freq_factor=4.0, original_max_position_embeddings=64)),
    "glm4_moe": dict(
        COMMON, architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", hidden_size=64, intermediate_size=96,
        head_dim=24, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, partial_rotary_factor=0.5,
        attention_bias=True, use_qk_norm=True, moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=2, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5,
        first_k_dense_replace=1, num_nextn_predict_layers=0, tie_word_embeddings=False),
    "deepseek_v2": dict(
        COMMON, architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", hidden_size=64, intermediate_size=96,
        num_key_value_heads=4, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0, q_lora_rank=None, kv_lora_rank=32,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, moe_intermediate_size=32, n_routed_experts=8,
        n_shared_experts=2, num_experts_per_tok=3, n_group=4, topk_group=2, topk_method="group_limited_greedy",
        norm_topk_prob=False, routed_scaling_factor=2.0, first_k_dense_replace=1, attention_bias=False,
        tie_word_embeddings=False, rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=64,
                                                     beta_fast=32, beta_slow=1, mscale=0.707, mscale_all_dim=0.707)),
    "granite_hybrid": dict(
        COMMON, architectures=["GraniteMoeHybridForCausalLM"], model_type="granitemoehybrid", hidden_size=64,
        intermediate_size=32, shared_intermediate_size=48, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0,
        attention_bias=False, tie_word_embeddings=False, embedding_multiplier=1.5, residual_multiplier=0.7,
        attention_multiplier=0.3, logits_scaling=1.6, layer_types=["mamba", "attention", "mamba", "mamba"],
        position_embedding_type="nope", num_local_experts=6, num_experts_per_tok=2, mamba_n_heads=8, mamba_d_head=16,
        mamba_d_state=16, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=16, mamba_conv_bias=True,
        mamba_proj_bias=False),
}
# Whose tokenizer and special tokens it has.
TOKENIZER_OF = {"gemma2": "gemma3_text", "phi3": "mistral", "olmo2": "llama", "granite": "qwen2", "smollm3": "llama",
                "glm4": "qwen2", "qwen2_moe": "qwen2", "olmo3": "llama", "seed_oss": "qwen2", "ernie4_5": "llama",
                "glm4_moe": "qwen2", "exaone4": "qwen2", "deepseek_v2": "qwen2", "granite_hybrid": "qwen2"}
# Of a state space, as its class makes them.
KEPT = (".A_log", ".dt_bias", ".D")


def write_model(name, config, seed):
    """The folder of the model; its weights are a function of name and seed."""
    folder, other = MODELS / "models" / name, MODELS / "models" / TOKENIZER_OF[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(other / file, folder / file)
    of_other = json.loads((other / "config.json").read_text())
    config = dict(config, vocab_size=of_other["vocab_size"])
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config[key] = of_other.get(key)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    torch.manual_seed(seed * 1000 + sum(map(ord, name)))
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(folder), dtype=torch.float32)
    hidden, tied = config["hidden_size"], model.config.tie_word_embeddings
    for key, values in model.named_buffers():
        if "correction_bias" in key:
            values.normal_(0.0, 0.2)
    for key, values in model.named_parameters():
        if key.endswith(KEPT):
            continue
        if "norm" in key:
            # Blocks must outweigh a tied embedding, or each token is followed by itself.
            is_large = tied and (key == "model.norm.weight" or name == "gemma2" and "post_" in key)
            values.data.normal_((4.0 if is_large else 1.0) - (name == "gemma2"), 0.2)
        elif key.endswith(".bias"):
            values.data.normal_(0.0, 0.3)
        elif "embed_tokens" in key and not tied:
            values.data.normal_(0.0, 1.0)
        elif "embed_tokens" in key or "lm_head" in key:  # logits with a deviation of about 3
            scale = 3 * config.get("logits_scaling", 1.0) / (4 if tied else 1)
            values.data.normal_(0.0, scale * hidden ** -0.5)
        else:
            scale = 2.0 if tied and ("o_proj" in key or "down_proj" in key) else 1.0
            values.data.normal_(0.0, scale * values.shape[-1] ** -0.5)
    model = model.to(torch.bfloat16)
    model.save_pretrained(folder / "saved")
    (folder / "saved" / "model.safetensors").rename(folder / "model.safetensors")
    shutil.rmtree(folder / "saved")
    return folder


def load(folder, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()
    rotary = model.model.rotary_emb
    if getattr(rotary, "rope_type", "default") == "longrope":
        # One set of factors for all positions, by the context that the model serves.
        original = model.config.rope_parameters["original_max_position_embeddings"]
        assert model.config.max_position_embeddings > original
        rotary.original_inv_freq, _ = ROPE_INIT_FUNCTIONS["longrope"](model.config, "cpu", seq_len=original + 1)
    return model


@torch.no_grad()
def greedy(model, prompt, count):
    """Tokens, their logits, and the logits of the prompt."""
    step = model(torch.tensor([prompt]), use_cache=True)
    of_prompt, rows, tokens = step.logits[0].float(), [], []
    while True:
        rows.append(step.logits[0, -1].float())
        tokens.append(int(rows[-1].argmax()))
        if len(tokens) == count:
            return tokens, torch.stack(rows), of_prompt
        step = model(torch.tensor([tokens[-1:]]), past_key_values=step.past_key_values, use_cache=True)


def gaps_of(rows):
    best = torch.log_softmax(rows, -1).topk(2).values
    return best[:, 0] - best[:, 1]


def streamed(tokenizer, prompt, tokens):
    """What an incremental decoder has sent that knows the prompt; after invalid bytes it starts again."""
    text, stream = "", DecodeStream(ids=prompt, skip_special_tokens=True)
    for token in tokens:
        try:
            text += stream.step(tokenizer, token) or ""
        except Exception:
            stream = DecodeStream(skip_special_tokens=True)
            text += stream.step(tokenizer, token) or ""
    return text


@torch.no_grad()
def difference(model, paths, expected):
    """Of all rows along the paths, how far this model's logits are from the expected ones."""
    largest, total, count, same, clear_same, clear = [], 0.0, 0, 0, 0, 0
    for path, rows in zip(paths, expected):
        found = model(torch.tensor([path]), use_cache=False).logits[0].double()[-len(rows):]
        errors = (found - rows.double()).abs()
        largest += errors.max(-1).values.tolist()
        total, count = total + errors.sum().item(), count + errors.numel()
        equal = found.argmax(-1) == rows.argmax(-1)
        is_clear = gaps_of(rows) > CLEAR_GAP
        same += int(equal.sum())
        clear_same, clear = clear_same + int(equal[is_clear].sum()), clear + int(is_clear.sum())
    return dict(max_abs_logit_diff=max(largest),
                row_max_abs_p50_p90_p99=[float(numpy.quantile(largest, q)) for q in (0.5, 0.9, 0.99)],
                mean_abs_logit_diff=total / count, argmax_agreement=same / len(largest),
                argmax_agreement_where_gap_over_0_5=clear_same / max(1, clear))


def write_golden(name, folder, seed):
    """Writes the golden, unless a gap is too small or the answers say little: then the reason."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation(), tokenizer.no_padding()
    model = load(folder, torch.float32)
    vocab_size = model.config.vocab_size
    random = numpy.random.default_rng(seed + 17)
    start = tokenizer.encode("").ids[:1]
    prompts = [(start + [int(x) for x in random.integers(0, vocab_size, n)])[:n] for n in LENGTHS]
    tokens, rows, of_prompts = zip(*(greedy(model, prompt, NUM_GREEDY) for prompt in prompts))
    rows = torch.stack(rows)
    gaps = torch.stack([gaps_of(each) for each in rows])
    texts = []
    for text in TEXTS:
        prompt = tokenizer.encode(text).ids
        answer, answer_rows, _ = greedy(model, prompt, NUM_TEXT)
        texts.append(dict(prompt=text, prompt_token_ids=prompt, greedy_token_ids=answer,
                          text=tokenizer.decode(answer, skip_special_tokens=True),
                          text_with_special=tokenizer.decode(answer, skip_special_tokens=False),
                          streamed_text=streamed(tokenizer, prompt, answer),
                          min_gap=gaps_of(answer_rows).min().item()))
    smallest = min(gaps.min().item(), *(entry["min_gap"] for entry in texts))
    num_distinct = [len(set(said)) for said in tokens]
    if smallest < MIN_GAP:
        return f"a gap is {smallest:.1e}"
    if sum(num_distinct) < MIN_DISTINCT:
        return f"the answers have {num_distinct} tokens that differ"
    # Each path with the last row of its prompt; of the prompt of 33 tokens, all rows.
    paths = [prompt + said[:-1] for prompt, said in zip(prompts, tokens)] + [prompts[LENGTHS.index(33)]]
    expected = list(rows) + [of_prompts[LENGTHS.index(33)]]
    best = torch.log_softmax(rows, -1).topk(5)
    golden = dict(
        model=name, architecture=model.config.architectures[0], dtype_on_disk="bfloat16",
        parameters=sum(p.numel() for p in model.parameters()), weight_attempt=seed,
        reference=dict(torch=torch.__version__, transformers=transformers.__version__, compute_dtype="float32",
                       attention="eager", threads=1),
        lengths=LENGTHS, prompts=prompts, greedy=[list(said) for said in tokens], text_prompts=texts, chats=[],
        stats=dict(median_gap=gaps.median().item(), min_gap=gaps.min().item(),
                   distinct_greedy_tokens=num_distinct, logit_std=rows.std().item()),
        measured=dict(float64_vs_float32=difference(load(folder, torch.float64), paths, expected),
                      bfloat16_vs_float32=difference(load(folder, torch.bfloat16), paths, expected)))
    target = MODELS / "goldens" / name
    target.mkdir(parents=True, exist_ok=True)
    (target / "golden.json").write_text(json.dumps(golden) + "\n")
    save_numpy({"last_logits": torch.stack([each[-1] for each in of_prompts]).numpy(),
                "all_logits_33": of_prompts[LENGTHS.index(33)].numpy(),
                "greedy_ids": numpy.array(tokens, numpy.int32), "greedy_gap": gaps.numpy(),
                "greedy_top5_ids": best.indices.numpy().astype(numpy.int32),
                "greedy_top5_logprobs": best.values.contiguous().numpy()}, target / "golden.safetensors")
    print(f"{name}: attempt {seed}, {golden['parameters']} parameters, {golden['stats']}, {golden['measured']}")
    return None


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CONFIGS:
        for seed in range(200):
            folder = write_model(name, CONFIGS[name], seed)
            reason = write_golden(name, folder, seed)
            if reason is None:
                break
            print(f"{name}: attempt {seed}: {reason}", flush=True)
        for path in [*folder.iterdir(), *(MODELS / "goldens" / name).iterdir()]:
            path.chmod(0o644)


if __name__ == "__main__":
    main()
