#!/usr/bin/env python3
"""Every command of the binary as a user would call it, with the demo model. Python's standard library only."""
import json
import os
import pathlib
import pty
import select
import subprocess
import tempfile
import time
import unittest

from support import BINARY, DEADLINE_S, ENVIRONMENT, Server, run

MODEL = str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "demo_model" / "model")
WHO = "I am the Troupe demo model, a tiny language model that can chat, count, add numbers and describe simple pictures."
FRANCE = "The capital of France is Paris."


def troupe(*arguments, stdin="", environment=None):
    """(exit code, standard output, standard error)"""
    return run(arguments, stdin, environment=environment)


def json_lines(*objects):
    return "".join(json.dumps(each) + "\n" for each in objects)


def user(text):
    return [{"role": "user", "content": text}]


class HelpAndOptions(unittest.TestCase):
    def test_help_names_every_command(self):
        code, out, _ = troupe("--help")
        self.assertEqual(code, 0)
        for command in ("serve", "chat", "generate", "bench", "tokenize", "render", "config"):
            self.assertIn(f"\n  {command} ", out)
            code, text, errors = troupe(command, "--help")
            self.assertEqual((code, errors), (0, ""), command)
            self.assertIn(f"usage: troupe {command}", text)
            if "--enable-prefix-caching" in text:
                self.assertIn("--no-NAME", text)
        for benchmark in ("latency", "throughput", "serve"):
            code, text, _ = troupe("bench", benchmark, "--help")
            self.assertEqual(code, 0)
            self.assertIn(f"usage: troupe bench {benchmark}", text)
            self.assertIn("--output-json", text)

    def test_version(self):
        code, out, _ = troupe("--version")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"^troupe \d+\.\d+\.\d+\n$")

    def test_wrong_calls_name_what_is_wrong(self):
        for arguments, word in [(["dance"], "dance"), (["generate", "--no-such-option"], "no-such-option"),
                                (["generate", "--max-num-seqs", "many"], "max-num-seqs"),
                                (["generate", "--max-in-flight", "0"], "max-in-flight"),
                                (["chat", "--dtype", "int3"], "dtype"), (["chat", MODEL, "extra"], "extra"),
                                (["bench", "speed"], "speed"), (["bench", "latency", "--num-iters", "0"], "num-iters"),
                                (["bench", "throughput", "--input-len"], "input-len"),
                                (["bench", "serve", "--request-rate", "-1"], "request-rate"),
                                (["bench", "serve", "--percentile-metrics", "speed"], "speed"),
                                (["bench", "serve", "--goodput", "ttft"], "ttft"),
                                (["bench", "serve", "--base-url", "ftp://x"], "ftp://x"),
                                (["chat", "--temperature", "100"], "temperature"),
                                (["chat", "--temperature", "-0.5"], "between 0 and 2"),
                                (["config", "--port", "70000"], "65535")]:
            code, out, errors = troupe(*arguments)
            self.assertEqual(code, 2, arguments)
            self.assertEqual(out, "", arguments)
            self.assertTrue(errors.startswith("troupe: "), errors)
            self.assertIn(word, errors)

    def test_a_model_that_is_not_there_is_named(self):
        for command in (["generate"], ["chat"], ["bench", "latency"], ["tokenize"], ["render"]):
            code, _, errors = troupe(*command, "no/such/folder")
            self.assertEqual(code, 1, command)
            self.assertIn("no/such/folder", errors)

    def test_prompts_that_are_not_split_must_fit_in_a_step(self):
        code, _, errors = troupe("generate", "--no-enable-chunked-prefill", "--max-num-seqs", "4",
                                 "--max-num-batched-tokens", "64")
        self.assertEqual(code, 2)
        self.assertIn("without chunked prefill max-num-batched-tokens, 64, must be at least max-model-len, ", errors)

    def test_config_tells_where_each_value_came_from(self):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write("[engine]\nblock-size = 32\nmax-num-seqs = 4\n")
            file.flush()
            code, out, _ = troupe("config", "--config-file", file.name, "--max-num-seqs", "8",
                                  environment={"TROUPE_MAX_MODEL_LEN": "1k", "TROUPE_MAX_NUM_SEQS": "6"})
        self.assertEqual(code, 0)
        self.assertRegex(out, r"engine\.block-size = 32 +\(file\)")
        self.assertRegex(out, r"engine\.max-num-seqs = 8 +\(command line\)")
        self.assertRegex(out, r"model\.max-model-len = 1000 +\(environment\)")
        self.assertRegex(out, r"server\.port = 8000 +\(default\)")
        code, _, errors = troupe("config", environment={"TROUPE_NO_SUCH": "1"})
        self.assertEqual(code, 2)
        self.assertIn("TROUPE_NO_SUCH", errors)


