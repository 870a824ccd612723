#!/usr/bin/env python3
"""troupe cache-server from outside: LMCache's protocol, what survives kill -9, and engines that share their KV cache."""
import json
import os
import pathlib
import random
import re
import select
import signal
import socket
import struct
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

import msgspec
import zmq

from kv_offload_test import HITS, ask, post, transfer
from prefix_cache_test import clear
from support import BINARY, DEADLINE_S, ENVIRONMENT, Server, communicate, reserve_port, run, wait_until

PUT, GET, EXIST, LIST, HEALTH = range(1, 6)


class CacheServer:
    """`troupe cache-server` on ports that the system chooses, or one of them."""

    def __init__(self, *arguments, port=0):
        self.process = subprocess.Popen([BINARY, "cache-server", "--port", str(port), "--http-port", "0", *arguments],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT)
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        lines = [self.process.stdout.readline() for _ in range(2)] if ready else ["", ""]
        self.port = int(re.search(r":(\d+)$", lines[0].strip()).group(1))
        self.http = re.search(r"http://\S+:\d+", lines[1]).group(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()
        self.process.stdout.close()

    def stop(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        return self.process.wait(DEADLINE_S)

    def get(self, path):
        with urllib.request.urlopen(self.http + path, timeout=DEADLINE_S) as response:
            return response.read().decode()

    def wait_for_values(self, number):
        """Clients put them on their own time."""
        wait_until(lambda: self.metric("troupe_cache_values") == number, f"{number} values")

    def metric(self, name):
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", self.get("/metrics"), re.MULTILINE))


class Controller:
    """LMCache's own controller, from its package."""

    def __init__(self, ports, log):
        self.url = f"http://127.0.0.1:{ports[0]}"
        program = "from lmcache.v1.api_server.__main__ import main; main()"
        monitor = json.dumps(dict(zip(("pull", "reply", "heartbeat"), ports[1:])))
        self.process = subprocess.Popen([os.environ["LMCACHE_PYTHON"], "-c", program, "--host", "127.0.0.1", "--port",
                                         str(ports[0]), "--monitor-ports", monitor], stdout=log, stderr=log)
        wait_until(lambda: self.post("lookup", tokens=[1])[0] == 200, "LMCache's controller")

    def post(self, verb, **body):
        request = urllib.request.Request(f"{self.url}/{verb}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def kill(self):
        self.process.kill()
        self.process.wait(DEADLINE_S)


class OrderingController:
    """Registers instances as LMCache's controller does, and sends the orders that a test wants."""

    def __init__(self):
        self.context = zmq.Context()
        self.sockets = [self.context.socket(kind) for kind in (zmq.PULL, zmq.ROUTER)]
        self.urls = [f"127.0.0.1:{each.bind_to_random_port('tcp://127.0.0.1')}" for each in self.sockets]
        self.registered = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(linger=0)

    def settings(self, instance, ports, **more):
        return {"lmcache.enable_controller": True, "lmcache.lmcache_instance_id": instance, "lmcache.lmcache_worker_ports": ports,
                "lmcache.controller_pull_url": self.urls[0], "lmcache.controller_reply_url": self.urls[1], **more}

    def register(self, number):
        """Until so many instances have registered."""
        while len(self.registered) < number:
            assert self.sockets[1].poll(1000 * DEADLINE_S), f"only {list(self.registered)} register"
            client, _, request = self.sockets[1].recv_multipart()
            message = msgspec.msgpack.decode(request)
            assert message["type"] == "RegisterMsg", message
            self.registered[message["instance_id"]] = message
            self.sockets[1].send_multipart([client, b"", msgspec.msgpack.encode({"type": "RegisterRetMsg", "extra_config": {}})])

    def order(self, instance, kind, **fields):
        with self.context.socket(zmq.REQ) as client:
            worker = self.registered[instance]
            client.connect(f"tcp://{worker['ip']}:{worker['port']}")
            client.send(msgspec.msgpack.encode({"type": kind, "worker_event_id": "Worker0e", **fields}))
            assert client.poll(1000 * DEADLINE_S), f"{instance} does not answer"
            return msgspec.msgpack.decode(client.recv())


class Client:
    """LMCache's client, by its bytes."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, command, key, value=b"", shape=(0, 0, 0, 0)):
        self.socket.sendall(struct.pack("<9i150s", command, len(value), 1, 3 if value else 2, 0, *shape,
                                        key.encode().ljust(150)) + value)

    def receive(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError
            data += part
        return data

    def put(self, key, value):
        self.send(PUT, key, value, (2, 1, 1, len(value)))

    def exists(self, key):
        self.send(EXIST, key)
        return struct.unpack("<9i", self.receive(36))[0] == 200

    def get(self, key):
        self.send(GET, key)
        code, length, _, _, *shape, _ = struct.unpack("<9i", self.receive(36))
        if code != 200:
            return None
        value = self.receive(length)
        assert shape == [2, 1, 1, length]
        return value


def key(number):
    return f"model@1@0@{number:x}@bfloat16"


def value(number, size=100_000):
    return random.Random(number).randbytes(size)


def lookup(folder, tokens, *kind):
    """What a lookup client of LMCache prints."""
    program = pathlib.Path(__file__).with_name("lmcache_lookup.py")
    process = subprocess.Popen([os.environ["LMCACHE_PYTHON"], program, folder, "tests", "3", json.dumps(tokens), *kind],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, _ = communicate(process, timeout=600)
    return output


class CacheServerTest(unittest.TestCase):
    def test_values_survive_the_server_and_its_limits_hold(self):
        with tempfile.TemporaryDirectory() as folder:
            options = ("--directory", folder, "--max-memory-bytes", "1M", "--max-disk-bytes", "4M")
            with CacheServer(*options) as server, Client(server.port) as client:
                self.assertFalse(client.exists(key(1)))
                self.assertIsNone(client.get(key(1)))
                for number in range(60):
                    client.put(key(number), value(number))
                self.assertEqual(client.get(key(59)), value(59))
                self.assertEqual(client.get(key(30)), value(30))  # on disk, or being written
                wait_until(lambda: not client.exists(key(0)), "the oldest to be dropped")
                client.send(LIST, key(0))  # has no answer
                client.send(HEALTH, "")
                self.assertEqual(struct.unpack("<9i", client.receive(36))[0], 200)
                self.assertEqual(server.get("/health"), "")
                wait_until(lambda: server.metric("troupe_cache_bytes") <= 5 << 20, "no more than the limits")
                wait_until(lambda: server.metric("troupe_cache_connections") == 2, "those of this client and this request")
                self.assertEqual(server.stop(), 0)
            self.assertLessEqual(sum(file.stat().st_size for file in pathlib.Path(folder).rglob("*.lm")), 4 << 20)
            with CacheServer(*options) as server, Client(server.port) as client:
                for number in range(25, 60):
                    self.assertEqual(client.get(key(number)), value(number), number)

    def test_what_a_killed_server_has_written_is_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(4):
                with CacheServer("--directory", folder) as server, Client(server.port) as client:
                    for number in range(20 + 10 * seed):
                        client.put(key(number % 25), value(number % 25))
                    server.stop(signal.SIGKILL)
                with CacheServer("--directory", folder) as server, Client(server.port) as client:
                    for number in range(25):
                        self.assertIn(client.get(key(number)), (None, value(number)))
                    self.assertEqual(server.metric("troupe_cache_failed_reads_total"), 0)

    def test_engines_share_what_they_have_computed(self):
        with Server("--max-model-len", "256", "--log-stats-interval-s", "0") as server:
            expected = [ask(server, seed) for seed in range(3)]
        with CacheServer() as cache:
            options = ("--max-model-len", "256", "--block-size", "16", "--log-stats-interval-s", "0",
                       *transfer("LMCacheConnectorV1", **{"lmcache.chunk_size": 32, "lmcache.local_cpu": False,
                                                          "lmcache.remote_url": f"lm://127.0.0.1:{cache.port}",
                                                          "lmcache.lookup_timeout_ms": 100_000,
                                                          "lmcache.blocking_timeout_secs": 100}))
            with Server(*options) as server:
                self.assertEqual([ask(server, seed) for seed in range(3)], expected)
                cache.wait_for_values(3 * 5)
            with Server(*options) as server:
                self.assertEqual([ask(server, seed) for seed in range(3)], expected)
                self.assertEqual(server.metric(HITS), 3 * 128)
                # Nothing of another tenant is used; and without the cache server the engine continues.
                self.assertEqual(ask(server, 0, cache_salt="other"), expected[0])
                self.assertEqual(server.metric(HITS), 3 * 128)
                cache.stop(signal.SIGKILL)
                self.assertEqual(ask(server, 1, cache_salt="other"), expected[1])

    def test_a_controller_moves_a_prompt_from_a_data_parallel_group_to_another_instance(self):
        tokens = [5 + i % 97 for i in range(140)]
        place = "LocalCPUBackend"

        def answer(server):
            return post(server, {"prompt": tokens, "max_tokens": 8, "temperature": 0})["choices"][0]["text"]

        with OrderingController() as controller, CacheServer() as old, CacheServer() as new:
            def options(instance, ports, cache):
                return ("--max-model-len", "256", "--block-size", "16", "--log-stats-interval-s", "0", *transfer(
                    "LMCacheConnectorV1", **controller.settings(instance, ports, **{
                        "lmcache.chunk_size": 32, "lmcache.enable_p2p": True, "lmcache.max_local_cpu_size": 0.1,
                        "lmcache.remote_url": f"lm://127.0.0.1:{cache.port}", "lmcache.lookup_timeout_ms": 100_000,
                        "lmcache.blocking_timeout_secs": 100})))
            ports = [reserve_port() for _ in range(3)]
            with Server(*options("old", ports[:2], old), "--data-parallel-size", "2") as source, \
                    Server(*options("new", ports[2:], new)) as target:
                controller.register(3)
                self.assertEqual({name: worker["port"] for name, worker in controller.registered.items()},
                                 {"old_dp0": ports[0], "old_dp1": ports[1], "new": ports[2]})
                expected = answer(source)
                old.wait_for_values(4)
                move = {"old_position": place, "new_position": (controller.registered["new"]["peer_init_url"], place),
                        "tokens": tokens, "copy": False}
                groups = ("old_dp0", "old_dp1")
                moved = [controller.order(group, "MoveWorkerMsg", **move)["num_tokens"] for group in groups]
                self.assertEqual(sorted(moved), [0, 128])
                # It is gone from the one, and the other one finds it.
                self.assertEqual([controller.order(group, "PinWorkerMsg", location=place, tokens=tokens)["num_tokens"]
                                  for group in groups], [0, 0])
                self.assertEqual(new.metric("troupe_cache_values"), 4)
                self.assertEqual(answer(target), expected)
                self.assertEqual(target.metric(HITS), 128)
                # An instance of LMCache, which registers an address for NIXL.
                move["new_position"] = ("127.0.0.1:8200", place)
                self.assertIn("(NIXL) is not offered", controller.order("new", "MoveWorkerMsg", **move)["error"])

    def test_chunks_on_disk_outlive_the_engine_and_damaged_ones_are_computed(self):
        with Server("--max-model-len", "256", "--log-stats-interval-s", "0") as server:
            expected = [ask(server, seed) for seed in range(3)]
        with tempfile.TemporaryDirectory() as folder:
            environment = {"LMCACHE_CHUNK_SIZE": "32", "LMCACHE_LOCAL_DISK": folder, "LMCACHE_MAX_LOCAL_DISK_SIZE": "1",
                           "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.5"}
            options = ("--max-model-len", "256", "--block-size", "16", "--log-stats-interval-s", "0",
                       *transfer("LMCacheConnectorV1"))
            with Server(*options, environment=environment) as server:
                self.assertEqual([ask(server, seed) for seed in range(3)], expected)
            files = sorted(pathlib.Path(folder).glob("*.pt"))
            self.assertEqual(len(files), 3 * 5)
            with Server(*options, environment=environment) as server:
                self.assertEqual([ask(server, seed) for seed in range(3)], expected)
                self.assertEqual(server.metric(HITS), 3 * 128)
            for file in files[::2]:
                file.write_bytes(file.read_bytes()[:-7] + b"damaged")
            with Server(*options, environment=environment) as server:
                self.assertEqual([ask(server, seed) for seed in range(3)], expected)
                self.assertIn("xxh3_128", server.log())

    def test_what_is_wrong_is_told(self):
        for arguments, text in ((["--max-memory-bytes", "0"], "max-memory-bytes"),
                                (["--token-file", "/nowhere"], "/nowhere"),
                                (["--ssl-keyfile", "/key"], "ssl-keyfile needs ssl-certfile"),
                                (["somewhere"], "unexpected argument 'somewhere'")):
            code, _, errors = run(["cache-server", *arguments])
            self.assertNotEqual(code, 0)
            self.assertIn(text, errors)
        self.assertIn("--max-disk-bytes", run(["cache-server", "--help"])[1])
        for extra, text in (({"lmcache.chunk_sizes": 1}, "chunk_sizes is unknown"),
                            ({"lmcache.enable_pd": True}, "not offered"),
                            ({"lmcache.enable_controller": True}, "lmcache_instance_id"),
                            ({"lmcache.chunk_size": 24}, "multiple of the block size")):
            code, _, errors = run(["serve", "--port", "0", "--block-size", "16", *transfer("LMCacheConnectorV1", **extra)])
            self.assertNotEqual(code, 0)
            self.assertIn(text, errors)

    @unittest.skipUnless(os.environ.get("LMCACHE_PYTHON"), "LMCACHE_PYTHON names no Python that has lmcache")
    def test_the_client_of_lmcache_works_unchanged(self):
        with CacheServer() as server:
            program = pathlib.Path(__file__).with_name("lmcache_client.py")
            process = subprocess.Popen([os.environ["LMCACHE_PYTHON"], program, str(server.port)], stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True)
            output, _ = communicate(process, timeout=600)
            self.assertEqual(process.returncode, 0, output)
            self.assertIn("20 values are the same", output)

    @unittest.skipUnless(os.environ.get("LMCACHE_PYTHON"), "LMCACHE_PYTHON names no Python that has lmcache")
    def test_the_controller_and_the_lookup_client_of_lmcache_find_a_prompt(self):
        """The hashes are those of an LMCache that cannot import vLLM, as this one."""
        ports = [reserve_port() for _ in range(4)]
        tokens = [5 + i % 97 for i in range(600)]
        with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "log"), "w+", encoding="utf-8") as log:
            settings = {"lmcache.pre_caching_hash_algorithm": "builtin", "lmcache.extra_config": {"troupe_vllm_hashes": False},
                        "lmcache.max_local_cpu_size": 0.5, "lmcache.enable_controller": True,
                        "lmcache.lmcache_instance_id": "troupe", "lmcache.controller_pull_url": f"127.0.0.1:{ports[1]}",
                        "lmcache.controller_reply_url": f"127.0.0.1:{ports[2]}",
                        "lmcache.lmcache_worker_ports": [reserve_port()], "lmcache.lmcache_worker_heartbeat_time": 1,
                        "lmcache.lmcache_worker_heartbeat_delay_time": 0, "lmcache_rpc_port": 3}
            config = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "engine_id": "tests",
                      "kv_connector_extra_config": settings}
            controller = Controller(ports, log)
            found = ["LocalCPUBackend", 512]

            def sees(layout, prompt=tokens):
                return lambda: controller.post("lookup", tokens=prompt)[1]["layout_info"] == layout

            def ask_again(prompt):
                """How many of its tokens are found outside the prefix cache."""
                before = server.metric(HITS)
                clear(server, "/admin/cache")
                post(server, {"prompt": prompt, "max_tokens": 4, "temperature": 0})
                return server.metric(HITS) - before

            def has_all_keys():
                with open(log.name, encoding="utf-8") as lines:
                    return lines.read().count("Completed full sync") >= num_syncs
            try:
                with Server("--max-model-len", "1024", "--block-size", "16", "--kv-transfer-config", json.dumps(config),
                            environment={"VLLM_RPC_BASE_PATH": folder}) as server:
                    post(server, {"prompt": tokens, "max_tokens": 4, "temperature": 0})
                    wait_until(sees({"troupe": found}), "the prompt's chunks")
                    _, answer = controller.post("query_worker_info", instance_id="troupe")
                    self.assertEqual([(each["worker_id"], each["ip"], each["port"]) for each in answer["worker_infos"]],
                                     [(0, "127.0.0.1", settings["lmcache.lmcache_worker_ports"][0])])
                    self.assertEqual(controller.post("health", instance_id="troupe")[1]["error_codes"], {"0": 0})
                    # What is pinned is not cleared; another prompt is.
                    other = tokens[300:0:-1]
                    ask_again(other)
                    wait_until(sees({"troupe": [found[0], 256]}, other), "the other prompt's chunk")
                    for verb, location, number in (("pin", found[0], 512), ("clear", found[0], 256),
                                                   ("clear", "LocalDiskBackend", 0)):
                        body = {"tokens": tokens} if verb == "pin" else {}
                        _, answer = controller.post(verb, instance_id="troupe", location=location, **body)
                        self.assertEqual(answer["num_tokens"], number, verb)
                    wait_until(sees({}, other), "the other prompt to be gone")
                    self.assertEqual((ask_again(other), ask_again(tokens)), (0, 512))
                    status, answer = controller.post("compress", instance_id="troupe", location=found[0], method="cachegen",
                                                     tokens=tokens)
                    self.assertEqual((status, "not supported" in answer), (500, True), answer)
                    num_syncs = 2  # of the memory and of the disk
                    wait_until(has_all_keys, "a full synchronisation")
                    controller.kill()
                    controller = Controller(ports, log)
                    wait_until(sees({"troupe": found}), "the chunks after the controller's restart")
                    num_syncs = 4
                    wait_until(has_all_keys, "a full synchronisation after the restart")
                    self.assertTrue(sees({"troupe": found})())
                    self.assertIn("512 tokens are there", lookup(folder, tokens))
                wait_until(sees({}), "an instance that is gone")
            finally:
                controller.kill()

    @unittest.skipUnless(os.environ.get("LMCACHE_PYTHON"), "LMCACHE_PYTHON names no Python that has lmcache")
    def test_the_asynchronous_lookup_client_of_lmcache_finds_a_prompt(self):
        tokens = [5 + i % 97 for i in range(600)]
        settings = {"lmcache.pre_caching_hash_algorithm": "builtin", "lmcache.extra_config": {"troupe_vllm_hashes": False},
                    "lmcache.max_local_cpu_size": 0.5, "lmcache.enable_async_loading": True, "lmcache_rpc_port": 3}
        config = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "engine_id": "tests",
                  "kv_connector_extra_config": settings}
        with tempfile.TemporaryDirectory() as folder, \
                Server("--max-model-len", "1024", "--block-size", "16", "--kv-transfer-config", json.dumps(config),
                       environment={"VLLM_RPC_BASE_PATH": folder}) as server:
            post(server, {"prompt": tokens, "max_tokens": 4, "temperature": 0})
            self.assertIn("512 tokens are there", lookup(folder, tokens, "async"))


if __name__ == "__main__":
    unittest.main()
