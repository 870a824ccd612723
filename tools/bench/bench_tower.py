#!/usr/bin/env python3
"""Time to the first token behind a picture that is new, encoded before, or part of a cached prefix; the time between the
tokens of another stream while a picture is encoded; and the encoder beside that of transformers on the same threads, where
torch and transformers are installed.

usage: bench_tower.py MODEL [ROUNDS] [THREADS]     MODEL: a folder that make_model.py gemma3-vision has written"""
import base64
import io
import itertools
import json
import pathlib
import statistics
import sys
import threading
import time

import numpy
from PIL import Image

from bench_support import QUIET, THREADS, Server, at_once, gaps_s, post, progress, stream


def ask_s(server, picture, text):
    content = [{"type": "text", "text": text},
               {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(picture).decode()}}]
    return post(server, {"messages": [{"role": "user", "content": content}], "max_tokens": 1}, "/v1/chat/completions")[0]


def gaps_beside(server, pictures):
    """Between the tokens of a stream: alone, and while the pictures of other requests are encoded, one after the other."""
    begun, ended, count = threading.Event(), threading.Event(), itertools.count(1)

    def stop():
        if next(count) == 50:
            begun.set()
        return ended.is_set()

    def encode():
        begun.wait()
        start = time.perf_counter()
        for number, picture in enumerate(pictures):
            ask_s(server, picture, f"What is shown in number {number}?")
        ended.set()
        return start
    work = [lambda: stream(server, {"prompt": "Once upon a time", "max_tokens": 4000}, stop), encode]
    (events, start), _ = at_once(lambda each: each(), work)
    before = sum(when < start for when, _ in events)
    return gaps_s(events[10:before]), gaps_s(events[before - 1:])


def noise(seed, side):
    out = io.BytesIO()
    pixels = numpy.random.default_rng(seed).integers(0, 255, (side, side, 3), numpy.uint8)
    Image.fromarray(pixels).save(out, "PNG", compress_level=0)
    return out.getvalue()


def transformers_s(vision, threads, rounds):
    try:
        import torch
        from transformers import SiglipVisionConfig, SiglipVisionModel
    except ImportError:
        return None
    torch.set_num_threads(int(threads))
    model = SiglipVisionModel(SiglipVisionConfig(**vision)).to(torch.bfloat16).eval()
    pixels = torch.rand(1, 3, vision["image_size"], vision["image_size"]).to(torch.bfloat16)
    times = []
    with torch.no_grad():
        for _ in range(rounds):
            start = time.perf_counter()
            model(pixels)
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    model = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    threads = sys.argv[3] if len(sys.argv) > 3 else str(THREADS)
    vision = json.loads((pathlib.Path(model) / "config.json").read_text())["vision_config"]
    with Server(model, "--threads", threads, *QUIET) as server:
        new, encoded, cached = [], [], []
        for seed in range(rounds):
            progress(f"picture {seed + 1} of {rounds}")
            picture = noise(seed, vision["image_size"])
            new.append(ask_s(server, picture, f"What is picture {seed}?"))
            encoded.append(ask_s(server, picture, f"And once more, what is {seed}?"))
            cached.append(ask_s(server, picture, f"And once more, what is {seed}?"))
        progress("")
        alone, beside = gaps_beside(server, [noise(rounds + seed, vision["image_size"]) for seed in range(rounds)])
    new_s, encoded_s, cached_s = map(statistics.median, (new, encoded, cached))
    print(f"first token behind a new picture {new_s * 1e3:.0f} ms, an encoded one {encoded_s * 1e3:.0f} ms, "
          f"a cached prefix {cached_s * 1e3:.0f} ms")
    print(f"encoded by new {encoded_s / new_s:.4f}")
    print(f"cached by new {cached_s / new_s:.4f}")
    print(f"between tokens of another stream, median and longest: alone {statistics.median(alone) * 1e3:.1f} and "
          f"{max(alone) * 1e3:.0f} ms, beside new pictures {statistics.median(beside) * 1e3:.1f} and {max(beside) * 1e3:.0f} ms")
    theirs = transformers_s(vision, threads, rounds)
    if theirs is None:
        print("transformers is skipped: this Python does not have it")
    else:
        print(f"the encoder in transformers {theirs * 1e3:.0f} ms; by ours {theirs / (new_s - encoded_s):.2f}")


if __name__ == "__main__":
    main()
