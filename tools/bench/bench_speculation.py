#!/usr/bin/env python3
"""What speculation gains, and what it costs at most: tokens per second, and per second of CPU time, by those without it, in turns,
on text that repeats itself and on text that does not, for one client and for many.

usage: bench_speculation.py MODEL [ROUNDS [CONFIG...]]     MODEL: a folder; CONFIG: of --speculative-config; by default
prompt lookup and suffix decoding

A random model says nothing, so what is said is forced by sampling: at a temperature of 0 it falls into a loop, at 1 nearly every
token is new. The demo model tells stories."""
import itertools
import json
import pathlib
import statistics
import sys

from bench_support import cpu_seconds, decode_rate, in_turns, ratio, servers

CONFIGS = {"ngram": {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
           "suffix": {"method": "suffix"}}
REPEATED = "the cat sat on the mat and looked at the moon, and then "
TOKENS = 128


def requests(text, count, first):
    """Of so many clients; nobody has asked the same before."""
    fields = {"max_tokens": TOKENS, "temperature": 0 if text == "repeating" else 1}
    prompt = 12 * REPEATED if text == "repeating" else "Once upon a time there was "
    return [{**fields, "prompt": f"{number} {prompt}", "seed": number} for number in range(first, first + count)]


def main():
    model = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    given = {f"config {number}": json.loads(text) for number, text in enumerate(sys.argv[3:], 1)}
    common = (model, "--max-model-len", "2048", "--no-enable-prefix-caching")
    configs = {"none": common} | {name: (*common, "--speculative-config", json.dumps(config))
                                  for name, config in (given or CONFIGS).items()}
    shown = pathlib.Path(model).resolve().parent.name if pathlib.Path(model).name == "model" else pathlib.Path(model).name

    def measure(name, text, clients):
        server, first = running[name], next(firsts[name])
        before = cpu_seconds(server.process.pid)
        rate = decode_rate(server, requests(text, clients, first))
        return rate, clients * TOKENS / (cpu_seconds(server.process.pid) - before)
    print(f"{'model':14} {'text':>14} {'clients':>8} {'drafts':>10} {'tokens/s':>10} {'by none':>8} {'CPU by none':>12}")
    with servers(**configs) as running:
        for text in ("repeating", "not repeating"):
            for clients in (1, 16):
                firsts = {name: itertools.count(1, clients) for name in running}
                found = in_turns(rounds, {name: lambda n=name: measure(n, text, clients) for name in running})
                rates, efforts = ({name: [each[i] for each in values] for name, values in found.items()} for i in (0, 1))
                for name in running:
                    print(f"{shown:14} {text:>14} {clients:>8} {name:>10} {statistics.median(rates[name]):>10.1f} "
                          f"{ratio(rates, name, 'none'):>8.3f} {ratio(efforts, name, 'none'):>12.3f}", flush=True)


if __name__ == "__main__":
    main()
