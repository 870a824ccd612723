#!/usr/bin/env python3
"""Processes are killed and stopped, and a host is cut off, under clients, again and again: every stream ends with the
tokens, texts and log-probabilities of an undisturbed run, bad requests fail alone, and nothing is left over.

TROUPE_CHAOS_FAULTS and TROUPE_CHAOS_SEED: how many faults (20), and which (1). `chaos --faults N --seed S` sets them, too."""
import json
import os
import pathlib
import random
import signal
import struct
import tempfile
import threading
import time
import types
import unittest

from adapters_test import settle
from stores import Stores
from streams import Clients, Stream, body, resumed_stream, stream, undisturbed
from support import (ROOT, Server, is_running, leftover_segments, make_certificates, node_of_second_host, reserve_port, second_host,
                     tls_options, wait_until)

CONFIGS = ROOT / "configs"
NUM_STREAMS = 32
NUM_FAULTS = int(os.environ.get("TROUPE_CHAOS_FAULTS", "20"))
SEED = int(os.environ.get("TROUPE_CHAOS_SEED", "1"))
NUM_HOST_FAULTS = max(1, NUM_FAULTS // 20)  # each takes as long as ten others
NUM_GROUP_FAULTS = NUM_FAULTS // 8
SHARE_STOPPED = 0.1  # the others are killed
TOTAL = types.SimpleNamespace(requests=0, faults=0, lost=0, different=0)  # of all topologies


def write_adapter(folder, seed):
    """A LoRA adapter of random numbers for the demo model, as PEFT writes it; returns its folder."""
    numbers = random.Random(seed)
    model = json.loads((ROOT / "tools" / "demo_model" / "model" / "config.json").read_text())["text_config"]
    heads = {"q_proj": model["num_attention_heads"], "v_proj": model["num_key_value_heads"]}
    rank, size = 4, model["hidden_size"]
    header, data = {}, b""
    for layer in range(model["num_hidden_layers"]):
        for module, count in heads.items():
            for matrix, shape in (("A", [rank, size]), ("B", [count * model["head_dim"], rank])):
                values = [numbers.gauss(0, 0.15) for _ in range(shape[0] * shape[1])]
                begin, data = len(data), data + struct.pack(f"<{len(values)}f", *values)
                header[f"base_model.model.model.language_model.layers.{layer}.self_attn.{module}.lora_{matrix}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    folder.mkdir()
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank,
                                                            "target_modules": list(heads)}))
    return folder


class Visitor(threading.Thread):
    """Loads an adapter, and unloads it under the stream that uses it, again and again until told to end."""

    def __init__(self, server, clients, adapter):
        super().__init__(daemon=True)
        self.server, self.clients, self.adapter = server, clients, adapter
        self.num_visits, self.error = 0, None
        self.start()

    def run(self):
        # These requests have it as the clients' second model, which has the same weights.
        numbers = [number for number in range(self.clients.num_streams) if number % len(self.clients.models) == 1]
        try:
            while not self.clients.ending.is_set():
                self.visit(numbers[self.num_visits % len(numbers)])
                self.num_visits += 1
        except Exception as error:
            self.error = error

    def visit(self, number):
        name = {"lora_name": "visitor"}
        settle(self.server, "/v1/load_lora_adapter", {**name, "lora_path": str(self.adapter)}, 400)
        reader = Stream(self.server.port, {**body(number), "model": "visitor"})
        thread = threading.Thread(target=self.clients.check, args=(number, lambda: reader.read() or reader.answer()))
        thread.start()
        wait_until(lambda: reader.stream_id is not None or not thread.is_alive(), "the visitor's stream")
        settle(self.server, "/v1/unload_lora_adapter", name, 404)
        thread.join()


class Chaos(unittest.TestCase):
    def test_no_request_is_lost_whatever_is_killed(self):
        self.check("one-process-per-role.conf", NUM_FAULTS - 7 * NUM_GROUP_FAULTS - NUM_HOST_FAULTS)

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
                "--num-gpu-blocks-override", "180", "--block-size", "16", "--max-model-len", "512", "--log-stats-interval-s", "0",
                "--kv-transfer-config", json.dumps(stores.connectors())) as server:
            clients = Clients(server.port, undisturbed(server.port, NUM_STREAMS))
            for _ in range(NUM_GROUP_FAULTS):
                time.sleep(numbers.uniform(0.05, 0.6))  # as below
                stores.strike(numbers)
            wait_until(lambda: server.metric(hits) > 0, "blocks to be loaded from the stores")
            self.finish(server, clients, "stores", NUM_GROUP_FAULTS, num_incidents=0)

    def test_no_request_is_lost_while_adapters_are_loaded_and_unloaded(self):
        # Room for all at once: as in vLLM, a request waits while those that run have as many other adapters as fit.
        with tempfile.TemporaryDirectory() as folder, Server(
                "--config-file", str(CONFIGS / "one-process-per-role.conf"), "--keep-alive", "--log-stats-interval-s", "0",
                "--enable-lora", "--max-loras", "3", "--max-cpu-loras", "3", "--allow-runtime-lora-updating") as server:
            first, second = (write_adapter(pathlib.Path(folder) / str(seed), seed) for seed in (1, 2))
            for name, path in (("first", first), ("second", second)):
                settle(server, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)}, 400)
            models = ("demo", "first", "second")
            expected = undisturbed(server.port, NUM_STREAMS // 2, models)
            self.assertNotEqual(expected[1], stream(server.port, body(1)))  # the adapters show
            clients = Clients(server.port, expected, models=models)
            visitor = Visitor(server, clients, first)
            num_incidents = self.strike(server, NUM_GROUP_FAULTS)
            wait_until(lambda: visitor.num_visits > 1 or visitor.error, "the visitor")
            clients.ending.set()
            visitor.join()
            self.assertIsNone(visitor.error)
            self.finish(server, clients, "adapters", NUM_GROUP_FAULTS, num_incidents)

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
        with Server("--config-file", str(CONFIGS / config), "--keep-alive", "--log-stats-interval-s", "0", *options,
                    port=reserve_port() if front else 0) as server:
            clients = Clients(server.port, undisturbed(server.port, NUM_STREAMS), resumed_stream if front else stream)
            num_incidents = self.strike(server, num_faults, front)
            self.finish(server, clients, config, num_faults, num_incidents)

    def strike(self, server, num_faults, front=False):
        """Kills and stops processes; returns of how many the Supervisor must have noticed."""
        numbers = random.Random(SEED)
        num_incidents = 0
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
        return num_incidents


if __name__ == "__main__":
    unittest.main()
