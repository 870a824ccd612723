#!/usr/bin/env python3
"""Very many streams at once through one Frontend: how long they take, when their first and their last token comes, and what
memory the server needs for them. Usage: bench_streams.py [STREAMS [TOKENS [argument of troupe serve...]]]"""
import asyncio
import json
import pathlib
import re
import resource
import sys
import time

from support import DEADLINE_S, Server


async def read_stream(port, tokens):
    """One stream: when its first event and its end came, and its text; all is read as the client is given it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = json.dumps({"model": "demo", "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True,
                           "temperature": 0, "stream": True}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nConnection: close\r\n"
                     + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        received, first = b"", None
        while part := await reader.read(65536):
            received += part
            if first is None and b"data: " in received:
                first = time.monotonic()
        if b"data: [DONE]\n\n" not in received:
            raise AssertionError(f"a stream has not ended: {received[:500]}")
        text = "".join(json.loads(event)["choices"][0]["text"] for event in re.findall(rb"data: (\{.*\})", received))
        return first, time.monotonic(), text
    finally:
        writer.close()


async def read_streams(port, count, tokens):
    return await asyncio.wait_for(asyncio.gather(*(read_stream(port, tokens) for _ in range(count))), DEADLINE_S)


def allow_descriptors(count):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def memory_mib(pid, what):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{what}:\s+(\d+) kB", status).group(1)) / 1024


def main():
    count, tokens = [int(number) for number in (sys.argv[1:3] + ["1000", "32"][len(sys.argv[1:3]):])]
    allow_descriptors(count + 100)
    with Server("--log-stats-interval-s", "0", *sys.argv[3:]) as server:
        pid = server.nodes().get("front", server.process.pid)
        asyncio.run(read_streams(server.port, 8, tokens))
        for _ in range(3):
            before = memory_mib(pid, "VmRSS")
            began = time.monotonic()
            streams = asyncio.run(read_streams(server.port, count, tokens))
            wall = time.monotonic() - began
            first = sorted(start - began for start, _, _ in streams)
            assert len({text for _, _, text in streams}) == 1, "the streams differ"
            print(f"{count} streams of {tokens} tokens: {wall:.2f} s, {count * tokens / wall:.0f} tokens/s, first token median "
                  f"{first[count // 2]:.2f} s, last {first[-1]:.2f} s; resident {before:.0f} MiB before, at most "
                  f"{memory_mib(pid, 'VmHWM'):.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
