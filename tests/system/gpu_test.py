#!/usr/bin/env python3
"""Serving on a GPU: streams at once have the bits of each alone, also when a worker is killed, and when NCCL has transferred their
prefill from another server. Ends with status 77, which CTest shows as skipped, where there is no GPU."""
import json
import os
import signal
import sys
import threading
import unittest

from disaggregation_test import CONFIGS, HITS, NUM_PROMPTS, OPTIONS, PROMPT_TOKENS, choices, fields_of, peer, post
from support import PATIENT, Server, run, wait_until

GPU = (*OPTIONS, "--device", "cuda", "--gpu-memory-utilization", "0.2")


class Gpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server(*GPU) as server:
            cls.expected = [choices(post(server, fields_of(seed))) for seed in range(NUM_PROMPTS)]
        assert cls.expected[0] != cls.expected[2]

    def check(self, server, seeds=range(NUM_PROMPTS)):
        found = {}
        threads = [threading.Thread(target=lambda s=seed: found.update({s: choices(post(server, fields_of(s)))})) for seed in seeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([found[seed] for seed in seeds], [self.expected[seed] for seed in seeds])

    def test_streams_at_once(self):
        for options in ((), ("--max-num-batched-tokens", "32", "--max-num-seqs", "16"), ("--tensor-parallel-size", "2")):
            with self.subTest(options=options), Server(*GPU, *options) as server:
                self.check(server)
                self.check(server)  # from the prefix cache
                self.assertEqual(server.wait_idle(), 0)

    def test_a_worker_that_is_killed(self):
        with Server("--config-file", str(CONFIGS / "multi-process.conf"), *GPU, *PATIENT) as server:
            self.check(server)
            restarts = server.log().count("engine restarted")
            checks = threading.Thread(target=self.check, args=(server,))
            checks.start()
            os.kill(next(pid for name, pid in server.nodes().items() if name.startswith("worker")), signal.SIGKILL)
            checks.join()
            wait_until(lambda: server.log().count("engine restarted") > restarts, "the engine to come up again")
            self.check(server)
            self.assertEqual(server.wait_idle(), 0)

    def test_keys_and_values_go_from_gpu_to_gpu(self):
        """Two servers may share a GPU if NCCL takes them for hosts of their own."""
        prefiller_is, decoder_is = ({"NCCL_HOSTID": name, "NCCL_SOCKET_IFNAME": "lo"} for name in ("prefiller", "decoder"))
        try:
            prefiller = Server(*GPU, *peer(transport="nccl"), environment=prefiller_is)
        except RuntimeError as refused:
            if "transport is nccl, which this build does not have" not in str(refused):
                raise
            self.skipTest("this build has no NCCL")
        with prefiller, Server(*GPU, *peer(transport="nccl", host="127.0.0.1"), environment=decoder_is) as decoder:
            for seed in range(NUM_PROMPTS):
                first = post(prefiller, {**fields_of(seed), "max_tokens": 1, "n": 1, "kv_transfer_params": {
                    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
                    "remote_host": None, "remote_port": None}})
                self.assertEqual(choices(post(decoder, fields_of(seed, kv_transfer_params=first["kv_transfer_params"]))),
                                 self.expected[seed])
            self.assertGreaterEqual(decoder.metric(HITS), NUM_PROMPTS * (PROMPT_TOKENS - 1))
            self.assertEqual(prefiller.wait_idle(), 0)
            self.assertEqual(decoder.wait_idle(), 0)


if __name__ == "__main__":
    code, _, errors = run(["generate", "--device", "cuda"], json.dumps({"prompt": "a", "max_tokens": 1}) + "\n")
    if code != 0 and "device cuda cannot be used" in errors:
        print("skipped:", errors.strip().splitlines()[-1])
        sys.exit(77)
    unittest.main()
