#!/usr/bin/env python3
"""Models with sliding windows: the prefix cache changes no bit, and blocks behind the window serve others."""
import json
import pathlib
import random
import unittest

from support import run

MODELS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models" / "models"
BLOCK_SIZE = 16
BUDGET = 32  # tokens of a step; two steps may be in flight
VOCABULARY = 500


def generate(model, bodies, *arguments):
    """The answers, numbers as they were written, and the log."""
    code, output, errors = run(
        ["generate", str(MODELS / model), "--block-size", str(BLOCK_SIZE), "--max-model-len", "800",
         "--max-num-batched-tokens", str(BUDGET), "--generation-config", "vllm",
         "--log-level", "debug", "--max-num-seqs", "1", *arguments],
        "".join(json.dumps(body) + "\n" for body in bodies), timeout=600)
    if code != 0:
        raise AssertionError(f"{model} {arguments}: {errors[-2000:]}")
    return [json.loads(line, parse_float=str) for line in output.splitlines()], errors


def body(prompt, max_tokens, number):
    return {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "logprobs": 3, "seed": number,
            "temperature": 0.0 if number % 2 else 0.8}


class SlidingWindows(unittest.TestCase):
    def test_the_prefix_cache_changes_no_bit(self):
        numbers = random.Random(5)
        shared = [numbers.randrange(5, VOCABULARY) for _ in range(200)]
        bodies = [body(shared[:length] + [numbers.randrange(5, VOCABULARY) for _ in range(own)], 24, length + own)
                  for length in (0, 16, 40, 96, 199) for own in (1, 17, 70)]
        for model in ("mistral", "gemma3_text"):
            with self.subTest(model=model):
                expected, _ = generate(model, bodies, "--no-enable-prefix-caching")
                # Everything twice: whichever of two equal requests comes later finds the other's prompt.
                cached, _ = generate(model, bodies + bodies, "--enable-prefix-caching")
                for i, answer in enumerate(cached):
                    self.assertEqual(answer["choices"], expected[i % len(bodies)]["choices"], i)
                hits = [answer["usage"]["cached_tokens"] for answer in cached]
                for request, *pair in zip(bodies, hits, hits[len(bodies):]):
                    if len(request["prompt"]) > 2 * BLOCK_SIZE:
                        self.assertGreater(max(pair), 0, len(request["prompt"]))

    def test_blocks_behind_the_window_are_free(self):
        """A pool that could not hold the sequence in every group is enough, without a preemption."""
        numbers = random.Random(6)
        request = [body([numbers.randrange(5, VOCABULARY) for _ in range(600)], 200, 1)]
        blocks_of_all = -(-800 // BLOCK_SIZE)
        for model, num_full_groups in (("mistral", 0), ("gemma3_text", 1)):
            with self.subTest(model=model):
                expected, log = generate(model, request)
                num_groups = int(log.split("kv_groups=")[1].split()[0])
                window = json.loads((MODELS / model / "config.json").read_text())["sliding_window"]
                blocks_of_window = -(-(window - 1 + 2 * BUDGET) // BLOCK_SIZE) + 1
                enough = 1 + num_full_groups * blocks_of_all + (num_groups - num_full_groups) * blocks_of_window
                self.assertLess(enough, num_groups * blocks_of_all // 2 + num_full_groups * blocks_of_all)
                answers, log = generate(model, request, "--num-gpu-blocks-override", str(enough))
                self.assertEqual(answers[0]["choices"], expected[0]["choices"])
                self.assertEqual(answers[0]["usage"]["completion_tokens"], 200)
                self.assertNotRegex(log, r"preempted=[1-9]")


if __name__ == "__main__":
    unittest.main()
