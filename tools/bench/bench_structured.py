#!/usr/bin/env python3
"""Streams with JSON schemas beside the same without, in turns: tokens per second of each, tokens per CPU second of the server
(which other work on the machine disturbs less), their ratios, and how many drafts came true. One schema has little text of
its own; the other one has long names, which a grammar gives without a choice (--enable-jump-forward: in one step).
Usage: bench_structured.py [STREAMS [TOKENS [argument of troupe serve...]]]"""
import asyncio
import json
import statistics
import sys
import time

from bench_support import DEADLINE_S, QUIET, Server, cpu_seconds

ROUNDS = 7
# As many records as fit: every stream has as many tokens as it asks for.
RECORDS = {
    "type": "array", "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "kind": {"enum": ["cat", "dog", "bird"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}},
        },
        "required": ["name", "kind", "age", "tags"], "additionalProperties": False,
    },
}

NAMES = ["given_name_of_the_person", "year_in_which_the_person_was_born", "is_registered_as_a_customer",
         "number_of_purchases_so_far"]
LONG_NAMES = {
    "type": "array", "minItems": 1000,
    "items": {
        "type": "object",
        "properties": dict(zip(NAMES, [{"enum": ["Ann", "Bob"]}, {"type": "integer", "minimum": 1900, "maximum": 2020},
                                       {"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 99}])),
        "required": NAMES, "additionalProperties": False,
    },
}
SCHEMAS = {"no schema": None, "records": RECORDS, "long names": LONG_NAMES}


async def read_stream(port, number, tokens, schema):
    fields = {"model": "demo", "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True, "stream": True,
              "temperature": 0.8, "seed": number, "stream_options": {"include_usage": True}}
    if schema is not None:
        fields["structured_outputs"] = {"json": schema}
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = json.dumps(fields).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nConnection: close\r\n"
                     + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        received = await reader.read(-1)
        if f'"completion_tokens":{tokens}'.encode() not in received:
            raise AssertionError(f"a stream has not {tokens} tokens: {received[-600:]}")
    finally:
        writer.close()


async def rate(port, count, tokens, schema):
    began = time.monotonic()
    await asyncio.wait_for(asyncio.gather(*(read_stream(port, n, tokens, schema) for n in range(count))), DEADLINE_S)
    return count * tokens / (time.monotonic() - began)


def drafts(server):
    """Those that were proposed so far, and those that came true."""
    try:
        return server.metrics("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total")
    except KeyError:  # none so far
        return 0, 0


def ratios_of(rates, name):
    ratios = [a / b for a, b in zip(rates[name], rates["no schema"])]
    return f"{statistics.median(ratios):.3f} (of each round: {', '.join(f'{ratio:.3f}' for ratio in ratios)})"


def main():
    count, tokens = [int(number) for number in (sys.argv[1:3] + ["64", "200"][len(sys.argv[1:3]):])]
    with Server("--max-num-seqs", str(count), *QUIET, *sys.argv[3:]) as server:
        rates, cpu_rates = {name: [] for name in SCHEMAS}, {name: [] for name in SCHEMAS}
        proposed = {name: [0, 0] for name in SCHEMAS}
        for turn in range(ROUNDS + 1):  # the first one compiles
            for name, schema in SCHEMAS.items():
                before, cpu_before = drafts(server), cpu_seconds(server.process.pid)
                measured = asyncio.run(rate(server.port, count, tokens, schema))
                if turn == 0:
                    continue
                rates[name].append(measured)
                cpu_rates[name].append(count * tokens / (cpu_seconds(server.process.pid) - cpu_before))
                proposed[name] = [sum(pair) for pair in zip(proposed[name], [b - a for a, b in zip(before, drafts(server))])]
        print(f"{count} streams of {tokens} tokens")
        for name in SCHEMAS:
            print(f"{name}: {statistics.median(rates[name]):.0f} tokens/s, ratio {ratios_of(rates, name)}; "
                  f"{statistics.median(cpu_rates[name]):.0f} tokens per CPU second, ratio {ratios_of(cpu_rates, name)}; "
                  f"{proposed[name][0]:.0f} drafts, {proposed[name][1]:.0f} came true")


if __name__ == "__main__":
    main()
