#!/usr/bin/env python3
"""troupe cache-server beside LMCache's own server and Redis: requests/s, p99 and MB/s of 1 and 64 clients.

usage: bench_cache_server.py TROUPE BENCH [SECONDS]. LMCACHE_PYTHON names a Python that has lmcache, for its server;
redis-server is taken from the PATH."""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

LMCACHE = ("import sys; sys.argv = ['lmcache_server', '127.0.0.1', '{port}', 'cpu'];"
           "from lmcache.v1.server.__main__ import main; main()")
WORKLOADS = (("exist", 0), ("get", 1 << 16), ("get", 1 << 20), ("put", 1 << 20))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def servers(troupe):
    yield "troupe", "lm", [troupe, "cache-server", "--port", "{port}", "--max-memory-bytes", "1G", "--log-level",
                           "warning"]
    if os.environ.get("LMCACHE_PYTHON"):
        yield "lmcache_server", "lm", [os.environ["LMCACHE_PYTHON"], "-c", LMCACHE]
    if shutil.which("redis-server"):
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


def main():
    troupe, bench = sys.argv[1:3]
    seconds = sys.argv[3] if len(sys.argv) > 3 else "3"
    print(f"{'server':16} {'operation':>10} {'bytes':>8} {'clients':>8} {'requests/s':>11} {'p99_us':>9} {'MB/s':>9}")
    for name, protocol, command in servers(troupe):
        port = free_port()
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen([word.replace("{port}", str(port)) for word in command], cwd=folder,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                wait_for(port, process)
                for operation, size in WORKLOADS:
                    for clients in (1, 64):
                        found = subprocess.run([bench, protocol, str(port), operation, str(clients), str(size), seconds],
                                               capture_output=True, text=True, timeout=600, check=True).stdout.split()
                        print(f"{name:16} {operation:>10} {size:>8} {clients:>8} {found[0]:>11} {found[1]:>9} "
                              f"{found[2]:>9}", flush=True)
            finally:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
