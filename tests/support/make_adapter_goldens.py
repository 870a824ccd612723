#!/usr/bin/env python3
"""Writes tests/golden/adapters: LoRA adapters of the tiny models, and what PEFT computes with them.

  make_adapter_goldens.py [NAME...]     needs numpy, safetensors, torch, transformers 5 and peft, which no test does

ADAPTERS names for each its base in tests/golden/models and its settings; the folder is as PEFT saves it, with random
weights, and golden.json beside it has what float32 gives: prompts with greedy tokens, at every step of which the best
token leads by at least MIN_GAP and which are not those of the base alone, and the logits of each prompt's last token.
"""
import json
import pathlib
import shutil
import sys
import warnings

import numpy
import peft
import torch
import transformers

from make_model_goldens import load

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
LENGTHS = [1, 7, 17, 40]
NUM_GREEDY, MIN_GAP = 24, 2e-4
MLP = ["gate_proj", "up_proj", "down_proj"]
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", *MLP]
ADAPTERS = {
    "llama_qv": dict(base="llama", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
    "llama_all": dict(base="llama", r=8, lora_alpha=16, use_rslora=True, target_modules=LINEAR,
                      rank_pattern={"down_proj": 5, "layers.1.self_attn.q_proj": 2}, alpha_pattern={"o_proj": 3}),
    "llama_head": dict(base="llama", r=3, lora_alpha=6, target_modules=["embed_tokens", "lm_head", "down_proj"]),
    "qwen2_all": dict(base="qwen2", r=8, lora_alpha=8, target_modules=LINEAR),
    "phi3_fused": dict(base="phi3", r=6, lora_alpha=12,
                       target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
    "qwen3_moe_experts": dict(base="qwen3_moe", r=4, lora_alpha=8, target_modules=["q_proj"],
                              target_parameters=["experts.gate_up_proj", "experts.down_proj", "gate.weight"],
                              rank_pattern={"experts.down_proj": 3}),
    "qwen2_moe_shared": dict(base="qwen2_moe", r=4, lora_alpha=8, target_modules=MLP + ["shared_expert_gate"],
                             target_parameters=["experts.down_proj"]),
    "gpt_oss_experts": dict(base="gpt_oss", r=3, lora_alpha=6, target_modules=["v_proj"],
                            target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
    "llama4_experts": dict(base="llama4_text", r=4, lora_alpha=8, target_modules=["o_proj", *MLP],
                           target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
    "deepseek_v3_all": dict(base="deepseek_v3", r=4, lora_alpha=8, target_modules="all-linear"),
    "bamba_in": dict(base="bamba", r=4, lora_alpha=8, target_modules=["in_proj", "v_proj"]),
    "gemma3_all": dict(base="gemma3_text", r=4, lora_alpha=8, target_modules=LINEAR + ["embed_tokens"]),
}


@torch.no_grad()
def greedy(model, prompt):
    """Tokens, the gaps between the best two logits, and the logits behind the prompt."""
    path, tokens, gaps, first = list(prompt), [], [], None
    for _ in range(NUM_GREEDY):
        row = model(torch.tensor([path]), use_cache=False).logits[0, -1].double()
        first = row if first is None else first
        best = row.topk(2)
        gaps.append((best.values[0] - best.values[1]).item())
        tokens.append(best.indices[0].item())
        path.append(tokens[-1])
    return tokens, min(gaps), first


def write_adapter(name, settings, seed):
    settings = dict(settings)
    base_name = settings.pop("base")
    base = load(GOLDEN / "models" / "models" / base_name, torch.float32)
    random = numpy.random.default_rng(seed + 29)
    prompts = [[int(x) for x in random.integers(0, base.config.vocab_size, n)] for n in LENGTHS]
    alone = [greedy(base, prompt)[0] for prompt in prompts]
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **settings)).eval()
    torch.manual_seed(seed)
    for key, parameter in model.named_parameters():
        if "lora_" in key:
            torch.nn.init.normal_(parameter, std=0.3 if "_B" in key else 0.2)
            parameter.data = parameter.data.to(torch.bfloat16).float()
    answers = [greedy(model, prompt) for prompt in prompts]
    if min(gap for _, gap, _ in answers) < MIN_GAP or all(a[0] == b for a, b in zip(answers, alone)):
        return False
    folder = GOLDEN / "adapters" / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base_name
    for key in ("target_modules", "target_parameters"):
        config[key] = config[key] and sorted(config[key])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    (folder / "golden.json").write_text(json.dumps(dict(
        base=base_name, peft=peft.__version__, transformers=transformers.__version__, prompts=prompts, base_greedy=alone,
        greedy=[tokens for tokens, _, _ in answers], gaps=[gap for _, gap, _ in answers],
        last_logits=[[round(x, 6) for x in row.tolist()] for _, _, row in answers])) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)
    print(name, "attempt", seed, [gap for _, gap, _ in answers], sum(a[0] != b for a, b in zip(answers, alone)))
    return True


def main():
    warnings.filterwarnings("ignore")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name, settings in ADAPTERS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        next(seed for seed in range(200) if write_adapter(name, settings, seed))


if __name__ == "__main__":
    main()
