#!/usr/bin/env python3
"""Sixteen requests with sixteen LoRA adapters beside sixteen with the same one, and without: tokens per second, in turns.

usage: bench_adapters.py MODEL [ROUNDS]     MODEL: a folder; random adapters of rank 16 on all linear layers are written to
MODEL/adapters"""
import json
import pathlib
import statistics
import struct
import sys

import numpy

from bench_support import QUIET, Server, decode_rate, in_turns, ratio, token_ids, vocabulary_of

COUNT, RANK, PROMPT, TOKENS = 16, 16, 64, 48
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def shapes_of(model):
    """{name of a linear layer: [outputs, inputs]} of a folder."""
    found = {}
    for file in sorted(model.glob("*.safetensors")):
        with open(file, "rb") as data:
            header = json.loads(data.read(struct.unpack("<Q", data.read(8))[0]))
        found |= {name.removesuffix(".weight"): tensor["shape"] for name, tensor in header.items()
                  if name.endswith(tuple(f".{target}.weight" for target in TARGETS))}
    return found


def write_adapter(folder, shapes, seed):
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "lora_dropout": 0.0, "bias": "none",
        "fan_in_fan_out": False, "target_modules": list(TARGETS)}))
    source = numpy.random.default_rng(seed)
    header, blobs, offset = {}, [], 0
    for name, (outputs, inputs) in shapes.items():
        for part, shape in (("lora_A", (RANK, inputs)), ("lora_B", (outputs, RANK))):
            blobs.append((source.standard_normal(shape, numpy.float32) * 0.01).tobytes())
            header[f"base_model.model.{name}.{part}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [offset, offset + len(blobs[-1])]}
            offset += len(blobs[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def main():
    model = pathlib.Path(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    shapes, names = shapes_of(model), [f"adapter-{number}" for number in range(COUNT)]
    for seed, name in enumerate(names):
        if not (model / "adapters" / name).exists():
            write_adapter(model / "adapters" / name, shapes, seed)
    vocabulary = vocabulary_of(model)

    def work(adapters):
        return decode_rate(server, [{"model": adapter, "prompt": token_ids(number, PROMPT, vocabulary), "max_tokens": TOKENS}
                                    for number, adapter in enumerate(adapters)])
    with Server(str(model), "--served-model-name", "base", "--enable-lora", "--max-loras", str(COUNT), "--max-cpu-loras",
                str(COUNT), "--max-lora-rank", str(RANK), "--max-model-len", "512", *QUIET, "--lora-modules",
                *(f"{name}={model / 'adapters' / name}" for name in names)) as server:
        found = in_turns(rounds, {"none": lambda: work(["base"] * COUNT), "one": lambda: work(names[:1] * COUNT),
                                  "sixteen": lambda: work(names)})
    for name, values in found.items():
        print(f"{COUNT} requests, adapters: {name:8} {statistics.median(values):8.1f} tokens/s")
    print(f"one by none {ratio(found, 'one', 'none'):.3f}, sixteen by one {ratio(found, 'sixteen', 'one'):.3f}")


if __name__ == "__main__":
    main()