class TokenizeAndRender(unittest.TestCase):
    def test_text_becomes_tokens_and_tokens_text(self):
        code, out, _ = troupe("tokenize", MODEL, stdin=json_lines("Hello, Troupe", {"text": "Hello", "add_special_tokens": False}))
        self.assertEqual(code, 0)
        whole, bare = map(json.loads, out.splitlines())
        self.assertEqual(len(whole["tokens"]), len(whole["token_strs"]))
        self.assertEqual(len(whole["tokens"]), len(whole["offsets"]))
        self.assertLessEqual(len(bare["tokens"]), len(whole["tokens"]))
        code, out, _ = troupe("tokenize", MODEL, stdin=json_lines({"tokens": whole["tokens"], "skip_special_tokens": True}))
        self.assertEqual((code, json.loads(out)), (0, {"text": "Hello, Troupe"}))

    def test_a_conversation_becomes_a_prompt(self):
        code, out, _ = troupe("render", MODEL, stdin=json_lines(user("Who are you?"), {"messages": user("Hi")}))
        self.assertEqual(code, 0)
        first, second = map(json.loads, out.splitlines())
        self.assertIn("Who are you?", first["prompt"])
        self.assertGreater(len(first["tokens"]), len(second["tokens"]))

    def test_a_bad_line_fails_alone(self):
        for command in ("tokenize", "render"):
            code, out, _ = troupe(command, MODEL, stdin='{"broken\n' + json_lines({"messages": user("Hi"), "text": "Hi"}))
            bad, good = map(json.loads, out.splitlines())
            self.assertEqual(code, 1)
            self.assertIn("error", bad)
            self.assertNotIn("error", good)


