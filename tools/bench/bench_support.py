"""What the measurements share: servers as a user starts them, timed requests, work in turns, and lines of progress.

The binary is TROUPE_BINARY, by default build/release/troupe."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import statistics
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("TROUPE_BINARY", str(ROOT / "build" / "release" / "troupe"))
os.environ.setdefault("TROUPE_TEST_DEADLINE_S", "1800")
sys.path.append(str(ROOT / "tests" / "system"))
from streams import allow_descriptors, read_streams  # noqa: E402, F401
from support import BINARY, DEADLINE_S, Server, cpu_seconds, memory, wait_until  # noqa: E402, F401

THREADS = len(os.sched_getaffinity(0))
QUIET = ("--log-stats-interval-s", "0", "--log-level", "warning")


def progress(text):
    """A line that the next one overwrites; nothing where standard error is no terminal."""
    if sys.stderr.isatty():
        print(f"\r{text[:120]:120}", end="" if text else "\r", file=sys.stderr, flush=True)


def token_ids(seed, count, vocabulary):
    """A prompt that means nothing. The ends of the vocabulary are left out: special tokens are there."""
    source = random.Random(seed)
    return [source.randrange(vocabulary // 8, vocabulary - vocabulary // 8) for _ in range(count)]


def vocabulary_of(model):
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    return config.get("text_config", config)["vocab_size"]


def request(server, fields, path="/v1/completions"):
    fields = {"temperature": 0, "ignore_eos": True, **fields}
    return urllib.request.Request(server.url + path, json.dumps(fields).encode(), {"Content-Type": "application/json"})


def post(server, fields, path="/v1/completions"):
    """Seconds, and the answer."""
    start = time.perf_counter()
    with urllib.request.urlopen(request(server, fields, path), timeout=DEADLINE_S) as answer:
        body = answer.read()
    return time.perf_counter() - start, json.loads(body)


def first_token_s(server, prompt, **more):
    return post(server, {"prompt": prompt, "max_tokens": 1, **more})[0]


def stream(server, fields, stop=lambda: False):
    """(when, with how many tokens) each event of a stream of completions came; it is left where stop() is true."""
    events = []
    with urllib.request.urlopen(request(server, {**fields, "stream": True, "return_token_ids": True}), timeout=DEADLINE_S) as lines:
        for line in lines:
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(event)
                events.append((now, len(event["choices"][0].get("token_ids") or [])))
            if stop():
                break
    return events


def gaps_s(events):
    """Between the tokens of a stream; tokens of one event are shared out over the time before it."""
    found = []
    for (before, _), (now, count) in zip(events, events[1:]):
        found += [(now - before) / count] * count if count else []
    return found


def at_once(function, items):
    """What it makes of each, all at the same time, and the seconds until the last is done."""
    items = list(items)
    with concurrent.futures.ThreadPoolExecutor(max(len(items), 1)) as pool:
        start = time.perf_counter()
        found = list(pool.map(function, items))
        return found, time.perf_counter() - start


def decode_rate(server, requests):
    """Tokens per second of requests at once, from the first token of the last one that begins: prefill does not count."""
    events, _ = at_once(lambda fields: stream(server, fields), requests)
    begin = max(each[0][0] for each in events)
    end = max(each[-1][0] for each in events)
    return sum(count for each in events for when, count in each if when > begin) / (end - begin)


def in_turns(rounds, works):
    """{name: [value of each round]}: what disturbs one round disturbs all. The first round warms up, and does not count."""
    values = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            progress(f"{name}: round {number} of {rounds}")
            found = work()
            if number > 0:
                values[name].append(found)
    progress("")
    return values


def ratio(values, name, other):
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(values[name], values[other]))


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


@contextlib.contextmanager
def servers(**arguments):
    """Several at once, by name."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(Server(*each, *QUIET)) for name, each in arguments.items()}
