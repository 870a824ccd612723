#!/usr/bin/env python3
"""The same requests, some with images, give the same tokens and log-probabilities, bit for bit, whatever happens around
them: alone or all at once, prefilled in pieces, from the prefix cache, preempted for want of blocks, with steps that overlap or not, with drafts, on one thread
or two, by one worker or by several that share the layers (tensor parallel) or take turns (pipeline parallel)."""
import base64
import json
import os
import pathlib
import re
import shutil
import tempfile
import unittest

from support import SAMPLES, run, wait_until

MODELS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models" / "models"
HEADS = MODELS.parents[1] / "draft_heads"
DEMO = pathlib.Path(__file__).resolve().parents[2] / "tools" / "demo_model" / "model"
DEVICE = os.environ.get("TROUPE_TEST_DEVICE", "cuda-emulated")  # or cuda, a GPU
SHARED = "Tell me a story about a dragon. What is the capital of France? Count from 1 to 10. " * 3


def requests():
    """Greedy and sampled requests of several lengths; some share a long prefix, some have their prompt scored, or parameters
    that look back at the tokens before."""
    lines = []
    for number in range(12):
        body = {"max_tokens": 40, "ignore_eos": True, "logprobs": 3, "seed": number,
                "temperature": 0.0 if number % 2 else 0.9, "top_p": 0.95}
        if number % 3 == 0:
            body["messages"] = [{"role": "user", "content": f"What is {number} + 48? " * (number + 1)}]
            body["logprobs"], body["top_logprobs"] = True, 3
        else:
            body["prompt"] = SHARED * (number % 3) + "Once upon a time " * number
        if number % 4 == 1:
            body["prompt_logprobs"] = 2
        if number % 4 == 2:
            body.update(repetition_penalty=1.2, presence_penalty=0.5, bad_words=["the", "time"])
        if number == 7:
            body.update(ignore_eos=False, stop=["a", "e", "."], min_tokens=12)
        lines.append(json.dumps(body))
    return lines + image_requests()


def image_requests():
    """The demo model's images have 16 tokens each."""
    lines = []
    for number, names in enumerate((("red_circle",), ("two_stars", "red_circle"), ("red_circle", "four_shapes", "red_circle"))):
        parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(
            (SAMPLES / (name + ".png")).read_bytes()).decode()}} for name in names]
        parts.insert(number, {"type": "text", "text": "What is in the picture? " * (1 + 5 * number)})
        lines.append(json.dumps({"messages": [{"role": "user", "content": parts}], "max_tokens": 40, "ignore_eos": True,
                                 "logprobs": True, "top_logprobs": 3, "seed": number, "temperature": 0.5 * number}))
    return lines


def token_requests():
    """For models whose tokenizers are only a stand-in."""
    lines = []
    for number in range(6):
        prompt = [(7 * number + 13 * position) % 600 + 5 for position in range(3 + 17 * number)]
        body = {"prompt": prompt, "max_tokens": 24, "ignore_eos": True, "logprobs": 3, "seed": number,
                "temperature": 0.0 if number % 2 else 0.9}
        if number == 3:
            body["prompt_logprobs"] = 2
        lines.append(json.dumps(body))
    return lines


DRAFTS = json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3})

WORKERS = {
    "2 share the layers": ("--tensor-parallel-size", "2"),
    "4 share the layers": ("--tensor-parallel-size", "4"),
    "2 share the layers, drafts": ("--tensor-parallel-size", "2", "--speculative-config", DRAFTS),
    "2 stages": ("--pipeline-parallel-size", "2"),
    "2 stages, one step at a time": ("--pipeline-parallel-size", "2", "--no-async-scheduling"),
    "2 stages, drafts": ("--pipeline-parallel-size", "2", "--speculative-config", DRAFTS),
    "2 stages of 2, drafts, few blocks": (
        "--pipeline-parallel-size", "2", "--tensor-parallel-size", "2", "--speculative-config", DRAFTS, "--max-model-len", "512",
        "--num-gpu-blocks-override", "120", "--max-num-batched-tokens", "64"),
    "2 stages of 2, few blocks": ("--pipeline-parallel-size", "2", "--tensor-parallel-size", "2", "--max-model-len", "512",
                                  "--num-gpu-blocks-override", "120", "--max-num-batched-tokens", "64"),
}


