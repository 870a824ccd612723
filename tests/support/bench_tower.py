#!/usr/bin/env python3
"""Time to the first token behind a picture that is new, encoded before, or part of a cached prefix; the time between the
tokens of another stream while a picture is encoded; and the encoder beside that of transformers on the same threads, where
torch and transformers are installed.

usage: bench_tower.py TROUPE MODEL [ROUNDS] [THREADS]     MODEL: a folder that make_model.py gemma3-vision has written"""
import base64
import io
import json
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

import numpy
from PIL import Image


def serve(binary, model, threads):
    process = subprocess.Popen([binary, "serve", model, "--port", "0", "--threads", threads, "--log-level", "warning"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        match = re.search(r"(http://[0-9.:]+)/v1/chat", line)
        if match:
            return process, match.group(1)
    raise SystemExit("the server did not start")


def first_token_s(url, picture, text):
    content = [{"type": "text", "text": text},
               {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(picture).decode()}}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    start = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer.read()
    return time.perf_counter() - start


def gaps_s(url, pictures):
    """Between the tokens of a stream: alone, and while the pictures of other requests are encoded, one after the other."""
    body = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "temperature": 0, "stream": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    times = []

    def read():
        with urllib.request.urlopen(request, timeout=600) as stream:
            for line in stream:
                if line.startswith(b"data: {"):
                    times.append(time.perf_counter())
                if ended.is_set():
                    return
    ended = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    while len(times) < 50:
        time.sleep(0.01)
    begin = len(times)
    for number, picture in enumerate(pictures):
        first_token_s(url, picture, f"What is shown in number {number}?")
    end = len(times)
    ended.set()
    reader.join()
    gaps = [after - before for before, after in zip(times, times[1:])]
    return gaps[10:begin - 1], gaps[begin - 1:end]


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
    binary, model = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    threads = sys.argv[4] if len(sys.argv) > 4 else "2"
    vision = json.loads((pathlib.Path(model) / "config.json").read_text())["vision_config"]
    process, url = serve(binary, model, threads)
    try:
        new, encoded, cached = [], [], []
        for seed in range(rounds):
            picture = noise(seed, vision["image_size"])
            new.append(first_token_s(url, picture, f"What is picture {seed}?"))
            encoded.append(first_token_s(url, picture, f"And once more, what is {seed}?"))
            cached.append(first_token_s(url, picture, f"And once more, what is {seed}?"))
        alone, beside = gaps_s(url, [noise(rounds + seed, vision["image_size"]) for seed in range(rounds)])
    finally:
        process.terminate()
        process.wait()
    new_s, encoded_s, cached_s = map(statistics.median, (new, encoded, cached))
    print(f"first token behind a new picture {new_s * 1e3:.0f} ms, an encoded one {encoded_s * 1e3:.0f} ms, "
          f"a cached prefix {cached_s * 1e3:.0f} ms")
    print(f"between tokens of another stream, median and longest: alone {statistics.median(alone) * 1e3:.1f} and "
          f"{max(alone) * 1e3:.0f} ms, beside new pictures {statistics.median(beside) * 1e3:.1f} and {max(beside) * 1e3:.0f} ms")
    theirs = transformers_s(vision, threads, rounds)
    if theirs is not None:
        print(f"the encoder in transformers {theirs * 1e3:.0f} ms; by ours {theirs / (new_s - encoded_s):.2f}")


if __name__ == "__main__":
    main()
