#!/usr/bin/env python3
"""Random traces of vLLM's own scheduler and KV-cache manager, replayed by Troupe's.

  scheduler.py [--count N] [--seed N] [--only INDEX] [--keep FOLDER] [FAMILY...]
  scheduler.py --replay FILE...

Each trace is a random configuration and random operations (scheduler_workloads.py) on vLLM's Scheduler
(scheduler_engine.py) or, for families enc and kvm, its encoder-cache or KV-cache manager alone (manager_workloads.py,
manager_engines.py), written in the format of the recorded traces and replayed by build/release/tests/replay_traces (or
$TROUPE_REPLAY_TRACES): every decision, block table, hash, event and statistic must be equal. A configuration that vLLM
refuses is drawn again; a trace ends where vLLM itself fails, or where what it does would depend on the order of a set.
The texts of both are counted and printed. A trace is made of seed, family and index alone: --only makes it again, --keep
leaves the files.

With --replay, vLLM makes the operations of recorded traces again and must answer as they say: this shows that the
driver, not only Troupe, is right.
"""
import argparse
import collections
import gzip
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from manager_engines import EncoderCache, KVCache
from manager_workloads import MANAGER_FAMILIES, EncoderCalls, KVCacheCalls
from scheduler_engine import Engine
from scheduler_workloads import FAMILIES as SCHEDULER_FAMILIES, Workload

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_DRAWS = 200
FAMILIES = SCHEDULER_FAMILIES | MANAGER_FAMILIES
DIRECT_CALLS = {"enc": (EncoderCache, EncoderCalls), "kvm": (KVCache, KVCacheCalls)}  # others: a scheduler


class Unordered(Exception):
    """vLLM would walk a set of several elements, whose order means nothing."""


def refuse_sets(scheduler):
    finish = scheduler.finish_requests

    def checked(request_ids, status):
        if isinstance(request_ids, set) and len(request_ids) > 1:
            raise Unordered("several requests fail in one update")
        return finish(request_ids, status)

    scheduler.finish_requests = checked


def engine_and_workload(family):
    return DIRECT_CALLS.get(family, (Engine, Workload))


class Trace:
    """The lines of one trace, and why it ended early or its configuration was drawn again."""

    def __init__(self, family, seed, index):
        self.name = f"{family}/{index:03}"
        self.complaints = []
        chance = random.Random(f"{seed} {family} {index}")
        engine, workload = engine_and_workload(family)
        for _ in range(MAX_DRAWS):
            cfg, habits = FAMILIES[family](chance)
            try:
                self.engine = engine(cfg)
            except (AssertionError, ValueError) as error:
                self.complaints.append(f"refused: {error}")
                continue
            if family not in DIRECT_CALLS:
                refuse_sets(self.engine.scheduler)
            header = dict(trace=self.name, family=family, set="random", seed=seed, index=index, format=1,
                          engine="vllm 0.32.0", cfg=cfg, derived=self.engine.derived())
            self.lines = [json.dumps(header)]
            self.record(workload(chance, self.engine, cfg, habits, self.apply))
            if len(self.lines) > 1:
                return
        raise SystemExit(f"{family}: vLLM takes none of {MAX_DRAWS} configurations; the last: {self.complaints[-1]}")

    def record(self, workload):
        try:
            workload.run()
        except (AssertionError, ValueError, RuntimeError, IndexError, KeyError, Unordered) as error:
            frame = error.__traceback__
            while frame.tb_next is not None:
                frame = frame.tb_next
            place = f"{pathlib.Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}"
            self.complaints.append(f"ended at {place}: {type(error).__name__} {error}")

    def apply(self, operation):
        operation = json.loads(json.dumps(operation))  # vLLM keeps and changes lists
        out, state = self.engine.apply(operation)
        self.lines.append(json.dumps(dict(op=operation, out=out, st=state)))
        return json.loads(json.dumps(out))


def kind_of_complaint(text):
    return re.sub(r"\br?\d+", "N", text)[:150]


def write(path, traces):
    with gzip.open(path, "wt", compresslevel=3) as file:
        for trace in traces:
            file.write("\n".join(trace.lines) + "\n")


def replay(path):
    """(whether all are equal, what the program says)"""
    program = os.environ.get("TROUPE_REPLAY_TRACES", ROOT / "build/release/tests/replay_traces")
    result = subprocess.run([program, path], capture_output=True, text=True)
    if result.returncode not in (0, 1):
        return False, f"ended with {result.returncode}: {result.stderr[-1000:]}"
    return result.returncode == 0, result.stdout.partition("\n")[2].strip()


def run(family, arguments, folder):
    indices = range(arguments.count) if arguments.only is None else [arguments.only]
    traces = [Trace(family, arguments.seed, index) for index in indices]
    path = folder / f"{family}.jsonl.gz"
    write(path, traces)
    different = []
    if not replay(path)[0]:
        for trace in traces:
            single = folder / f"{trace.name.replace('/', '-')}.jsonl.gz"
            write(single, [trace])
            is_equal, text = replay(single)
            if is_equal:
                single.unlink()
            else:
                different.append(trace.name)
                print(f"{trace.name} (seed {arguments.seed}): {text}", flush=True)
    complaints = collections.Counter(kind_of_complaint(text) for trace in traces for text in trace.complaints)
    for text, count in complaints.most_common():
        print(f"{family}: {count} {text}", flush=True)
    return dict(traces=len(traces), operations=sum(len(trace.lines) - 1 for trace in traces), different=len(different))


def filled(values):
    """Output keys that are absent are empty, false or null."""
    return {key: value for key, value in values.items() if value}


def check_recorded(path):
    """(traces, operations, traces in which vLLM now says something else)"""
    counts, different, engine = collections.Counter(), set(), None
    with gzip.open(path, "rt") as file:
        for line in map(json.loads, file):
            if "trace" in line:
                name, engine = line["trace"], engine_and_workload(line["family"])[0](line["cfg"])
                counts["traces"] += 1
                compare(f"{name} derived", line["derived"], engine.derived(), different, name)
                continue
            counts["operations"] += 1
            if name in different:
                continue
            out, state = json.loads(json.dumps(engine.apply(line["op"])))
            where = f"{name} {line['op']['op']}"
            compare(f"{where} out", filled(line["out"]), filled(out), different, name)
            compare(f"{where} st", line["st"], state, different, name)
    return dict(counts, different=len(different))


def compare(where, expected, found, different, name):
    for key in sorted(expected.keys() | found.keys()):
        if expected.get(key) != found.get(key) and name not in different:
            different.add(name)
            print(f"{where} {key}: recorded {json.dumps(expected.get(key))[:300]}, now "
                  f"{json.dumps(found.get(key))[:300]}", flush=True)


def print_table(results):
    print(f"\n{'':16}{'traces':>8}{'operations':>12}{'different':>11}")
    for name, counts in results.items():
        print(f"{name:16}{counts['traces']:8}{counts['operations']:12}{counts['different']:11}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--replay", type=pathlib.Path, nargs="+", metavar="FILE")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(FAMILIES))
    arguments = parser.parse_args()
    unknown = set(arguments.families) - set(FAMILIES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(FAMILIES)}")
    results = {}
    if arguments.replay:
        for path in arguments.replay:
            results[path.name.partition(".")[0]] = check_recorded(path)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = arguments.keep or pathlib.Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            for family in arguments.families or FAMILIES:
                results[family] = run(family, arguments, folder)
    print_table(results)
    sys.exit(any(counts["different"] for counts in results.values()))


if __name__ == "__main__":
    main()
