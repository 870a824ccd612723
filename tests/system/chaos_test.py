#!/usr/bin/env python3
"""Processes are killed and stopped, and a host is cut off, under clients, again and again: every stream ends with the
tokens, texts and log-probabilities of an undisturbed run, bad requests fail alone, and nothing is left over.

TROUPE_CHAOS_FAULTS and TROUPE_CHAOS_SEED: how many faults (20), and which (1). `chaos --faults N --seed S` sets them, too."""
import json
import os
import pathlib
import random
import signal
import tempfile
import time
import types
import unittest

from stores import Stores
from streams import Clients, resumed_stream, stream, undisturbed
from support import (Server, is_running, leftover_segments, make_certificates, node_of_second_host, reserve_port, second_host,
                     tls_options, wait_until)

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
NUM_STREAMS = 32
NUM_FAULTS = int(os.environ.get("TROUPE_CHAOS_FAULTS", "20"))
SEED = int(os.environ.get("TROUPE_CHAOS_SEED", "1"))
NUM_HOST_FAULTS = max(1, NUM_FAULTS // 20)  # each takes as long as ten others
NUM_GROUP_FAULTS = NUM_FAULTS // 7
SHARE_STOPPED = 0.1  # the others are killed
TOTAL = types.SimpleNamespace(requests=0, faults=0, lost=0, different=0)  # of all topologies


class Chaos(unittest.TestCase):
    def test_no_request_is_lost_whatever_is_killed(self):
        self.check("one-process-per-role.conf", NUM_FAULTS - 6 * NUM_GROUP_FAULTS - NUM_HOST_FAULTS)

    def test_no_request_is_lost_when_workers_of_a_group_are_killed(self):
        self.check("mixed.conf", NUM_GROUP_FAULTS, "--enable-jump-forward")

    def test_no_request_is_lost_when_groups_are_killed(self):
        self.check("data-parallel.conf", NUM_GROUP_FAULTS)

    def test_no_request_is_lost_when_encoders_are_killed(self):
        self.check("encoders.conf", NUM_GROUP_FAULTS)

    def test_no_request_is_lost_when_groups_for_prompts_and_for_output_are_killed(self):
        transfer = {"kv_connector": "PeerConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"lease_s": 3}}
        self.check("disaggregated.conf", NUM_GROUP_FAULTS, "--disaggregation-threshold", "8", "--kv-transfer-config",
                   json.dumps(transfer))

    def test_no_request_is_lost_when_what_keeps_its_cache_fails(self):
        numbers = random.Random(SEED)
        hits = "vllm:external_prefix_cache_hits_total"
        with tempfile.TemporaryDirectory() as folder, Stores(folder) as stores, Server(
                "--num-gpu-blocks-override", "400", "--block-size", "16", "--log-stats-interval-s", "0",
                "--kv-transfer-config", json.dumps(stores.connectors())) as server:
            clients = Clients(server.port, undisturbed(server.port, NUM_STREAMS))
            for _ in range(NUM_GROUP_FAULTS):
                time.sleep(numbers.uniform(0.05, 0.6))  # as below
                stores.strike(numbers)
            wait_until(lambda: server.metric(hits) > 0, "blocks to be loaded from the stores")
            self.finish(server, clients, "stores", NUM_GROUP_FAULTS, num_incidents=0)

    def test_streams_are_resumed_when_the_frontend_is_killed_too(self):
        self.check("multi-process.conf", NUM_GROUP_FAULTS, "--resume", front=True)

    def test_no_request_is_lost_when_a_host_is_cut_off(self):
        config, num_faults = "multi-node.conf", NUM_HOST_FAULTS
        numbers = random.Random(SEED)
        with tempfile.TemporaryDirectory() as folder, second_host() as link:
            front, worker = make_certificates(folder, "front", "worker"), tls_options(folder, "worker")
            file = str(CONFIGS / config)
            with node_of_second_host("worker-0", file, *worker), Server("--config-file", file, *front) as server:
                clients = Clients(server.port, undisturbed(server.port, NUM_STREAMS))
                for _ in range(num_faults):
                    time.sleep(numbers.uniform(0.05, 0.6))  # as below
                    silences, restarts = (server.log().count(what) for what in ("has been silent", "engine restarted"))
                    link("down")
                    wait_until(lambda: server.log().count("has been silent") > silences, "the silence to be noticed")
                    link("up")
                    wait_until(lambda: server.log().count("engine restarted") > restarts, "the engine to come up again")
                    # Each cut costs node-timeout-s and all prefills: without answers in between, clients would time out.
                    clients.wait_for_answers(NUM_STREAMS // 4)
                self.finish(server, clients, config, num_faults)

    def finish(self, server, clients, config, num_faults, num_incidents=None):
        clients.end()
        print(f"{config}, seed {SEED}: {clients.num_requests} requests, {num_faults} faults, {len(clients.lost)} lost, "
              f"{len(clients.different)} different", flush=True)
        TOTAL.requests += clients.num_requests
        TOTAL.faults += num_faults
        TOTAL.lost += len(clients.lost)
        TOTAL.different += len(clients.different)
        self.assertEqual((clients.lost, clients.different, clients.bad_answers), ([], [], []))
        self.assertEqual(server.wait_idle(), 0)
        # A Supervisor that has just come up mends what it does not find, which is no incident to it.
        num_expected = num_faults if num_incidents is None else num_incidents * 3 // 4
        self.assertGreaterEqual(server.log().count("incident cause="), num_expected)
        pids = list(server.nodes().values())
        code, log = server.stop()
        self.assertEqual(code, 0, log[-2000:])
        wait_until(lambda: not any(map(is_running, pids)), "all processes to end")
        wait_until(lambda: not leftover_segments(server.port), "all files in /dev/shm to be gone")

    def check(self, config, num_faults, *options, front=False):
        """With `front`, the Frontend is killed too, and first: clients resume their streams."""
        numbers = random.Random(SEED)
        num_incidents = 0
        with Server("--config-file", str(CONFIGS / config), "--keep-alive", "--log-stats-interval-s", "0", *options,
                    port=reserve_port() if front else 0) as server:
            clients = Clients(server.port, undisturbed(server.port, NUM_STREAMS), resumed_stream if front else stream)
            names = sorted(name for name in [*server.nodes(), "supervisor"] if front or name != "front")
            self.assertGreater(len(names), 1)
            for fault in range(num_faults):
                time.sleep(numbers.uniform(0.05, 0.6))  # not to wait for anything: a fault comes when it comes
                name = "front" if front and fault == 0 else numbers.choice(names)
                stopped = numbers.random() < SHARE_STOPPED or fault == num_faults // 2
                blow = signal.SIGSTOP if stopped else signal.SIGKILL
                if name == "supervisor":
                    ready = server.log().count("engine ready")
                    os.kill(server.supervisor(), blow)
                    wait_until(lambda: server.log().count("engine ready") > ready, "the next supervisor")
                    continue
                num_incidents += 1
                is_back = "encoder ready" if name.startswith("encoder") else "engine restarted"
                victim, restarts = server.nodes()[name], server.log().count(is_back)
                os.kill(victim, blow)
                wait_until(lambda: server.nodes().get(name, victim) != victim, f"another process for {name}")
                wait_until(lambda: server.log().count(is_back) > restarts, f"{is_back} after the end of {name}")
            self.finish(server, clients, config, num_faults, num_incidents)


if __name__ == "__main__":
    unittest.main()
