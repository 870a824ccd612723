#!/usr/bin/env python3
"""Draft heads in a server: what is generated is the same as without them, also under a grammar and after a crash, and what
came true of their guesses is in /metrics by place."""
import concurrent.futures
import json
import os
import pathlib
import signal
import unittest
import urllib.request

from support import DEADLINE_S, Server, is_running, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
PROMPTS = json.loads((GOLDEN / "models" / "goldens" / "llama" / "golden.json").read_text())["prompts"]
MODEL = (str(GOLDEN / "models" / "models" / "llama"), "--served-model-name", "m", "--dtype", "float32")
REGEX = {"structured_outputs": {"regex": "([a-z]{1,3} ){3,9}x"}, "ignore_eos": False}
NUM_REQUESTS = 8


def ask(server, number, fields):
    """Every other one is sampled."""
    body = {"model": "m", "prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": 40, "ignore_eos": True, "logprobs": 2,
            "temperature": 0 if number % 2 else 0.9, "seed": number, **fields}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        return [(choice["text"], choice["logprobs"]) for choice in json.load(response)["choices"]]


def answers(server, **fields):
    with concurrent.futures.ThreadPoolExecutor(NUM_REQUESTS) as pool:
        return list(pool.map(lambda number: ask(server, number, fields), range(NUM_REQUESTS)))


class DraftHeads(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server(*MODEL) as server:
            cls.expected, cls.of_regex = answers(server), answers(server, **REGEX)
            cls.long = answers(server, max_tokens=160)

    def check(self, method):
        config = {"method": method, "model": str(GOLDEN / "draft_heads" / f"llama_{method}"), "num_speculative_tokens": 3,
                  "adaptive": False}  # these heads know little, and would not be asked
        options = (*MODEL, "--speculative-config", json.dumps(config))
        with Server(*options) as server:
            self.assertEqual(answers(server), self.expected)
            self.assertEqual(answers(server, **REGEX), self.of_regex)
            drafts, drafted, accepted, by_place = server.metrics(*(f"vllm:spec_decode_num_{what}_total" for what in (
                "drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")))
            self.assertLessEqual(drafted, 3 * drafts)
            self.assertLess(0, accepted)
            self.assertLess(accepted, drafted)
            self.assertEqual(accepted, by_place)
        with Server(*options, "--config-file", str(ROOT / "configs" / "multi-process.conf")) as server:
            for victim in "worker", "core":
                with self.subTest(victim=victim), concurrent.futures.ThreadPoolExecutor(1) as pool:
                    asked = pool.submit(answers, server, max_tokens=160)
                    wait_until(lambda: asked.done() or server.metric("vllm:num_requests_running") > 0, "running requests")
                    pid = next(pid for name, pid in server.nodes().items() if name.startswith(victim))
                    os.kill(pid, signal.SIGKILL)
                    wait_until(lambda: not is_running(pid), "the end of a process")
                    self.assertEqual(asked.result(), self.long)

    def test_eagle(self):
        self.check("eagle")

    def test_eagle3(self):
        self.check("eagle3")


if __name__ == "__main__":
    unittest.main()
