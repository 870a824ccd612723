#!/usr/bin/env python3
"""Time to the first token of a prompt with an image, by the caches that have it: none, the processor cache (its pixels), the
encoder cache (its embeddings), the prefix cache (its tokens), all of them; the time between the tokens of another stream while
an image is encoded; and the encoder beside that of transformers on the same threads, where torch and transformers are installed.
Beside seconds there are those of the processor, which say more where the machine does other things beside.

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
import urllib.request

import numpy
from PIL import Image

from bench_support import DEADLINE_S, QUIET, THREADS, Server, at_once, cpu_seconds, gaps_s, post, progress, request, stream

CACHES = {"mm": "processor", "encoder": "encoder", "prefix": "prefix"}
LARGE = 2  # times the side that the encoder takes


def ask_s(server, image, text):
    """Seconds, and those of the processor."""
    before = cpu_seconds(server.process.pid)
    content = [{"type": "text", "text": text},
               {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + base64.b64encode(image).decode()}}]
    seconds, _ = post(server, {"messages": [{"role": "user", "content": content}], "max_tokens": 1}, "/v1/chat/completions")
    return seconds, cpu_seconds(server.process.pid) - before


def reset(server, kept):
    for name in CACHES:
        if name not in kept:
            urllib.request.urlopen(request(server, {}, f"/reset_{name}_cache"), timeout=DEADLINE_S).close()


def first_tokens(server, side, rounds):
    """For each set of caches, the median seconds to the first token, and of the processor."""
    kinds = [(), ("mm",), ("encoder",), ("mm", "encoder"), ("prefix",), ("mm", "encoder", "prefix")]
    times = {kept: [] for kept in kinds}
    for seed in range(rounds):
        image = noise(seed, LARGE * side)
        for kept in kinds:
            progress(f"image {seed + 1} of {rounds}, cached: {', '.join(kept) or 'nothing'}")
            reset(server, kept)
            times[kept].append(ask_s(server, image, "What is shown?"))
    progress("")
    return {kept: tuple(statistics.median(column) for column in zip(*found)) for kept, found in times.items()}


def gaps_beside(server, images):
    """Between the tokens of a stream: alone, and while the images of other requests are encoded, one after the other."""
    begun, ended, count = threading.Event(), threading.Event(), itertools.count(1)

    def stop():
        if next(count) == 50:
            begun.set()
        return ended.is_set()

    def encode():
        begun.wait()
        start = time.perf_counter()
        for number, image in enumerate(images):
            ask_s(server, image, f"What is shown in number {number}?")
        ended.set()
        return start
    work = [lambda: stream(server, {"prompt": "Once upon a time", "max_tokens": 4000}, stop), encode]
    (events, start), _ = at_once(lambda each: each(), work)
    before = sum(when < start for when, _ in events)
    return gaps_s(events[10:before]), gaps_s(events[before - 1:])


def noise(seed, side):
    out = io.BytesIO()
    pixels = numpy.random.default_rng(seed).integers(0, 255, (side, side, 3), numpy.uint8)
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
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
            start = time.perf_counter(), time.process_time()
            model(pixels)
            times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return tuple(statistics.median(column) for column in zip(*times))


def main():
    model = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    threads = sys.argv[3] if len(sys.argv) > 3 else str(THREADS)
    vision = json.loads((pathlib.Path(model) / "config.json").read_text())["vision_config"]
    with Server(model, "--threads", threads, "--server-dev-mode", *QUIET) as server:
        post(server, {"prompt": "Once upon a time", "max_tokens": 1})
        found = first_tokens(server, vision["image_size"], rounds)
        alone, beside = gaps_beside(server, [noise(rounds + seed, vision["image_size"]) for seed in range(rounds)])
    new = found[()]
    print(f"{'cached':40}{'first token, ms':>16}{'by new':>8}{'CPU time, ms':>14}{'by new':>8}")
    for kept, (seconds, cpu_s) in found.items():
        name = ", ".join(CACHES[each] for each in kept) or "nothing"
        print(f"{name:40}{seconds * 1e3:16.0f}{seconds / new[0]:8.4f}{cpu_s * 1e3:14.0f}{cpu_s / new[1]:8.4f}")
    print(f"between tokens of another stream, median and longest: alone {statistics.median(alone) * 1e3:.1f} and "
          f"{max(alone) * 1e3:.0f} ms, beside new images {statistics.median(beside) * 1e3:.1f} and {max(beside) * 1e3:.0f} ms")
    theirs = transformers_s(vision, threads, rounds)
    if theirs is None:
        print("transformers is skipped: this Python does not have it")
    else:
        ours = [all_of_it - rest for all_of_it, rest in zip(new, found["encoder",])]
        print(f"the encoder in transformers {theirs[0] * 1e3:.0f} ms, ours {ours[0] * 1e3:.0f} ms; by ours {theirs[0] / ours[0]:.2f}")
        print(f"of CPU time in transformers {theirs[1] * 1e3:.0f} ms, ours {ours[1] * 1e3:.0f} ms; by ours {theirs[1] / ours[1]:.2f}")


if __name__ == "__main__":
    main()
