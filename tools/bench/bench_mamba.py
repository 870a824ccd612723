#!/usr/bin/env python3
"""Prompts and tokens of Mamba-2 beside those of transformers on the same threads, in turns, in bfloat16, where torch and
transformers are installed.

usage: bench_mamba.py MODEL [ROUNDS] [THREADS] [LAYERS]     MODEL: a folder, written if it is not there: random weights
in the shape of mamba2-130m, with the tokenizer of the reference model"""
import itertools
import json
import pathlib
import shutil
import statistics
import struct
import sys
import time

import numpy

from bench_support import QUIET, ROOT, THREADS, Server, in_turns, post, rates_and_efforts, ratio

REFERENCE = ROOT / "tests/golden/models/models/mamba2"
HIDDEN, HEADS, HEAD_DIM, STATE, GROUPS, WIDTH, VOCABULARY = 768, 24, 64, 128, 1, 4, 50288
PROMPT, SHORT, OUTPUT = 512, 8, 64


def write_model(folder, layers):
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(REFERENCE / name, folder / name)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": HIDDEN, "num_hidden_layers": layers,
        "vocab_size": VOCABULARY, "num_heads": HEADS, "head_dim": HEAD_DIM, "state_size": STATE, "n_groups": GROUPS,
        "conv_kernel": WIDTH, "expand": 2, "chunk_size": 256, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}))
    random = numpy.random.default_rng(1)
    inner = HEADS * HEAD_DIM
    channels = inner + 2 * GROUPS * STATE
    shapes = {"backbone.embeddings.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN),
              "backbone.norm_f.weight": (HIDDEN,)}
    for layer in range(layers):
        for name, shape in {"norm.weight": (HIDDEN,), "mixer.in_proj.weight": (inner + channels + HEADS, HIDDEN),
                            "mixer.conv1d.weight": (channels, 1, WIDTH), "mixer.conv1d.bias": (channels,),
                            "mixer.dt_bias": (HEADS,), "mixer.A_log": (HEADS,), "mixer.D": (HEADS,),
                            "mixer.norm.weight": (inner,), "mixer.out_proj.weight": (HIDDEN, inner)}.items():
            shapes[f"backbone.layers.{layer}.{name}"] = shape
    header, blobs, offset = {}, [], 0
    for name, shape in shapes.items():
        values = random.standard_normal(shape, numpy.float32)
        values = 1 + values * 0.1 if len(shape) == 1 else values * (0.5 if len(shape) == 3 else shape[-1] ** -0.5)
        blobs.append((values.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes())
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + len(blobs[-1])]}
        offset += len(blobs[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def prompt(seed, count=PROMPT):
    return [int(token) for token in numpy.random.default_rng(seed).integers(2, VOCABULARY, count)]


def transformers_s(model, threads):
    """A function of a prompt and a number of tokens; None: it is not installed."""
    try:
        import torch
        import transformers
    except ImportError:
        return None
    torch.set_num_threads(int(threads))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()

    def complete_s(tokens, count):
        start = time.perf_counter()
        with torch.no_grad():
            loaded.generate(torch.tensor([tokens]), min_new_tokens=count, max_new_tokens=count, do_sample=False)
        return time.perf_counter() - start
    return complete_s


def prompt_and_token_s(complete_s, seed):
    """Seconds of a prompt, and of a token behind a short one: a state does not grow."""
    short = prompt(seed, SHORT)
    return complete_s(prompt(seed), 1), (complete_s(short, 1 + OUTPUT) - complete_s(short, 1)) / OUTPUT


def main():
    model = pathlib.Path(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    threads = sys.argv[3] if len(sys.argv) > 3 else str(THREADS)
    if not model.exists():
        write_model(model, int(sys.argv[4]) if len(sys.argv) > 4 else 24)
    with Server(str(model), "--threads", threads, "--max-model-len", "4096", "--no-enable-prefix-caching", *QUIET) as server:
        engines = {"ours": lambda tokens, count: post(server, {"prompt": tokens, "max_tokens": count})[0],
                   "transformers": transformers_s(model, threads)}
        seeds = {name: itertools.count() for name in engines}
        found = in_turns(rounds, {name: lambda name=name: prompt_and_token_s(engines[name], next(seeds[name]))
                                  for name in engines if engines[name]})
    prompts, tokens = rates_and_efforts(found)
    print(f"Mamba-2: a prompt of {PROMPT} tokens {statistics.median(prompts['ours']) * 1e3:.0f} ms, a token "
          f"{statistics.median(tokens['ours']) * 1e3:.2f} ms")
    if "transformers" not in found:
        print("transformers is skipped: this Python does not have it")
    else:
        print(f"in transformers {statistics.median(prompts['transformers']) * 1e3:.0f} ms and "
              f"{statistics.median(tokens['transformers']) * 1e3:.2f} ms; by ours: prompts "
              f"{ratio(prompts, 'transformers', 'ours'):.2f} tokens {ratio(tokens, 'transformers', 'ours'):.2f}")


if __name__ == "__main__":
    main()