def generate(lines, *arguments):
    code, output, errors = run(["generate", "--max-num-seqs", "16", "--generation-config", "vllm", "--log-level", "warning",
                                *arguments], "\n".join(lines) + "\n")
    if code != 0:
        raise AssertionError(f"{arguments}: {errors}\n{output[:2000]}")
    # Numbers are compared as they were written: to the last digit.
    answers = [json.loads(line, parse_float=str) for line in output.splitlines()]
    return [(answer["choices"], answer.get("prompt_logprobs")) for answer in answers]


def available_instruction_sets():
    sets = []
    for name in ("scalar", "avx2", "avx512", "amx"):
        code, _, errors = run(["generate", "--cpu-isa", name])
        if code == 0:
            sets.append(name)
        elif "instruction" not in errors and name not in errors:
            raise AssertionError(errors)
    return sets


class Invariance(unittest.TestCase):
    def check(self, isa, dtype):
        base = ("--cpu-isa", isa, "--dtype", dtype)
        lines = requests()
        expected = generate(lines, *base)
        self.assertEqual(len(expected), len(lines))
        variants = {
            "each alone": ("--max-num-seqs", "1", "--no-enable-prefix-caching"),
            "pieces of 16 tokens": ("--max-num-batched-tokens", "16"),
            "pieces of 7 tokens": ("--long-prefill-token-threshold", "7"),
            "no prefix cache": ("--no-enable-prefix-caching",),
            "few blocks": ("--max-model-len", "512", "--num-gpu-blocks-override", "120", "--max-num-batched-tokens", "64"),
            "blocks of 32": ("--block-size", "32"),
            "one thread": ("--threads", "1"),
            "one step at a time": ("--no-async-scheduling",),
            "drafts": ("--speculative-config", DRAFTS),
            "drafts, few blocks": ("--speculative-config", DRAFTS, "--max-model-len", "512", "--num-gpu-blocks-override", "120",
                                   "--max-num-batched-tokens", "64"),
            "one step at a time, few blocks": ("--no-async-scheduling", "--max-model-len", "512", "--num-gpu-blocks-override", "120",
                                               "--max-num-batched-tokens", "64"),
        }
        for name, arguments in variants.items():
            with self.subTest(isa=isa, dtype=dtype, variant=name):
                self.assertEqual(generate(lines, *base, *arguments), expected)
        with self.subTest(isa=isa, dtype=dtype, variant="from the prefix cache"):
            twice = generate(lines + lines, *base, "--max-num-seqs", "2")
            self.assertEqual(twice[:len(lines)], expected)
            self.assertEqual(twice[len(lines):], expected)
        with self.subTest(isa=isa, dtype=dtype, variant="other order"):
            self.assertEqual(generate(lines[::-1], *base)[::-1], expected)

    def test_every_instruction_set_of_this_machine(self):
        sets = available_instruction_sets()
        self.assertIn("scalar", sets)
        for isa in sets:
            self.check(isa, "bfloat16")
        self.check(sets[-1], "float32")

    def test_a_cache_in_8_bits(self):
        lines = requests()
        isa = available_instruction_sets()[-1]
        wide = generate(lines, "--cpu-isa", isa)
        for kv_cache_dtype in ("int8", "fp8"):
            base = ("--cpu-isa", isa, "--kv-cache-dtype", kv_cache_dtype)
            expected = generate(lines, *base)
            self.assertNotEqual(expected, wide)
            variants = {
                "each alone, pieces of 7 tokens": ("--max-num-seqs", "1", "--long-prefill-token-threshold", "7"),
                "no prefix cache, blocks of 32": ("--no-enable-prefix-caching", "--block-size", "32"),
                "drafts, few blocks": ("--speculative-config", DRAFTS, "--max-model-len", "512", "--num-gpu-blocks-override", "120",
                                       "--max-num-batched-tokens", "64"),
                "2 share the layers": ("--tensor-parallel-size", "2"),
            }
            for name, arguments in variants.items():
                with self.subTest(kv_cache_dtype=kv_cache_dtype, variant=name):
                    self.assertEqual(generate(lines, *base, *arguments), expected)
            with self.subTest(kv_cache_dtype=kv_cache_dtype, variant="from the prefix cache"):
                self.assertEqual(generate(lines + lines, *base, "--max-num-seqs", "2"), expected + expected)

    def test_a_draft_model(self):
        lines = requests()
        base = ("--cpu-isa", available_instruction_sets()[-1])
        expected = generate(lines, *base)
        drafts = ("--speculative-config", json.dumps({"model": str(DEMO), "num_speculative_tokens": 3}))
        for name, arguments in {
                "all at once": (),
                "one step at a time": ("--no-async-scheduling",),
                "few blocks": ("--max-model-len", "512", "--num-gpu-blocks-override", "120", "--max-num-batched-tokens", "64"),
                "pieces of 7 tokens, blocks of 32": ("--long-prefill-token-threshold", "7", "--block-size", "32"),
                "2 share the layers": ("--tensor-parallel-size", "2"),
                "2 stages": ("--pipeline-parallel-size", "2"),
                "4 share the layers, few blocks": ("--tensor-parallel-size", "4", "--max-model-len", "512",
                                                   "--num-gpu-blocks-override", "120", "--max-num-batched-tokens", "64"),
        }.items():
            with self.subTest(drafts=name):
                self.assertEqual(generate(lines, *base, *drafts, *arguments), expected)
        with self.subTest(drafts="from the prefix cache"):
            self.assertEqual(generate(lines + lines, *base, *drafts, "--max-num-seqs", "2"), expected + expected)

    def test_draft_heads(self):
        """EAGLE, EAGLE-3 and the layer of a checkpoint that predicts further tokens."""
        lines = token_requests()
        with tempfile.TemporaryDirectory() as folder:
            mtp = pathlib.Path(folder) / "deepseek_v3"
            shutil.copytree(MODELS / "deepseek_v3", mtp)
            shutil.copyfile(HEADS / "deepseek_v3_mtp" / "model.safetensors", mtp / "mtp.safetensors")
            shutil.copyfile(HEADS / "deepseek_v3_mtp" / "config.json", mtp / "config.json")
            eagle, eagle3 = ({"method": method, "model": str(HEADS / f"llama_{method}")} for method in ("eagle", "eagle3"))
            few_blocks = ("--max-model-len", "256", "--num-gpu-blocks-override", "30", "--max-num-batched-tokens", "64")
            for model, config in ((MODELS / "llama", eagle), (MODELS / "llama", eagle3), (mtp, {"method": "mtp"})):
                expected = generate(lines, str(model))
                drafts = ("--speculative-config", json.dumps({**config, "num_speculative_tokens": 3}))
                for name, arguments in {
                        "all at once": (),
                        "one step at a time, few blocks": ("--no-async-scheduling", *few_blocks),
                        "few blocks": few_blocks,
                        "pieces of 7 tokens, blocks of 32": ("--long-prefill-token-threshold", "7", "--block-size", "32"),
                        "2 share the layers": ("--tensor-parallel-size", "2"),
                        **({} if config is eagle3 else {
                            "2 stages of 2": ("--pipeline-parallel-size", "2", "--tensor-parallel-size", "2")}),
                }.items():
                    with self.subTest(method=config["method"], variant=name):
                        self.assertEqual(generate(lines, str(model), *drafts, *arguments), expected)
                with self.subTest(method=config["method"], variant="from the prefix cache"):
                    self.assertEqual(generate(lines + lines, str(model), *drafts, "--max-num-seqs", "2"), expected + expected)

    def test_any_number_of_workers(self):
        lines = requests()
        sets = available_instruction_sets()
        for isa, dtype in [(isa, "bfloat16") for isa in sets] + [(sets[-1], "float32")]:
            base = ("--cpu-isa", isa, "--dtype", dtype)
            expected = generate(lines, *base)
            self.assertEqual(len(expected), len(lines))
            for name, arguments in WORKERS.items():
                with self.subTest(isa=isa, dtype=dtype, workers=name):
                    self.assertEqual(generate(lines, *base, *arguments), expected)

    def test_any_number_of_workers_for_models_of_all_families(self):
        """Biases, one KV head for all ranks, heads that can be divided by two only."""
        lines = token_requests()
        for folder, sizes in {"gemma3_text": (2, 4), "llama": (2, 4), "mistral": (2, 4), "qwen2": (2,), "qwen3": (2, 4),
                              "mixtral": (2, 4), "qwen3_moe": (2, 4)}.items():
            expected = generate(lines, str(MODELS / folder))
            self.assertEqual(len(expected), len(lines))
            for size in sizes:
                for arguments in (("--tensor-parallel-size", str(size)),
                                  ("--tensor-parallel-size", str(size), "--pipeline-parallel-size", "3")):
                    with self.subTest(model=folder, arguments=arguments):
                        self.assertEqual(generate(lines, str(MODELS / folder), *arguments), expected)

    def test_layers_with_states(self):
        """Prefills end where states are cached, drafts are taken back, and heads of state spaces are shared."""
        lines = []
        for number in range(5):
            prompt = [(7 * (position % 31) + 3) % 500 for position in range(40 + 30 * number)]
            lines.append(json.dumps({"prompt": prompt, "max_tokens": 16, "ignore_eos": True, "logprobs": 2, "seed": number,
                                     "temperature": 0.0 if number % 2 else 0.9}))
        for folder in ("mamba2", "bamba", "falcon_h1"):
            base = (str(MODELS / folder), "--max-model-len", "512")
            expected = generate(lines, *base)
            self.assertEqual(len(expected), len(lines))
            for name, arguments in {
                    "each alone, no prefix cache": ("--max-num-seqs", "1", "--no-enable-prefix-caching"),
                    "pieces of 16 tokens": ("--max-num-batched-tokens", "16"),
                    "few blocks": ("--num-gpu-blocks-override", "24", "--max-num-batched-tokens", "64"),
                    "drafts": ("--speculative-config", DRAFTS),
                    "2 share the layers, drafts": ("--tensor-parallel-size", "2", "--speculative-config", DRAFTS),
                    "2 stages": ("--pipeline-parallel-size", "2"),
            }.items():
                with self.subTest(model=folder, variant=name):
                    self.assertEqual(generate(lines, *base, *arguments), expected)
            with self.subTest(model=folder, variant="from the prefix cache"):
                self.assertEqual(generate(lines + lines, *base, "--max-num-seqs", "2"), expected + expected)

    def test_an_emulated_device(self):
        """The CUDA kernels, compiled for the CPU, with device memory of their own."""
        lines = [json.dumps({**json.loads(line), "max_tokens": 3}) for line in token_requests()[:4]]
        base = (str(MODELS / "qwen3"), "--device", DEVICE)
        expected = generate(lines, *base)
        self.assertEqual(len(expected), len(lines))
        for name, arguments in {
                "each alone, pieces of 7 tokens": ("--max-num-seqs", "1", "--long-prefill-token-threshold", "7"),
                "blocks of 32, no prefix cache": ("--block-size", "32", "--no-enable-prefix-caching"),
                "few blocks": ("--max-model-len", "128", "--num-gpu-blocks-override", "10", "--max-num-batched-tokens", "64"),
                "one step at a time": ("--no-async-scheduling",),
                "drafts": ("--speculative-config", DRAFTS),
                "2 share the layers": ("--tensor-parallel-size", "2"),
                "2 stages of 2": ("--pipeline-parallel-size", "2", "--tensor-parallel-size", "2"),
        }.items():
            with self.subTest(variant=name):
                self.assertEqual(generate(lines, *base, *arguments), expected)
        with self.subTest(variant="from the prefix cache"):
            self.assertEqual(generate(lines + lines, *base, "--max-num-seqs", "2"), expected + expected)

    def test_experts_quantised_weights_and_an_8_bit_cache_on_an_emulated_device(self):
        lines = [json.dumps({**json.loads(line), "max_tokens": 2}) for line in token_requests()[:2]]
        base = (str(MODELS / "mixtral"), "--device", DEVICE, "--quantization", "int4", "--kv-cache-dtype", "fp8")
        expected = generate(lines, *base)
        self.assertEqual(len(expected), len(lines))
        for name, arguments in {
                "each alone, pieces of 7 tokens": ("--max-num-seqs", "1", "--long-prefill-token-threshold", "7"),
                "2 share the layers": ("--tensor-parallel-size", "2"),
        }.items():
            with self.subTest(variant=name):
                self.assertEqual(generate(lines, *base, *arguments), expected)

    def test_what_cannot_be_divided_is_refused(self):
        for arguments, reason in {("--tensor-parallel-size", "3"): "tensor-parallel-size 3: 4 attention heads cannot be divided",
                                  ("--pipeline-parallel-size", "7"): "pipeline-parallel-size 7: there are 6 layers"}.items():
            code, _, errors = run(["generate", *arguments])
            self.assertNotEqual(code, 0)
            self.assertIn(reason, errors)

    def test_few_blocks_do_preempt(self):
        """The variant above means something: with so few blocks requests are preempted, if they come close to each other."""
        def are_preempted():
            code, _, errors = run(["generate", "--max-num-seqs", "16", "--generation-config", "vllm", "--max-model-len", "512",
                                   "--num-gpu-blocks-override", "120", "--max-num-batched-tokens", "64", "--log-level", "debug"],
                                  "\n".join(requests()) + "\n")
            self.assertEqual(code, 0, errors)
            return re.search(r"step planned .* preempted=[1-9]", errors)
        wait_until(are_preempted, "a preemption")


if __name__ == "__main__":
    unittest.main()
