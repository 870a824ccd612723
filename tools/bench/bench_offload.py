#!/usr/bin/env python3
"""Time to the first token behind a prompt whose keys and values come from another tier, beside computing them anew; and how fast
each tier is, as a share of what copying memory, reading the disk and the loopback interface do here.

usage: bench_offload.py MODEL [ROUNDS [LENGTH...]]     MODEL: a folder; LENGTH: tokens of a prompt [2048 16384]

Tiers: the host's memory (OffloadingConnector), files (ExampleConnector; before each read the kernel drops them from its cache),
and `troupe cache-server` on this host (LMCacheConnectorV1). A tier's rate is bytes of keys and values by the time that a hit in it
takes longer than one in the device's prefix cache. A prompt has two tokens more than LENGTH, which are computed: so all tiers have
the rest, whatever their blocks' size. (With one more vLLM's rules for its files look for fewer tokens than were saved.)"""
import json
import mmap
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import numpy

from bench_support import BINARY, DEADLINE_S, QUIET, Server, post, progress, token_ids, vocabulary_of, wait_until

BLOCK_SIZE = 16
PROBE_BYTES = 1 << 29
PROBES = {"memory": "memcpy", "files": "disk", "server": "loopback"}


def memcpy_rate():
    source, target = numpy.ones(PROBE_BYTES, numpy.uint8), numpy.zeros(PROBE_BYTES, numpy.uint8)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        numpy.copyto(target, source)
        times.append(time.perf_counter() - start)
    return PROBE_BYTES / min(times)


def disk_rate(folder):
    """Reads past the kernel's cache, 4 MiB at a time."""
    file, buffer = pathlib.Path(folder) / "probe", mmap.mmap(-1, 4 << 20)
    block = os.urandom(4 << 20)
    with open(file, "wb") as out:
        for _ in range(PROBE_BYTES // len(block)):
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    start = time.perf_counter()
    while os.readv(descriptor, [buffer]) > 0:
        pass
    taken = time.perf_counter() - start
    os.close(descriptor)
    file.unlink()
    return PROBE_BYTES / taken


def loopback_rate():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def send():
            with socket.create_connection(listener.getsockname()) as sender:
                block = bytes(1 << 20)
                for _ in range(PROBE_BYTES // len(block)):
                    sender.sendall(block)
        sending = threading.Thread(target=send)
        sending.start()
        receiver, _ = listener.accept()
        buffer, start = bytearray(1 << 20), time.perf_counter()
        while receiver.recv_into(buffer) > 0:
            pass
        taken = time.perf_counter() - start
        sending.join()
        receiver.close()
    return PROBE_BYTES / taken


def bytes_per_token(model):
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    return 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 2


def drop_from_cache(folder):
    for file in pathlib.Path(folder).rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def reset_prefix_cache(server):
    with urllib.request.urlopen(urllib.request.Request(server.url + "/reset_prefix_cache", method="POST"), timeout=DEADLINE_S):
        pass


def measure(model, tier, connector, extra, folder, lengths, rounds):
    """{length: (computed, tier's hit, device's hit)} in seconds, medians."""
    transfer = {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    longest = max(lengths) + 64
    vocabulary, found = vocabulary_of(model), {}
    with Server(model, "--server-dev-mode", "--enable-prompt-tokens-details", "--max-model-len", str(longest),
                "--num-gpu-blocks-override", str(longest // BLOCK_SIZE + 8), "--block-size", str(BLOCK_SIZE), "--kv-transfer-config",
                json.dumps(transfer), *QUIET) as server:
        def prompt(seed, length):
            return token_ids(seed, length + 2, vocabulary)

        def ask(seed, length):
            seconds, answer = post(server, {"prompt": prompt(seed, length), "max_tokens": 1})
            return seconds, answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        def num_stored(seed, length):
            """By the tier: nothing is computed, unlike by a request that comes too early."""
            _, answer = post(server, {"prompts": [prompt(seed, length)]}, "/admin/cache/lookup")
            return sum(answer["prompts"][0]["groups"][0][tier] for tier in ("host", "disk", "remote"))

        ask(0, 256)
        for length in lengths:
            samples = []
            for number in range(rounds):
                progress(f"{tier}, {length} tokens: round {number + 1} of {rounds}")
                seed = 1000 * length + number
                computed, _ = ask(seed, length)
                reset_prefix_cache(server)
                # It is saved on a thread of its own.
                wait_until(lambda: num_stored(seed, length) >= length, f"{length} tokens to be stored")
                drop_from_cache(folder)
                hit, cached = ask(seed, length)
                if cached < length:
                    raise RuntimeError(f"{tier}: {cached} of {length} tokens are found")
                samples.append((computed, hit, ask(seed, length)[0]))
            found[length] = [statistics.median(each) for each in zip(*samples)]
    progress("")
    return found


def main():
    model = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    lengths = [int(length) for length in sys.argv[3:]] or [2048, 16384]
    size = bytes_per_token(model)
    with tempfile.TemporaryDirectory(dir="build") as folder:  # a disk, which /tmp may not be
        cache = subprocess.Popen([BINARY, "cache-server", "--port", "0", "--max-memory-bytes", "6G", "--log-level", "warning"],
                                 stdout=subprocess.PIPE, text=True)
        try:
            port = int(re.search(r":(\d+)\s*$", cache.stdout.readline())[1])
            # What takes longer would count as a miss, however slow the disk is.
            limit = {"load_timeout_s": DEADLINE_S}
            tiers = {"memory": ("OffloadingConnector", {"cpu_bytes_to_use": 6 << 30, **limit}),
                     "files": ("ExampleConnector", {"shared_storage_path": folder, **limit}),
                     "server": ("LMCacheConnectorV1", {"lmcache.local_cpu": False, "lmcache.chunk_size": 256,
                                                       "lmcache.blocking_timeout_secs": int(DEADLINE_S),
                                                       "lmcache.remote_url": f"lm://127.0.0.1:{port}"})}
            print(f"{'tier':8} {'tokens':>7} {'computed_s':>11} {'hit_s':>8} {'times':>7} {'GB/s':>7} {'probe':>9} {'GB/s':>7} {'share':>6}")
            for tier, (connector, extra) in tiers.items():
                found = measure(model, tier, connector, extra, folder, lengths, rounds)
                rate = {"memory": memcpy_rate, "files": lambda: disk_rate(folder), "server": loopback_rate}[tier]()
                for length, (computed, hit, device) in found.items():
                    moved = size * length / max(hit - device, 1e-9)
                    print(f"{tier:8} {length:>7} {computed:>11.3f} {hit:>8.3f} {computed / hit:>7.1f} {moved / 1e9:>7.2f} "
                          f"{PROBES[tier]:>9} {rate / 1e9:>7.2f} {moved / rate:>6.2f}", flush=True)
        finally:
            cache.terminate()
            cache.wait()


if __name__ == "__main__":
    main()
