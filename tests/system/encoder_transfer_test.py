#!/usr/bin/env python3
"""EC connectors from outside: what one server encodes, another one loads, with the same answers."""
import base64
import hashlib
import http.client
import itertools
import json
import os
import pathlib
import signal
import struct
import tempfile
import unittest
import zlib

from support import DEADLINE_S, PATIENT, ROOT, Server, run, wait_until

MODEL = str(ROOT / "tests" / "golden" / "models" / "models" / "gemma3")
OPTIONS = ("--model", MODEL, "--served-model-name", "gemma", "--dtype", "float32", "--max-model-len", "512",
           "--log-stats-interval-s", "0")


def image(seed, size=56):
    """A data: URL of a PNG."""
    rows = b"".join(b"\0" + bytes((x * seed + y * 3 + c * 50) % 256 for x in range(size) for c in range(3))
                    for y in range(size))

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    data = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return "data:image/png;base64," + base64.b64encode(data).decode()


def answer_of(server, seed, **more):
    content = [{"type": "image_url", "image_url": {"url": image(seed)}}, {"type": "text", "text": "What is shown here?"}]
    body = {"model": "gemma", "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0,
            "logprobs": True, "top_logprobs": 2, "ignore_eos": True, **more}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    if response.status != 200:
        raise AssertionError(answer)
    return answer


def identifier_of(seed):
    """As vLLM 0.32 hashes it, with sha256."""
    frames = hashlib.sha256()
    for kind, piece in ((b"", b"image"), (b"\3", b"image"), (b"\3", base64.b64decode(image(seed).split(",")[1])),
                        (b"", b"model_id"), (b"\3", MODEL.encode())):
        frames.update(kind + struct.pack("<Q", len(piece)) + piece)
    return frames.hexdigest()


def ask(server, seed, **more):
    """The text, with its log-probabilities."""
    choice = answer_of(server, seed, **more)["choices"][0]
    return choice["message"]["content"], choice["logprobs"]


def transfer(connector, role, **extra):
    """Patient: what is counted must not depend on a machine that is slow for a while."""
    return ("--ec-transfer-config", json.dumps({"ec_connector": connector, "ec_role": role,
                                                "ec_connector_extra_config": {"lookup_timeout_s": 100, **extra}}))


def transfers(server):
    """Queries, hits, failures, saves; saves come with a later step."""
    names = ("queries", "hits", "failures", "saves")
    try:
        return tuple(map(int, server.metrics(*(f"troupe:encoder_transfer_{name}_total" for name in names))))
    except KeyError:
        return 0, 0, 0, 0


