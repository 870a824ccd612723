#!/usr/bin/env python3
"""Full load with faults for an hour: what chaos_test.py checks, and that the memory and the descriptors of the processes that
are never killed (the supervisor and the frontend) stay as they are. Ends with status 1 if they do not.
Usage: soak.py [SECONDS [configuration file]]   TROUPE_CHAOS_SEED: which faults"""
import os
import random
import signal
import statistics
import sys
import time

from chaos_test import CONFIGS, NUM_STREAMS, SEED
from streams import Clients, undisturbed
from support import Server, leftover_segments, memory, wait_until

FAULT_INTERVAL_S = 5
MAX_GROWTH = 1.05  # of the median, from the second quarter of the time to the last
SLACK_MIB, SLACK_DESCRIPTORS = 8, 8


def look(pids):
    """Resident MiB and descriptors of each."""
    return [(memory(pid, "VmRSS") / 2**20, len(os.listdir(f"/proc/{pid}/fd"))) for pid in pids]


def is_flat(samples, what, slack):
    quarter = len(samples) // 4
    early, late = statistics.median(samples[quarter:2 * quarter]), statistics.median(samples[-quarter:])
    print(f"{what}: {early:.1f} in the second quarter, {late:.1f} in the last", flush=True)
    return late <= MAX_GROWTH * early + slack


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3600
    config = sys.argv[2] if len(sys.argv) > 2 else str(CONFIGS / "one-process-per-role.conf")
    numbers = random.Random(SEED)
    with Server("--config-file", config, "--log-stats-interval-s", "0") as server:
        expected = undisturbed(server.port, NUM_STREAMS)
        lasting = {"supervisor": server.process.pid, "frontend": server.nodes()["front"]}
        names = sorted(set(server.nodes()) - {"front"})
        clients = Clients(server.port, expected)
        samples, num_faults, end = [], 0, time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                time.sleep(numbers.uniform(0, 2 * FAULT_INTERVAL_S))
                name = numbers.choice(names)
                victim, restarts = server.nodes()[name], server.log().count("engine restarted")
                os.kill(victim, signal.SIGKILL)
                num_faults += 1
                wait_until(lambda: server.nodes().get(name, victim) != victim, f"another process for {name}")
                wait_until(lambda: server.log().count("engine restarted") > restarts, "the engine to come up again")
                samples.append(look(lasting.values()))
        finally:
            clients.end()
        print(f"{config}, seed {SEED}: {clients.num_requests} requests, {num_faults} faults, {len(clients.lost)} lost, "
              f"{len(clients.different)} different", flush=True)
        good = not clients.lost and not clients.different and not clients.bad_answers and server.wait_idle() == 0
        if len(samples) >= 8:
            for number, name in enumerate(lasting):
                good &= is_flat([each[number][0] for each in samples], f"resident MiB of the {name}", SLACK_MIB)
                good &= is_flat([each[number][1] for each in samples], f"descriptors of the {name}", SLACK_DESCRIPTORS)
        code, _ = server.stop()
    left = leftover_segments(server.port)
    print(f"ended with status {code}, {len(left)} files left in /dev/shm", flush=True)
    sys.exit(0 if good and code == 0 and not left else 1)


if __name__ == "__main__":
    main()
