#!/usr/bin/env python3
"""Trains a small decoder of full attention to answer the questions of retrieval_prompts.py, for bench_blend.py --retrieval.

usage: train_retrieval.py FOLDER [MINUTES]. Needs torch and transformers; ten minutes on a core are enough."""
import json
import pathlib
import random
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from make_model import TOKENIZERS, with_words
from retrieval_prompts import KEYS, NAMES, PARAGRAPHS, QUESTIONS, paragraphs_of, prompt_of

VOCABULARY = 1024
NUM_ASKED = 16
THETA = 1e6
SEPARATOR_TEXT = " # # "


def sample(source, count, separator):
    """Tokens, and what is to be learned."""
    tokens, answers = prompt_of(source, paragraphs_of(source, count), separator)
    labels = [-100] * len(tokens)
    for question in source.choices(list(answers), k=NUM_ASKED):
        tokens += [question, answers[question]]
        labels += [-100, answers[question]]
    return tokens, labels


@torch.no_grad()
def begin_well(model):
    """Starts near the two heads that the task needs, which otherwise take long to form: in the first layer a head of a key attends to
    names, the nearer the more (by pairs of the rotary embedding whose period is longer than a paragraph), and copies them; in the
    second one a head of a question attends to its key (by the slowest pairs) and copies what that one has copied. Training does the
    rest."""
    first, second = (model.model.layers[i].self_attn for i in range(2))
    hidden, size, half, near, match = model.config.hidden_size, 32, 16, [4, 5, 6], range(7, 15)
    is_key, is_name, is_question = 0, 1, 2  # elements of the embeddings
    embeddings = model.model.embed_tokens.weight
    embeddings.normal_(0, 0.5)
    embeddings[QUESTIONS.start:QUESTIONS.stop] = embeddings[KEYS.start:KEYS.stop]
    embeddings[:, :3] = 0
    for element, tokens in ((is_key, KEYS), (is_name, NAMES), (is_question, QUESTIONS)):
        embeddings[tokens.start:tokens.stop, element] = 1.5
    rows = torch.linalg.qr(torch.randn(hidden, 2 * size + 2 * len(match)))[0].T
    name, copied, identity = rows[:size], rows[size:2 * size], rows[2 * size:]
    first.q_proj.weight[near, is_key], first.k_proj.weight[near, is_name] = 2, 2
    first.v_proj.weight[:size], first.o_proj.weight[:, :size] = name, 2 * copied.T
    places = [*match, *(half + i for i in match)]
    second.q_proj.weight[places], second.k_proj.weight[places] = 2.5 * identity, 2.5 * identity
    second.q_proj.weight[half - 1, is_question], second.k_proj.weight[half - 1, is_key] = 2.5, 2.5
    second.v_proj.weight[:size], second.o_proj.weight[:, :size] = copied, 3 * name.T


def main(folder, minutes=10.0):
    torch.manual_seed(0)
    torch.set_num_threads(1)
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
    start, step, most, right = time.monotonic(), 0, 2, 0.0
    while (passed := (time.monotonic() - start) / 60 / minutes) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 10) * min(1.0, 4 * (1 - passed) + 0.02)
        # More paragraphs once it finds what is in fewer.
        if right > 0.9 and most < PARAGRAPHS:
            most, right = min(PARAGRAPHS, most + 2), 0.0
        count = source.randint(max(2, most - 6), most)
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
