#!/usr/bin/env python3
"""Prefill apart from decode: within a server, and between servers as vLLM's proxies do it; the same answers as without."""
import itertools
import json
import os
import pathlib
import random
import signal
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from support import DEADLINE_S, PATIENT, Server, make_certificates, node_of_second_host, run, second_host, tls_options, wait_until

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
HITS = "vllm:external_prefix_cache_hits_total"
NUM_PROMPTS, PROMPT_TOKENS = 6, 150
OPTIONS = ("--max-model-len", "256", "--log-stats-interval-s", "0")


def prompt(seed):
    source = random.Random(seed)
    return [source.randrange(10, 500) for _ in range(PROMPT_TOKENS)]


def post(server, fields, path="/v1/completions"):
    request = urllib.request.Request(server.url + path, json.dumps(fields).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        return json.load(response)


def fields_of(seed, **more):
    """Greedy, sampled, and with two samples."""
    return {"prompt": prompt(seed), "max_tokens": 16, "temperature": 0.8 if seed % 2 else 0, "seed": seed, "logprobs": 2,
            "ignore_eos": True, "n": 2 if seed == 1 else 1, **more}


def choices(answer):
    return [(choice["text"], choice["logprobs"], choice["finish_reason"]) for choice in answer["choices"]]


def peer(**extra):
    """Patient: what is counted must not depend on a machine that is slow for a while."""
    return ("--kv-transfer-config", json.dumps({"kv_connector": "PeerConnector", "kv_role": "kv_both",
                                                "kv_connector_extra_config": {"lease_s": 60, "timeout_s": 100, **extra}}))


class Disaggregation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server(*OPTIONS) as server:
            cls.expected = [choices(post(server, fields_of(seed))) for seed in range(NUM_PROMPTS)]
        assert cls.expected[0] != cls.expected[2]

    def check(self, server, min_hits):
        before = server.metric(HITS)
        found = {}
        threads = [threading.Thread(target=lambda s=seed: found.update({s: choices(post(server, fields_of(s)))}))
                   for seed in range(NUM_PROMPTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([found[seed] for seed in range(NUM_PROMPTS)], self.expected)
        self.assertGreaterEqual(server.metric(HITS) - before, min_hits)

    def test_groups_of_a_server_divide_the_work(self):
        with Server("--config-file", str(CONFIGS / "disaggregated.conf"), *OPTIONS, *peer(), *PATIENT,
                    "--disaggregation-threshold", "100") as server:
            self.check(server, NUM_PROMPTS * (PROMPT_TOKENS - 1))
            # The group that decodes has these prompts in its cache now; other ones are too short.
            self.check(server, 0)
            before = server.metric(HITS)
            post(server, {"prompt": prompt(99)[:90], "max_tokens": 4})
            self.assertEqual(server.metric(HITS), before)
            self.assertEqual(server.wait_idle(), 0)
            # Either group is enough.
            for name in ("prefill", "decode"):
                restarts = server.log().count("engine restarted")
                os.kill(server.nodes()[name], signal.SIGKILL)
                self.check(server, 0)
                wait_until(lambda: server.log().count("engine restarted") > restarts, "the group to come up again")
            self.assertEqual(server.wait_idle(), 0)

    def test_groups_of_one_process_do_as_well(self):
        with Server("--data-parallel-size", "2", "--group-roles", "prefill", "--group-roles", "decode", *OPTIONS, *peer(),
                    "--disaggregation-threshold", "1") as server:
            self.check(server, NUM_PROMPTS * (PROMPT_TOKENS - 1))
            # A prompt that neither has goes to one, and from it to the other, as it is asked for.
            prompts = [prompt(77), prompt(78)]

            def cached():
                found = post(server, {"prompts": prompts}, "/admin/cache/lookup")["prompts"]
                return [[group["device"] for group in each["groups"]] for each in found]
            self.assertEqual(cached(), [[0, 0], [0, 0]])
            moved = post(server, {"prompts": prompts, "from": 0, "to": 1}, "/admin/cache/move")
            self.assertEqual((moved["status"], moved["num_computed"], moved["errors"]), ("moved", 2, []))
            for first, second in cached():
                self.assertGreaterEqual(second, PROMPT_TOKENS - 2 * 16 * 4)
                self.assertGreaterEqual(first, PROMPT_TOKENS - 2 * 16 * 4)
            with self.assertRaises(urllib.error.HTTPError) as refused:
                post(server, {"prompts": prompts, "from": 1, "to": 1}, "/admin/cache/move")
            self.assertIn("from and to are the same group", refused.exception.read().decode())
            self.assertEqual(server.wait_idle(), 0)

    def test_a_prompt_of_several_steps_is_transferred_while_it_is_computed(self):
        with Server("--config-file", str(CONFIGS / "disaggregated.conf"), *OPTIONS, *peer(), *PATIENT,
                    "--disaggregation-threshold", "100", "--max-num-seqs", "16", "--max-num-batched-tokens", "32") as server:
            self.check(server, NUM_PROMPTS * (PROMPT_TOKENS - 1))
            self.assertEqual(server.wait_idle(), 0)
            # Of these, nothing is in a cache; the first group ends in the middle.
            restarts = server.log().count("engine restarted")
            found = []
            threads = [threading.Thread(target=lambda s=seed: found.append(choices(post(server, fields_of(s)))))
                       for seed in range(NUM_PROMPTS, 2 * NUM_PROMPTS)]
            for thread in threads:
                thread.start()
            os.kill(server.nodes()["prefill"], signal.SIGKILL)
            for thread in threads:
                thread.join()
            self.assertEqual(len(found), NUM_PROMPTS)
            wait_until(lambda: server.log().count("engine restarted") > restarts, "the group to come up again")
            self.check(server, 0)
            self.assertEqual(server.wait_idle(), 0)

    def test_a_proxy_between_two_servers_of_other_ranks_and_blocks(self):
        with Server(*OPTIONS, *peer(), "--tensor-parallel-size", "2", "--block-size", "32") as prefiller, \
                Server(*OPTIONS, *peer(host="127.0.0.1"), "--block-size", "16") as decoder:
            for seed in range(NUM_PROMPTS):
                # As vLLM's toy_proxy_server sends it.
                first = post(prefiller, {**fields_of(seed), "max_tokens": 1, "n": 1, "kv_transfer_params": {
                    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
                    "remote_host": None, "remote_port": None}})
                params = first["kv_transfer_params"]
                self.assertEqual((params["do_remote_prefill"], params["do_remote_decode"], params["tp_size"]), (True, False, 2))
                self.assertEqual(choices(post(decoder, fields_of(seed, kv_transfer_params=params))), self.expected[seed])
            self.assertGreaterEqual(decoder.metric(HITS), NUM_PROMPTS * (PROMPT_TOKENS - 1))
            # What was loaded once is not there a second time, and is computed.
            self.assertEqual(choices(post(decoder, fields_of(5, kv_transfer_params=params))), self.expected[5])
            self.assertEqual(prefiller.wait_idle(), 0)
            self.assertEqual(decoder.wait_idle(), 0)

    def test_groups_of_two_hosts_and_one_that_is_cut_off(self):
        config, more_seeds = str(CONFIGS / "disaggregated-multi-node.conf"), itertools.count(NUM_PROMPTS)
        with tempfile.TemporaryDirectory() as folder, second_host() as link:
            front, worker = make_certificates(folder, "front", "worker"), tls_options(folder, "worker")
            more = (*OPTIONS, "--disaggregation-threshold", "1")
            with node_of_second_host("prefill", config, *worker, *more), Server("--config-file", config, *front, *more) as server:
                wait_until(lambda: all(group["state"] == "serving" for group in json.loads(server.get("/admin/topology"))["groups"]),
                           "both groups")
                self.check(server, 0)
                wait_until(lambda: post(server, fields_of(next(more_seeds))) and server.metric(HITS) > 0, "a prompt to be transferred")
                link("down")
                self.check(server, 0)
                wait_until(lambda: "has been silent" in server.log(), "the silence to be noticed")
                link("up")

    def test_what_is_wrong_with_the_roles_is_told(self):
        for options, text in ((("--group-roles", "prefill"), "no group has the role decode or both"),
                              (("--group-roles", "prefil"), "'prefil' is not one of both, prefill, decode"),
                              (("--data-parallel-size", "2", "--group-roles", "decode"), "group-roles has 1 roles"),
                              (peer(transport="rdma"), "transport is rdma, it must be host or nccl"),
                              (peer(transport="nccl"), "transport is nccl")):
            code, _, errors = run(["serve", "--port", "0", *options])
            self.assertNotEqual(code, 0)
            self.assertIn(text, errors)


if __name__ == "__main__":
    unittest.main()
