#!/usr/bin/env python3
"""The cost of a topology, compared with a single process measured in the same rounds, and its recovery time.

For each file of configs/ that runs on one host: the time between two tokens of one stream (and what is more of it than in a
single process), the pause of a stream when its worker's or its scheduler's process is killed, and the CPU time of all processes
together while there is nothing to do. Usage: bench_topologies.py [ROUNDS [OPTION...]], with options of `troupe serve` for all of
them: `--threads 1` leaves a core of two to the messages."""
import http.client
import json
import os
import signal
import sys
import time

from bench_support import ROOT, Server, cpu_seconds, progress, wait_until

CONFIGS = ROOT / "configs"
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
OPTIONS = sys.argv[2:]
IDLE_S = 5
TOKENS = 256  # as many as the demo model says at most


def arrivals(server, at_event=None, then=lambda: None):
    """(when, with how many tokens) each event of one stream came; `then` is called after event `at_event`."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    fields = {"model": "demo", "prompt": "Once upon a time", "max_tokens": TOKENS, "ignore_eos": True, "stream": True,
              "temperature": 0, "return_token_ids": True}
    connection.request("POST", "/v1/completions", json.dumps(fields), {"Content-Type": "application/json"})
    events = []
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            now = time.monotonic()
            events.append((now, len(json.loads(line[6:])["choices"][0]["token_ids"] or [])))
            if len(events) == at_event:
                then()
    connection.close()
    return events


def token_to_token_us(events):
    """A token whose text is not whole yet has no event of its own: it counts in a later one."""
    return 1e6 * (events[-1][0] - events[0][0]) / sum(tokens for _, tokens in events[1:])


def idle_percent(server):
    pids = [server.process.pid, *server.nodes().values()]
    before = sum(map(cpu_seconds, pids))
    time.sleep(IDLE_S)
    return 100 * (sum(map(cpu_seconds, pids)) - before) / IDLE_S


def pause_ms(server, role):
    """The longest gap of a stream under which the process of that role is killed."""
    nodes = server.nodes()
    name = next((each for each in nodes if each.startswith(role)), None) or next(
        each for each in nodes if each.startswith(("core", "group")))  # which has the role beside others
    count = server.log().count("engine restarted")
    times = [when for when, _ in arrivals(server, TOKENS // 4, lambda: os.kill(nodes[name], signal.SIGKILL))]
    wait_until(lambda: server.log().count("engine restarted") > count, "the engine to come up again")
    return 1000 * max(b - a for a, b in zip(times, times[1:]))


def main():
    files = ["single-process.conf"] + sorted(
        file.name for file in CONFIGS.glob("*.conf")
        if file.name != "single-process.conf" and "\nhost=\"10." not in file.read_text())
    print(f"{'topology':28} {'token to token':>15} {'over single':>12} {'worker killed':>14} {'scheduler killed':>17} {'idle CPU':>9}")
    servers = {file: Server("--config-file", str(CONFIGS / file), "--log-stats-interval-s", "0", *OPTIONS) for file in files}
    try:
        between = {file: [] for file in files}
        for number in range(ROUNDS):  # interleaved: what disturbs one round disturbs all
            for file in files:
                progress(f"{file} {number + 1}/{ROUNDS}")
                between[file].append(token_to_token_us(arrivals(servers[file])))
        progress("")
        single = min(between["single-process.conf"])
        for file in files:
            best, server = min(between[file]), servers[file]
            row = f"{file:28} {best:12.0f} us {best - single:9.0f} us"
            if server.nodes():
                row += f" {min(pause_ms(server, 'worker') for _ in range(3)):11.0f} ms"
                row += f" {min(pause_ms(server, 'scheduler') for _ in range(3)):14.0f} ms"
            else:
                row += f" {'-':>14} {'-':>17}"
            print(row + f" {idle_percent(server):7.2f} %", flush=True)
    finally:
        for server in servers.values():
            server.process.kill()


if __name__ == "__main__":
    main()
