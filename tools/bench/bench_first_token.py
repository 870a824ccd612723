"""bench_first_token.py [ROUNDS]: seconds from the start of `troupe serve` with the demo model until the first token of a
streamed completion is here."""
import json
import statistics
import sys
import time
import urllib.request

from bench_support import DEADLINE_S, Server


def seconds_to_first_token():
    start = time.monotonic()
    with Server("--log-level", "warning") as server:
        listening = time.monotonic() - start
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "stream": True}).encode()
        request = urllib.request.Request(server.url + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as stream:
            for line in stream:
                if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
                    return listening, time.monotonic() - start
    raise RuntimeError("the stream ended without a token")


def main():
    rounds = [seconds_to_first_token() for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 7)]
    for listening, first_token in rounds:
        print(f"listening after {listening:.3f} s, first token after {first_token:.3f} s")
    print(f"median: first token after {statistics.median(first for _, first in rounds):.3f} s")


if __name__ == "__main__":
    main()