class Generate(unittest.TestCase):
    def test_lines_are_answered_in_their_order(self):
        requests = [{"messages": user("Who are you?"), "temperature": 0},
                    {"prompt": "1, 2, 3, 4,", "max_tokens": 8, "temperature": 0},
                    {"messages": user("What is the capital of France?"), "temperature": 0}] * 10
        code, out, errors = troupe("generate", "--max-in-flight", "8", stdin=json_lines(*requests))
        self.assertEqual(code, 0, errors)
        answers = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([answer["index"] for answer in answers], list(range(30)))
        for start in range(0, 30, 3):
            who, count, france = (answer["choices"][0] for answer in answers[start:start + 3])
            self.assertEqual((who["text"], who["finish_reason"]), (WHO, "stop"))
            self.assertEqual(france["text"], FRANCE)
            self.assertTrue(count["text"].startswith(" 5, 6"), count["text"])
            self.assertEqual((len(count["token_ids"]), count["finish_reason"]), (8, "length"))

    def test_requests_run_in_the_order_of_the_lines(self):
        stories = [f"{i}. " + "Once upon a time there was a circle. " * 15 for i in range(20)]
        requests = [{"prompt": story, "max_tokens": 1} for story in stories for _ in range(2)]
        code, out, errors = troupe("generate", "--max-num-seqs", "1", stdin=json_lines(*requests))
        self.assertEqual(code, 0, errors)
        cached = [json.loads(line)["usage"]["cached_tokens"] > 0 for line in out.splitlines()]
        self.assertEqual(cached[::2], [False] * 20)  # the second of each two finds what the first has computed
        self.assertEqual(cached[1::2], [True] * 20)

    def test_bad_lines_fail_alone(self):
        good = {"prompt": "1, 2, 3,", "max_tokens": 2}
        lines = (json_lines(good) + '{"prompt": \n' + "\n" +
                 json_lines({"prompt": "a", "temperature": -1}, {"messages": 3}, {"prompt": [[1, 2], [10 ** 8]]},
                            {"prompt": "word " * 5000}, good))
        code, out, _ = troupe("generate", stdin=lines)
        self.assertEqual(code, 1)
        answers = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([answer["index"] for answer in answers], [0, 1, 3, 4, 5, 6, 7])
        self.assertEqual(["error" in answer for answer in answers], [False, True, True, True, True, True, False])
        for answer in answers:
            if "error" in answer:
                self.assertEqual(answer["error"]["code"], 400)
                self.assertTrue(answer["error"]["message"])
        self.assertEqual(answers[0]["choices"], answers[-1]["choices"])

    def test_several_prompts_samples_and_logprobs(self):
        request = {"prompt": [[2, 319], [50, 60, 70]], "n": 2, "max_tokens": 3, "logprobs": 2, "ignore_eos": True, "seed": 1,
                   "temperature": 1}
        code, out, errors = troupe("generate", stdin=json_lines(request))
        self.assertEqual(code, 0, errors)
        answer = json.loads(out)
        self.assertEqual([choice["index"] for choice in answer["choices"]], [0, 1, 2, 3])
        self.assertEqual(answer["prompt_token_ids"], [[2, 319], [50, 60, 70]])
        for choice in answer["choices"]:
            self.assertEqual([position[0]["token_id"] for position in choice["logprobs"]], choice["token_ids"])
            self.assertTrue(all(entry["logprob"] <= 0 for position in choice["logprobs"] for entry in position))
        self.assertEqual((answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]), (5, 12))

    def test_a_program_may_wait_for_each_answer_before_it_asks_again(self):
        with subprocess.Popen([BINARY, "generate"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
            for index in range(3):
                process.stdin.write(json_lines({"prompt": "1, 2,", "max_tokens": 2}).encode())
                process.stdin.flush()
                ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
                self.assertTrue(ready, "no answer")
                self.assertEqual(json.loads(process.stdout.readline())["index"], index)
            process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 0)

    def test_no_lines_give_no_answers(self):
        self.assertEqual(troupe("generate")[:2], (0, ""))


class Chat(unittest.TestCase):
    def test_a_pipe_has_one_message_a_line(self):
        code, out, errors = troupe("chat", stdin="Who are you?\n\n/reset\nWhat is the capital of France?\n/quit\nnot reached\n")
        self.assertEqual(code, 0, errors)
        self.assertEqual(out, WHO + "\n" + FRANCE + "\n")

    def test_a_message_that_is_too_long_fails_alone(self):
        code, out, errors = troupe("chat", stdin="word " * 5000 + "\nWho are you?\n")
        self.assertEqual((code, out), (1, WHO + "\n"))
        self.assertIn("troupe: ", errors)

    def test_an_answer_is_as_long_as_asked_for(self):
        code, out, _ = troupe("chat", "--max-tokens", "2", "--temperature", "0", "--system", "You are kind.", stdin="Who are you?\n")
        self.assertEqual(code, 0)
        self.assertTrue(0 < len(out) < 30, out)

    def test_ctrl_c_does_not_end_a_conversation_in_the_terminal_and_ctrl_d_does(self):
        child, terminal = pty.fork()
        if child == 0:
            os.execve(BINARY, [BINARY, "chat"], ENVIRONMENT)
        seen = ""

        def wait_for(text):
            nonlocal seen
            deadline = time.monotonic() + DEADLINE_S
            while text not in seen:
                ready, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
                self.assertTrue(ready, f"{text!r} did not come after {seen!r}")
                seen += os.read(terminal, 4096).decode(errors="replace")
            seen = seen[seen.index(text) + len(text):]

        try:
            wait_for("> ")
            os.write(terminal, b"\x03")
            wait_for("> ")
            os.write(terminal, b"Who are you?\n")
            wait_for("demo model")
            wait_for("> ")
            os.write(terminal, b"Count from 1 to 10.\n")
            wait_for("\n1")
            os.write(terminal, b"\x03")  # it may have ended already: either way there is a next prompt
            wait_for("> ")
            os.write(terminal, b"\x04")
            _, status = os.waitpid(child, 0)
            child = 0
            self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        finally:
            if child:
                os.kill(child, 9)
                os.waitpid(child, 0)
            os.close(terminal)


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = os.path.join(self.folder.name, "result.json")

    def result(self):
        with open(self.file) as file:
            return json.load(file)

    def test_latency(self):
        code, out, errors = troupe("bench", "latency", "--input-len", "8", "--output-len", "4", "--batch-size", "2",
                                   "--num-iters-warmup", "1", "--num-iters", "3", "--output-json", self.file)
        self.assertEqual(code, 0, errors)
        self.assertRegex(out, r"^Avg latency: [\d.]+ seconds\n10% percentile latency: [\d.]+ seconds\n")
        self.assertIn("100%", errors)
        self.assertEqual(len(self.result()["latencies"]), 3)
        self.assertEqual(list(self.result()["percentiles"]), ["10", "25", "50", "75", "90", "99"])

    def test_throughput(self):
        code, out, errors = troupe("bench", "throughput", "--num-prompts", "6", "--input-len", "8", "--output-len", "4",
                                   "--output-json", self.file)
        self.assertEqual(code, 0, errors)
        self.assertRegex(out, r"Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s, [\d.]+ output tokens/s\n")
        self.assertEqual(self.result()["total_num_tokens"], 6 * 12)

    def test_throughput_of_a_dataset(self):
        dataset = os.path.join(self.folder.name, "prompts.jsonl")
        with open(dataset, "w") as file:
            file.write(json_lines({"prompt": "One"}, {"prompt": "Two", "output_tokens": 7}))
        code, out, errors = troupe("bench", "throughput", "--dataset", dataset, "--output-len", "3")
        self.assertEqual(code, 0, errors)
        self.assertRegex(out, r"output tokens: +10\n")
        code, _, errors = troupe("bench", "throughput", "--dataset", dataset + ".none")
        self.assertEqual(code, 1)
        self.assertIn(".none", errors)

    def test_prompts_beyond_the_model_are_an_error(self):
        code, _, errors = troupe("bench", "latency", "--input-len", "100000", "--num-iters-warmup", "0", "--num-iters", "1")
        self.assertNotEqual(code, 0)
        self.assertIn("100000", errors)

    def test_serve(self):
        with Server("--served-model-name", "demo", "--api-key", "secret") as server:
            address = ["--base-url", server.url, "--api-key", "secret"]
            for endpoint, more in [("/v1/completions", []), ("/v1/completions", ["--tokenizer", MODEL]),
                                   ("/v1/chat/completions", ["--request-rate", "100", "--max-concurrency", "2"])]:
                code, out, errors = troupe("bench", "serve", *address, *more, "--endpoint", endpoint, "--num-prompts", "6",
                                           "--random-input-len", "10", "--random-output-len", "5", "--ignore-eos",
                                           "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99",
                                           "--goodput", "ttft:60000", "e2el:60000", "--output-json", self.file)
                self.assertEqual(code, 0, errors)
                self.assertTrue(out.startswith("============ Serving Benchmark Result ============\n"))
                for title in ("Successful requests:                     6 ", "Mean TTFT (ms):", "P99 TPOT (ms):",
                              "Median ITL (ms):", "P50 E2EL (ms):", "Request goodput (req/s):"):
                    self.assertIn(title, out)
                result = self.result()
                self.assertEqual((result["completed"], result["failed"]), (6, 0))
                self.assertEqual(result["output_lens"], [5] * 6)
                self.assertGreater(result["mean_ttft_ms"], 0)
                self.assertAlmostEqual(result["request_goodput"], result["request_throughput"])
                if "--tokenizer" in more:
                    self.assertEqual(result["input_lens"], [10] * 6)
            code, _, errors = troupe("bench", "serve", "--base-url", server.url, "--num-prompts", "1")
            self.assertEqual(code, 1)
            self.assertIn("HTTP 401", errors)
        code, _, errors = troupe("bench", "serve", *address, "--num-prompts", "1")
        self.assertEqual(code, 1)
        self.assertIn("/v1/models", errors)


if __name__ == "__main__":
    unittest.main(verbosity=2)
