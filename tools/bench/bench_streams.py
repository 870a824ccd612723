#!/usr/bin/env python3
"""Very many streams at once through one Frontend: how long they take, when their first and their last token comes, and what
memory the server needs for them. Usage: bench_streams.py [STREAMS [TOKENS [argument of troupe serve...]]]"""
import asyncio
import sys
import time

from bench_support import Server, allow_descriptors, memory, read_streams


def main():
    count, tokens = [int(number) for number in (sys.argv[1:3] + ["1000", "32"][len(sys.argv[1:3]):])]
    allow_descriptors(count + 100)
    with Server("--log-stats-interval-s", "0", *sys.argv[3:]) as server:
        pid = server.nodes().get("front", server.process.pid)
        asyncio.run(read_streams(server.port, 8, tokens))
        for _ in range(3):
            before = memory(pid, "VmRSS") / 2**20
            began = time.monotonic()
            streams = asyncio.run(read_streams(server.port, count, tokens))
            wall = time.monotonic() - began
            first = sorted(start - began for start, _, _ in streams)
            assert len({text for _, _, text in streams}) == 1, "the streams differ"
            print(f"{count} streams of {tokens} tokens: {wall:.2f} s, {count * tokens / wall:.0f} tokens/s, first token median "
                  f"{first[count // 2]:.2f} s, last {first[-1]:.2f} s; resident {before:.0f} MiB before, at most "
                  f"{memory(pid, 'VmHWM') / 2**20:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
