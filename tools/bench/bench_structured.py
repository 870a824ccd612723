#!/usr/bin/env python3
"""Streams with a JSON schema beside the same without, in turns: tokens per second of both, and their ratio.
Usage: bench_structured.py [STREAMS [TOKENS [argument of troupe serve...]]]"""
import asyncio
import json
import statistics
import sys
import time

from bench_support import DEADLINE_S, Server

ROUNDS = 7
# As many records as fit: every stream has as many tokens as it asks for.
SCHEMA = {
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


async def read_stream(port, number, tokens, structured):
    fields = {"model": "demo", "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True, "stream": True,
              "temperature": 0.8, "seed": number, "stream_options": {"include_usage": True}}
    if structured:
        fields["structured_outputs"] = {"json": SCHEMA}
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


async def rate(port, count, tokens, structured):
    began = time.monotonic()
    await asyncio.wait_for(asyncio.gather(*(read_stream(port, n, tokens, structured) for n in range(count))), DEADLINE_S)
    return count * tokens / (time.monotonic() - began)


def main():
    count, tokens = [int(number) for number in (sys.argv[1:3] + ["64", "200"][len(sys.argv[1:3]):])]
    with Server("--log-stats-interval-s", "0", "--max-num-seqs", str(count), *sys.argv[3:]) as server:
        rates = {False: [], True: []}
        for round_ in range(ROUNDS + 1):
            for structured in rates:
                rates[structured].append(asyncio.run(rate(server.port, count, tokens, structured)))
            if round_ == 0:
                print(f"first round: {rates[True][0]:.0f} tokens/s with the schema, {rates[False][0]:.0f} without", flush=True)
        ratios = [a / b for a, b in zip(rates[True][1:], rates[False][1:])]
        free, held = (statistics.median(rates[structured][1:]) for structured in rates)
        print(f"{count} streams of {tokens} tokens: {held:.0f} tokens/s with the schema, {free:.0f} without, ratio "
              f"{statistics.median(ratios):.3f} (of each round: {', '.join(f'{ratio:.3f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
