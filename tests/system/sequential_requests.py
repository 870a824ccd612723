#!/usr/bin/env python3
"""Clients that ask one thing after the other, in every mode of the engine: each request follows the answer of the last one at
once, so it meets the engine while that one is still being cleared away. Every answer comes.
Usage: sequential_requests.py [REQUESTS PER MODE]"""
import http.client
import json
import pathlib
import sys
import time
import unittest

from support import DEADLINE_S, Server

DEMO = pathlib.Path(__file__).resolve().parents[2] / "tools" / "demo_model" / "model"
NGRAM = ("--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}))
DRAFT_MODEL = ("--speculative-config", json.dumps({"model": str(DEMO), "num_speculative_tokens": 2}))
TWO_STAGES = ("--pipeline-parallel-size", "2")
MODES = {
    "overlapping steps": (),
    "one step at a time": ("--no-async-scheduling",),
    "ngram drafts": NGRAM,
    "ngram drafts, one step at a time": ("--no-async-scheduling", *NGRAM),
    "drafts of a model": DRAFT_MODEL,
    "drafts of a model, one step at a time": ("--no-async-scheduling", *DRAFT_MODEL),
    "two stages": TWO_STAGES,
    "two stages, one step at a time": (*TWO_STAGES, "--no-async-scheduling"),
    "two stages, ngram drafts": (*TWO_STAGES, *NGRAM),
    "two ranks, ngram drafts": ("--tensor-parallel-size", "2", *NGRAM),
    "two groups, one step at a time": ("--data-parallel-size", "2", "--no-async-scheduling"),
    "few blocks, drafts": ("--num-gpu-blocks-override", "120", "--max-model-len", "512", *NGRAM),
}

NUM_REQUESTS = 60


def ask(connection, number):
    """One request to its end."""
    body = {"prompt": [5 + (number + i) % 200 for i in range(1 + number % 40)], "max_tokens": 1 + number % 4, "ignore_eos": True,
            "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200 or answer["usage"]["completion_tokens"] != body["max_tokens"]:
        raise AssertionError(f"request {number}: {response.status} {answer}")


class SequentialRequests(unittest.TestCase):
    def test_every_request_is_answered(self):
        for name, options in MODES.items():
            with self.subTest(mode=name), Server(*options, "--log-stats-interval-s", "0") as server:
                # An answer takes milliseconds; nothing but another request would wake an engine that sleeps.
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
                begin = time.monotonic()
                for number in range(NUM_REQUESTS):
                    try:
                        ask(connection, number)
                    except TimeoutError:
                        self.fail(f"request {number} had no answer after {DEADLINE_S} s")
                connection.close()
                print(f"{name}: {NUM_REQUESTS} requests in {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        NUM_REQUESTS = int(sys.argv.pop(1))
    unittest.main()
