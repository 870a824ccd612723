#!/usr/bin/env python3
"""Trains a small decoder of full attention to find facts in its prompt, for bench_blend.py --retrieval: paragraphs of facts (a key
and its value, a token each), then keys, each followed by its value.

usage: train_retrieval.py FOLDER [MINUTES]. Needs torch and transformers; ten minutes on a core are enough."""
import json
import pathlib
import random
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from make_model import TOKENIZERS, with_words

VOCABULARY = 1024
KEYS, VALUES = range(100, 172), range(200, 232)
FACTS = 6  # of a paragraph
QUESTIONS = 32
THETA = 1e6
SEPARATOR_TEXT = " # # "


def facts(source, count):
    """Paragraphs, and the value of each key."""
    keys = source.sample(KEYS, FACTS * count)
    known = {key: source.choice(VALUES) for key in keys}
    return [[token for key in keys[i:i + FACTS] for token in (key, known[key])] for i in range(0, len(keys), FACTS)], known


def sample(source, count, separator):
    """Tokens, and what is to be learned."""
    paragraphs, known = facts(source, count)
    tokens = [source.choice(KEYS)]
    for paragraph in paragraphs:
        tokens += separator + paragraph
    tokens += separator
    labels = [-100] * len(tokens)
    for _ in range(QUESTIONS):
        key = source.choice(list(known))
        tokens += [key, known[key]]
        labels += [-100, known[key]]
    return tokens, labels


@torch.no_grad()
def begin_well(model):
    """Starts near an induction head (arXiv 2209.11895), which otherwise takes long to form: in the first layer a head attends to the
    token before, by a part that all embeddings have in common and the fast pairs of the rotary embedding; in the second one a head
    looks for tokens behind the same key, by the slow pairs, and copies them. Training does the rest."""
    first, second = (model.model.layers[i].self_attn for i in range(2))
    hidden, size, half, fast = model.config.hidden_size, 32, 16, 4
    model.model.embed_tokens.weight.normal_(0, 0.5)
    model.model.embed_tokens.weight[:, 0] = 1
    angles = THETA ** (-torch.arange(fast) / half)
    first.q_proj.weight[:fast, 0] = 4
    first.k_proj.weight[:fast, 0], first.k_proj.weight[half:half + fast, 0] = 4 * angles.cos(), 4 * angles.sin()
    rows = torch.linalg.qr(torch.randn(hidden, 3 * size))[0].T
    before, behind, copied = rows[:size], rows[size:2 * size], rows[2 * size:]
    first.v_proj.weight[:size], first.o_proj.weight[:, :size] = before, 2 * behind.T
    slow = [i for i in range(size) if i % half >= fast]
    second.q_proj.weight[slow], second.k_proj.weight[slow] = 3 * before[slow], 2 * behind[slow]
    second.v_proj.weight[:size], second.o_proj.weight[:, :size] = copied, 2 * copied.T


def main(folder, minutes=10.0):
    torch.manual_seed(0)
    source, folder = random.Random(0), pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = with_words(json.loads((TOKENIZERS / "qwen2" / "tokenizer.json").read_text()), VOCABULARY)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    from tokenizers import Tokenizer
    separator = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(SEPARATOR_TEXT, add_special_tokens=False).ids
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=96, intermediate_size=192, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=3, head_dim=32, rope_parameters={"rope_type": "default", "rope_theta": THETA}, max_position_embeddings=2048, tie_word_embeddings=True, rms_norm_eps=1e-5,
        bos_token_id=VOCABULARY - 1, eos_token_id=VOCABULARY - 1))
    begin_well(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01)
    start, step, most, right = time.monotonic(), 0, 1, 0.0
    while (passed := (time.monotonic() - start) / 60 / minutes) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 10) * min(1.0, 4 * (1 - passed) + 0.02)
        # More paragraphs once it finds what is in fewer.
        if right > 0.9 and most < 12:
            most, right = min(12, most + 2), 0.0
        count = source.randint(max(1, most - 2), most)
        batch = [sample(source, count, separator) for _ in range(max(4, 24 // count))]
        tokens = torch.tensor([tokens for tokens, _ in batch])
        labels = torch.tensor([labels for _, labels in batch])
        logits = model(tokens).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        asked = labels[:, 1:] != -100
        now = (logits.argmax(-1)[asked] == labels[:, 1:][asked]).float().mean().item()
        right += 0.05 * (now - right)
        step += 1
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}, right {right:.3f}, paragraphs {most}", flush=True)
    model.to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1], *(float(value) for value in sys.argv[2:]))
