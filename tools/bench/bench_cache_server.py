#!/usr/bin/env python3
"""troupe cache-server beside LMCache's own server and Redis, in turns: requests/s, p99 and MB/s of 1 and 64 clients, and the
CPU time that the server spends on a request, in microseconds; medians. Clients have one request at a time, or as many as the column
`at_once` says (one look-up of a prompt's chunks). `limit` is a server that stores nothing and looks nothing up: what the sockets and
the clients of this host allow.

usage: bench_cache_server.py BENCH [ROUNDS [SECONDS]]. LMCACHE_PYTHON names a Python that has lmcache, for its server;
redis-server is taken from the PATH."""
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from bench_support import BINARY, cpu_seconds, progress

LMCACHE = ("import sys; sys.argv = ['lmcache_server', '127.0.0.1', '{port}', 'cpu'];"
           "from lmcache.v1.server.__main__ import main; main()")
WORKLOADS = (("exist", 0, 1), ("exist", 0, 64), ("get", 1 << 16, 1), ("get", 1 << 20, 1), ("put", 1 << 16, 1), ("put", 1 << 20, 1))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def servers(bench):
    yield "limit", "lm", [bench, "limit", "{port}"]
    yield "troupe", "lm", [BINARY, "cache-server", "--port", "{port}", "--max-memory-bytes", "1G", "--log-level",
                           "warning"]
    if os.environ.get("LMCACHE_PYTHON"):
        yield "lmcache_server", "lm", [os.environ["LMCACHE_PYTHON"], "-c", LMCACHE]
    else:
        print("lmcache_server is skipped: LMCACHE_PYTHON names no Python")
    if not shutil.which("redis-server"):
        print("redis is skipped: there is no redis-server in the PATH")
    else:
        yield "redis", "redis", ["redis-server", "--port", "{port}", "--bind", "127.0.0.1", "--save", "", "--loglevel",
                                 "warning"]


def wait_for(port, process):
    for _ in range(1200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            raise SystemExit(f"the server on port {port} ended with {process.returncode}")
        time.sleep(0.1)
    raise SystemExit(f"nothing listens on port {port}")


@contextlib.contextmanager
def started(command):
    """(its port, its process)"""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([word.replace("{port}", str(port)) for word in command], cwd=folder,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(port, process)
            yield port, process
        finally:
            process.kill()
            process.wait()


def main():
    bench = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    seconds = sys.argv[3] if len(sys.argv) > 3 else "1"

    def measure(protocol, port, process, operation, clients, size, at_once):
        before = cpu_seconds(process.pid)
        found = subprocess.run([bench, protocol, str(port), operation, str(clients), str(size), seconds, str(at_once)],
                               capture_output=True, text=True, timeout=600, check=True).stdout.split()
        effort = 1e6 * (cpu_seconds(process.pid) - before) / max(float(found[0]) * float(seconds), 1)
        return [*map(float, found), effort]

    with contextlib.ExitStack() as stack:
        each = [(name, protocol, *stack.enter_context(started(command))) for name, protocol, command in servers(bench)]
        print(f"{'server':16} {'operation':>10} {'bytes':>8} {'at_once':>8} {'clients':>8} {'requests/s':>11} {'p99_us':>9} "
              f"{'MB/s':>9} {'CPU_us':>8}")
        for operation, size, at_once in WORKLOADS:
            for clients in (1, 64):
                samples = {name: [] for name, *_ in each}
                for number in range(rounds):
                    for name, protocol, port, process in each:
                        progress(f"{operation} {size}, {clients} clients, {name}: round {number + 1} of {rounds}")
                        samples[name].append(measure(protocol, port, process, operation, clients, size, at_once))
                progress("")
                for name, found in samples.items():
                    requests, p99, megabytes, effort = (statistics.median(values) for values in zip(*found))
                    print(f"{name:16} {operation:>10} {size:>8} {at_once:>8} {clients:>8} {requests:>11.0f} {p99:>9.0f} "
                          f"{megabytes:>9.1f} {effort:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