class EncoderTransfer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server(*OPTIONS) as server:
            cls.expected = [ask(server, seed) for seed in (1, 2)]
        assert cls.expected[0] != cls.expected[1]

    def test_files_of_one_server_are_loaded_by_another_one(self):
        options = *OPTIONS, "--mm-hasher-algorithm", "sha256"
        with tempfile.TemporaryDirectory() as folder:
            place = {"shared_storage_path": folder}
            with Server(*options, *transfer("ECExampleConnector", "ec_producer", **place)) as producer:
                self.assertEqual([ask(producer, seed) for seed in (1, 2)], self.expected)
                params = answer_of(producer, 1)["ec_transfer_params"]
                self.assertEqual(list(params.values()), [{"num_encoder_tokens": 4}])
                files = lambda: sorted(pathlib.Path(folder).glob("*/encoder_cache.safetensors"))
                wait_until(lambda: len(files()) == 2, "the files")
            self.check_files(files())
            self.assertEqual(list(params), [identifier_of(1)])
            self.assertEqual({file.parent.name for file in files()}, {identifier_of(1), identifier_of(2)})
            with Server(*options, *transfer("ECExampleConnector", "ec_consumer", **place)) as consumer:
                self.assertEqual([ask(consumer, seed) for seed in (1, 2)], self.expected)
                self.assertEqual(transfers(consumer), (2, 2, 0, 0))
                self.assertIsNone(answer_of(consumer, 1)["ec_transfer_params"])
            for file, size in zip(files(), (100, 0)):
                os.truncate(file, size)
            with Server(*options, *transfer("ECExampleConnector", "ec_both", **place)) as repairing:
                self.assertEqual([ask(repairing, seed) for seed in (1, 2)], self.expected)
                self.assertEqual(transfers(repairing)[:3], (2, 2, 2))
                self.assertEqual(repairing.log().count("encoder output not loaded: the item is encoded"), 2)
            self.check_files(files())

    def check_files(self, files):
        """As the library reads them, where it is installed."""
        try:
            from safetensors.numpy import load_file
        except ImportError:
            return
        for file in files:
            tensors = load_file(file)
            self.assertEqual(list(tensors), ["ec_cache"])
            self.assertEqual(tensors["ec_cache"].shape, (4, 64))
            self.assertEqual(tensors["ec_cache"].dtype.name, "float32")

    def test_memory_before_files_outlives_the_server(self):
        with tempfile.TemporaryDirectory() as folder:
            config = transfer("ECTieredConnector", "ec_both", shared_storage_path=folder)
            with Server(*OPTIONS, *config, "--config-file", str(ROOT / "configs" / "multi-process.conf")) as server:
                self.assertEqual([ask(server, seed) for seed in (1, 2)], self.expected)
                wait_until(lambda: len(list(pathlib.Path(folder).glob("*/encoder_cache.safetensors"))) == 2, "the files")
            with Server(*OPTIONS, *config, "--config-file", str(ROOT / "configs" / "multi-process.conf")) as server:
                self.assertEqual([ask(server, seed) for seed in (1, 2)], self.expected)
                self.assertEqual(transfers(server)[:3], (2, 2, 0))

    def test_shared_memory_outlives_a_killed_worker_and_not_the_server(self):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            config = transfer("ECSharedMemoryConnector", "ec_both", directory=folder)
            with Server(*OPTIONS, *config, *PATIENT, "--config-file", str(ROOT / "configs" / "multi-process.conf")) as server:
                self.assertEqual(ask(server, 1), self.expected[0])
                wait_until(lambda: len(list(pathlib.Path(folder).glob("*/output-*"))) == 1, "the segment")
                os.kill(server.nodes()["worker-0"], signal.SIGKILL)
                self.assertEqual(ask(server, 1), self.expected[0])
                self.assertEqual(transfers(server)[1:3], (1, 0))
                self.assertEqual(ask(server, 2), self.expected[1])
            self.assertEqual(os.listdir(folder), [])

    def test_engines_of_one_process_share_their_memory(self):
        with Server(*OPTIONS, *transfer("ECMemoryConnector", "ec_both"), "--data-parallel-size", "2") as server:
            seeds = itertools.count(1)

            def is_shared():
                """What the first has saved by now, the second does not encode."""
                seed = next(seeds)
                self.assertEqual(ask(server, seed, data_parallel_rank=0), ask(server, seed, data_parallel_rank=1))
                return transfers(server)[1] > 0
            wait_until(is_shared, "an output to be used by the other engine")
            self.assertEqual(transfers(server)[2], 0)

    def test_what_is_wrong_with_the_option_is_said_by_key_and_value(self):
        def refused(value, text, option="--ec-transfer-config"):
            code, _, errors = run(["serve", "--port", "0", *OPTIONS, option, value])
            self.assertNotEqual(code, 0)
            self.assertIn(text, errors)
        refused('{"encoder_cache_manager_cls": "ScoreEncoderCacheManager"}',
                "encoder_cache_manager_cls is ScoreEncoderCacheManager, there are EncoderCacheManager, LruEncoderCacheManager",
                "--ec-manager-config")
        refused('{"ec_connector": "ECExampleConnector"}', "ec_role is missing")
        refused('{"ec_connector": "X", "ec_role": "ec_both", "ec_size": 1}', "ec_size is unknown")
        refused('{"ec_connector": "X", "ec_role": "ec_both"}',
                "ec_connector X is unknown, there are ECExampleConnector, ECMemoryConnector, ECSharedMemoryConnector")
        refused('{"ec_connector": "ECMemoryConnector", "ec_role": "ec_both", "ec_connector_extra_config": {"x": 1}}',
                "ec_connector_extra_config: x is unknown")
        refused('{"ec_connector": "X", "ec_role": "ec_both", "ec_connector_module_path": "/no/x.so"}',
                "ec_connector_module_path /no/x.so: ")


if __name__ == "__main__":
    unittest.main()
