#!/usr/bin/env python3
"""KV connectors from outside: what a small cache has evicted comes back from memory or files, with the same answers."""
import hashlib
import http.client
import json
import pathlib
import random
import struct
import tempfile
import unittest

from support import DEADLINE_S, ROOT, Server, run, wait_until

QUERIES, HITS = "vllm:external_prefix_cache_queries_total", "vllm:external_prefix_cache_hits_total"
NUM_BLOCKS = 60  # one request of the longest, and little more
OPTIONS = ("--num-gpu-blocks-override", str(NUM_BLOCKS), "--max-model-len", "256", "--block-size", "16",
           "--log-stats-interval-s", "0")
PROMPT_TOKENS = 160


def prompt(seed):
    source = random.Random(seed)
    return [source.randrange(10, 500) for _ in range(PROMPT_TOKENS)]


def post(server, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    connection.request("POST", "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    if response.status != 200:
        raise AssertionError(answer)
    return answer


def ask(server, seed, **more):
    """Tokens and log-probabilities."""
    answer = post(server, {"prompt": prompt(seed), "max_tokens": 12, "temperature": 0, "logprobs": 2, "ignore_eos": True, **more})
    return answer["choices"][0]["text"], answer["choices"][0]["logprobs"]


def usage(server, seed, **more):
    """Cached tokens of the prompt, by where they were."""
    body = {"prompt": prompt(seed), "max_tokens": 4, "temperature": 0, **more}
    details = post(server, body)["usage"]["prompt_tokens_details"]
    return details["cached_tokens"], details.get("cached_tokens_by_source")


def transfer(connector, **extra):
    return ("--kv-transfer-config",
            json.dumps({"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra}))


class KVOffload(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server("--max-model-len", "256", "--log-stats-interval-s", "0") as server:
            cls.expected = [ask(server, seed) for seed in range(4)]
        assert cls.expected[0] != cls.expected[1]

    def answer_all(self, server):
        for seed in range(4):
            self.assertEqual(ask(server, seed), self.expected[seed])

    def test_evicted_prefixes_come_back_from_memory(self):
        with Server(*OPTIONS, *transfer("OffloadingConnector", cpu_bytes_to_use=1 << 30)) as server:
            self.answer_all(server)
            self.assertEqual(server.metrics(HITS)[0], 0)
            # Each has evicted those before it.
            self.answer_all(server)
            queries, hits = server.metrics(QUERIES, HITS)
            self.assertGreaterEqual(hits, 3 * 144)
            self.assertGreater(queries, hits)
            # Of another tenant nothing is used.
            self.assertEqual(ask(server, 0, cache_salt="other"), self.expected[0])
            self.assertEqual(server.metrics(HITS)[0], hits)

    def test_files_outlive_the_server(self):
        with tempfile.TemporaryDirectory() as folder:
            options = (*OPTIONS, *transfer("FileConnector", shared_storage_path=folder))
            with Server(*options) as server:
                self.answer_all(server)
            files = sorted(pathlib.Path(folder).rglob("*.bin"))
            self.assertGreaterEqual(len(files), 40)
            with Server(*options) as server:
                self.answer_all(server)
                self.assertGreaterEqual(server.metrics(HITS)[0], 4 * 144)
            for file in files[::5]:
                file.write_bytes(file.read_bytes()[:-7] + b"damaged")
            with Server(*options) as server:
                self.answer_all(server)
                self.assertIn("xxh3_128", server.log())

    def test_prompts_are_kept_in_files_that_vllm_reads_and_writes(self):
        model = str(ROOT / "tests" / "golden" / "models" / "models" / "llama")
        prompts = [[3 + (seed * 31 + i * i * 7 + i) % 80 for i in range(70)] for seed in range(3)]

        def answers(server):
            return [post(server, {"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 2, "ignore_eos": True})
                    ["choices"][0]["logprobs"] for prompt in prompts]

        with tempfile.TemporaryDirectory() as folder:
            options = (model, "--dtype", "float32", "--max-model-len", "256", "--block-size", "16",
                       *transfer("ExampleConnector", shared_storage_path=folder))
            with Server(*options) as server:
                expected = answers(server)
                self.assertEqual(server.metric(HITS), 0)
            for prompt in prompts:
                # align_to_block_size(70) tokens, as 64-bit integers.
                name = hashlib.md5(struct.pack("<64q", *prompt[:64]), usedforsecurity=False).hexdigest()
                files = sorted((pathlib.Path(folder) / name).iterdir())
                self.assertEqual(files[0].name, "model.layers.0.self_attn.attn.safetensors")
                for file in files:
                    content = file.read_bytes()
                    size = int.from_bytes(content[:8], "little")
                    header = json.loads(content[8:8 + size])
                    tensor = header["kv_cache"]
                    self.assertEqual((tensor["dtype"], tensor["shape"][0]), ("F32", 64))
                    # As vLLM writes it: without metadata.
                    bare = json.dumps({"kv_cache": tensor}).encode()
                    bare += b" " * (-len(bare) % 8)
                    file.write_bytes(len(bare).to_bytes(8, "little") + bare + content[8 + size:])
            with Server(*options) as server:
                self.assertEqual(answers(server), expected)
                self.assertEqual(server.metric(HITS), 3 * 64)
        # Layer by layer, from memory, where the cache has room for little more than one of them.
        with Server(model, "--dtype", "float32", "--max-model-len", "128", "--block-size", "16", "--num-gpu-blocks-override",
                    "10", *transfer("OffloadingConnector", use_layerwise=True)) as server:
            for _ in range(2):
                self.assertEqual(answers(server), expected)
            self.assertGreaterEqual(server.metric(HITS), 2 * 64)

    def test_two_ranks_keep_their_own_halves(self):
        with Server(*OPTIONS, "--tensor-parallel-size", "2", *transfer("OffloadingConnector")) as server:
            self.answer_all(server)
            self.answer_all(server)
            self.assertGreaterEqual(server.metrics(HITS)[0], 3 * 144)

    def test_usage_tells_where_tokens_came_from(self):
        with tempfile.TemporaryDirectory() as folder:
            # Memory for one prompt, files for all.
            options = (*OPTIONS, "--enable-prompt-tokens-details", *transfer(
                "OffloadingConnector", num_cpu_blocks=24, secondary_tiers=[{"type": "fs", "root_dir": folder}]))
            with Server(*options) as server:
                for seed in range(6):
                    self.assertEqual(usage(server, seed), (0, None))
                self.assertEqual(usage(server, 0), (144, {"device": 0, "host": 0, "disk": 144, "remote": 0, "peer": 0}))
                for seed in range(6, 12):
                    usage(server, seed)
            with Server(*options) as server:
                self.assertEqual(usage(server, 3)[1]["disk"], 144)
                self.assertEqual(usage(server, 3), (144, None))

    def test_a_session_keeps_its_blocks_until_others_need_the_room(self):
        with Server(*OPTIONS, "--session-ttl-s", "60") as server:
            ask(server, 0)
            self.assertEqual(server.wait_idle(), 0)
            ask(server, 1, session_id="a conversation")
            wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "the request to end")
            self.assertGreater(server.metric("vllm:kv_cache_usage_perc"), 0)
            # There is room for one of them.
            for seed in range(4):
                self.assertEqual(ask(server, seed, session_id=f"session {seed}"), self.expected[seed])

    def test_what_is_wrong_with_the_option_is_told(self):
        for config, text in (({"kv_connector": "Nixl", "kv_role": "kv_both"}, "kv_connector Nixl is unknown"),
                             ({"kv_connector": "OffloadingConnector", "kv_rolle": "x"}, "kv_rolle is unknown")):
            code, _, errors = run(["serve", "--port", "0", "--kv-transfer-config", json.dumps(config)])
            self.assertNotEqual(code, 0)
            self.assertIn(text, errors)


if __name__ == "__main__":
    unittest.main()
