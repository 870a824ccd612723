#!/usr/bin/env python3
"""Encoders apart from the workers: where images are encoded, and what happens when encoders come and go."""
import itertools
import json
import os
import pathlib
import re
import signal
import tempfile
import threading
import unittest

from encoder_transfer_test import OPTIONS, ask, transfer, transfers
from support import (PATIENT, ROOT, Server, make_certificates, node_of_second_host, node_process, run, second_host, tls_options,
                     wait_until)

CONFIG = ROOT / "configs" / "encoders.conf"
NUM_IMAGES = 6


class Encoders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server(*OPTIONS) as server:
            cls.expected = [ask(server, seed) for seed in range(NUM_IMAGES)]

    def check(self, server):
        self.assertEqual([ask(server, seed) for seed in range(NUM_IMAGES)], self.expected)

    def test_the_worker_loads_what_encoders_make_over_the_network_and_from_other_stores(self):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
            stores = [("ECNetworkConnector", {}), ("ECExampleConnector", {"shared_storage_path": folder}),
                      ("ECSharedMemoryConnector", {"directory": memory})]
            for store in stores:
                options = transfer(store[0], "ec_consumer", **store[1])
                with self.subTest(store=store), Server(*OPTIONS, *options, *PATIENT, "--config-file", str(CONFIG)) as server:
                    self.check(server)
                    self.check(server)
                    queries, hits, failures, saves = transfers(server)
                    self.assertEqual((hits, failures, saves), (queries, 0, 0))
                    self.assertGreaterEqual(hits, NUM_IMAGES)
                    self.assertEqual(server.stop()[0], 0)

    def test_a_killed_encoder_loses_nothing(self):
        with Server(*OPTIONS, *PATIENT, "--config-file", str(CONFIG)) as server:
            answers = {}
            threads = [threading.Thread(target=lambda s=seed: answers.update({s: ask(server, s)})) for seed in range(NUM_IMAGES)]
            for thread in threads:
                thread.start()
            for name in ("encoder-0", "encoder-1"):
                os.kill(server.nodes()[name], signal.SIGKILL)
            for thread in threads:
                thread.join()
            self.assertEqual([answers[seed] for seed in range(NUM_IMAGES)], self.expected)
            wait_until(lambda: server.log().count("encoder ready") >= 4, "both encoders again")
            before = transfers(server)
            self.check(server)
            self.assertEqual(transfers(server)[2], before[2])
            self.assertEqual(server.log().count("engine restarted"), 0)

    def test_without_an_encoder_the_worker_encodes_and_one_may_join_later(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "optional.conf")
            pathlib.Path(file).write_text(CONFIG.read_text().replace('roles=["encoder"]', 'roles=["encoder"]\noptional=true'))
            options = *OPTIONS, *PATIENT, *transfer("ECNetworkConnector", "ec_consumer")
            with Server(*options, "--config-file", file) as server:
                self.assertEqual([ask(server, seed) for seed in (0, 1)], self.expected[:2])
                self.assertEqual(transfers(server)[1], 0)
                port = re.search(r"waiting for nodes .*port=(\d+)", server.log()).group(1)
                with node_process("encoder-1", file, "--supervisor-port", port, *options) as node:
                    others = itertools.count(NUM_IMAGES)
                    wait_until(lambda: ask(server, next(others)) and transfers(server)[1] > 0, "the encoder to be used")
                    before = transfers(server)[1]
                    self.assertEqual([ask(server, seed) for seed in (2, 3)], self.expected[2:4])
                    self.assertEqual(transfers(server)[1], before + 2)
                    node.kill()
                    self.assertEqual([ask(server, seed) for seed in (4, 5)], self.expected[4:])
                self.assertEqual(transfers(server)[1:3], (before + 2, 0))

    def test_an_encoder_on_another_host_and_one_that_is_cut_off(self):
        topology = re.search(r"\[topology\]\n.*?(?=\n\[)", (ROOT / "configs" / "multi-node.conf").read_text(), re.DOTALL).group(0)
        with tempfile.TemporaryDirectory() as folder, second_host() as link:
            text = re.sub(r"\[node\.encoder-1\].*?\[topology\]\nnode-timeout-s=4\n", topology, CONFIG.read_text(), flags=re.DOTALL)
            file = os.path.join(folder, "encoder-on-host-b.conf")
            pathlib.Path(file).write_text(text.replace('[node.encoder-0]', '[node.encoder-0]\nhost="10.77.0.2"'))
            front, encoder = make_certificates(folder, "front", "encoder"), tls_options(folder, "encoder")
            with node_of_second_host("encoder-0", file, *encoder, *OPTIONS), \
                    Server(*OPTIONS, "--config-file", file, *front) as server:
                self.check(server)
                others = itertools.count(100)
                wait_until(lambda: ask(server, next(others)) and transfers(server)[1] > 0, "the encoder to be used")
                link("down")
                others = [ask(server, seed) for seed in range(NUM_IMAGES, NUM_IMAGES + 2)]
                self.check(server)
                wait_until(lambda: "has been silent" in server.log(), "the silence to be noticed")
                link("up")
            with Server(*OPTIONS) as server:
                self.assertEqual([ask(server, seed) for seed in range(NUM_IMAGES, NUM_IMAGES + 2)], others)

    def test_what_does_not_fit_together_is_refused(self):
        def refused(text, *options, file=str(CONFIG)):
            code, _, errors = run(["serve", "--port", "0", *OPTIONS, "--config-file", file, *options])
            self.assertNotEqual(code, 0)
            self.assertIn(text, errors)
        def transfer(connector, role):
            return "--ec-transfer-config", json.dumps({"ec_connector": connector, "ec_role": role})
        refused("ec_role is ec_producer", *transfer("ECNetworkConnector", "ec_producer"))
        refused("the topology has none", *transfer("ECNetworkConnector", "ec_consumer"),
                file=str(ROOT / "configs" / "multi-process.conf"))
        refused("has no encoder", "--model", str(ROOT / "tests" / "golden" / "models" / "models" / "qwen3"))


if __name__ == "__main__":
    unittest.main()
