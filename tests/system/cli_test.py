#!/usr/bin/env python3
"""Every command of the binary as a user would call it, with the demo model. Python's standard library only."""
import concurrent.futures
import json
import os
import pathlib
import pty
import re
import select
import socket
import subprocess
import tempfile
import time
import unittest

from support import BINARY, DEADLINE_S, ENVIRONMENT, ROOT, Server, run

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
        for word in ("--version", "version"):
            code, out, _ = troupe(word)
            self.assertEqual(code, 0)
            self.assertRegex(out, r"^troupe \d+\.\d+\.\d+\n$")

    def test_help_is_a_command_too_and_has_a_short_and_a_long_form(self):
        self.assertEqual(troupe("help"), troupe("--help"))
        for command in (["serve"], ["tokenize"], ["bench"], ["bench", "latency"]):
            self.assertEqual(troupe("help", *command), troupe(*command, "--help"))
        usual, whole = troupe("serve", "--help")[1], troupe("serve", "--help=all")[1]
        self.assertLess(usual.count("\n"), 70)
        self.assertNotIn("--watermark", usual)
        self.assertIn("--watermark", whole)
        self.assertIn("--help=all", usual)
        self.assertIn("--system", troupe("chat", "--help")[1])  # a command's own options are always there

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
                                (["config", "--port", "70000"], "65535"), (["chta"], "did you mean 'troupe chat'?"),
                                (["--port", "1"], "follow the command"), ([MODEL], f"did you mean 'troupe serve {MODEL}'?"),
                                (["serve", "-v"], "'-v', did you mean --log-level debug"),
                                (["serve", "-m", MODEL], "'-m', did you mean --model"),
                                (["serve", "--api-key", "--port", "1"], "--api-key=--port"),
                                (["serve", "--api-key", "--config-file", "x.conf"], "--api-key=--config-file"),
                                (["serve", "--max-seqs", "1"], "did you mean --max-num-seqs?"),
                                (["serve", "--tool-parser-plugin", "a.py"], "--tool-parser-plugin is a vLLM option"),
                                (["tokenize", "-v"], "-v"), (["render", "--model", MODEL], "--model"),
                                (["bench", "serve", "-x"], "-x"), (["topology", "-x"], "-x"), (["node", "-x"], "-x")]:
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

    def test_a_hugging_face_name_that_cannot_be_downloaded_gets_instructions(self):
        with tempfile.TemporaryDirectory() as folder:
            nowhere = {"HF_HOME": folder, "HF_HUB_OFFLINE": "1"}
            for command in (["serve"], ["chat"], ["tokenize"], ["bench", "latency"]):
                for name in ("Qwen/Qwen3-0.6B", "https://huggingface.co/Qwen/Qwen3-0.6B"):
                    code, _, errors = troupe(*command, name, environment=nowhere)
                    self.assertEqual(code, 1)
                    self.assertIn(f"Qwen/Qwen3-0.6B is not in {folder}/hub", errors)
                    self.assertIn("`troupe pull Qwen/Qwen3-0.6B`", errors)
            draft = '{"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 2}'
            code, _, errors = troupe("generate", "--speculative-config", draft, environment=nowhere)
            self.assertEqual(code, 1)
            self.assertIn("`troupe pull Qwen/Qwen3-0.6B`", errors)

    def test_a_port_in_use_is_found_before_the_model_is_loaded(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            address = "127.0.0.1:%d" % other.getsockname()[1]
            code, out, errors = troupe("serve", "--port", address.split(":")[1])
        self.assertEqual((code, out), (1, ""))
        self.assertIn(f"cannot listen on {address}: ", errors)
        self.assertNotIn("loading", errors)
        code, _, errors = troupe("serve", "--host", "no.such.host.invalid", "--port", "0")
        self.assertEqual(code, 2)
        self.assertIn("no.such.host.invalid", errors)
        self.assertNotIn("loading", errors)

    def test_options_of_vllm_that_mean_nothing_here_are_named_in_a_line_each(self):
        code, out, errors = troupe("config", "--trust-remote-code", "--swap-space", "4", "--port", "7", "--enforce-eager")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"server\.port = 7 ")
        self.assertEqual(len(errors.splitlines()), 3)
        for line, option in zip(errors.splitlines(), ("--trust-remote-code", "--swap-space", "--enforce-eager")):
            self.assertIn(f"{option} has no effect: ", line)

    def test_prompts_that_are_not_split_must_fit_in_a_step(self):
        code, _, errors = troupe("generate", "--no-enable-chunked-prefill", "--max-num-seqs", "4",
                                 "--max-num-batched-tokens", "64")
        self.assertEqual(code, 2)
        self.assertIn("without chunked prefill max-num-batched-tokens, 64, must be at least max-model-len, ", errors)

    def test_a_start_that_an_actor_refuses_ends_the_others(self):
        def refused(number, *config):
            code, _, errors = troupe("serve", "--port", "0", "--server-dev-mode", "--dev-scheduler-log", f"{folder}/{number}",
                                     "--encoder-step-ms", "5", *config)
            self.assertEqual(code, 2, errors)
            self.assertIn("dev-scheduler-log: ", errors)
            self.assertNotIn("connection refused", errors)
            self.assertNotIn("does not shut down", errors)

        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(3) as pool:
            refused(0)
            # Beside each other: now and then, the last message of the Supervisor came after CAF's network had ended.
            processes = ("--config-file", str(ROOT / "configs" / "one-process-per-role.conf"))
            list(pool.map(lambda number: refused(number, *processes), range(1, 13)))

    def test_config_prints_the_source_of_each_value(self):
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
        code, out, errors = troupe("config", environment={"TROUPE_NO_SUCH": "1", "TROUPE_PORT": "tcp://10.96.7.1:8000",
                                                          "TROUPE_PORT_8000_TCP": "tcp://10.96.7.1:8000"})
        self.assertEqual(code, 0)
        self.assertRegex(out, r"server\.port = 8000 +\(default\)")
        self.assertIn("TROUPE_NO_SUCH matches no option", errors)
        self.assertIn("Kubernetes", errors)


class ConfigurationFiles(unittest.TestCase):
    def test_pods_get_no_variables_of_services(self):
        pods = re.split(r"\n  template:\n", (ROOT / "configs" / "kubernetes.yaml").read_text())[1:]
        self.assertEqual(len(pods), 2)
        for pod in pods:
            self.assertIn("\n      enableServiceLinks: false\n", pod)

    def test_the_certificates_of_multi_node_conf_are_those_that_the_readme_makes(self):
        command = re.search(r"^tools/(make_certificates\.sh [^#\n]+)", (ROOT / "README.md").read_text(), re.MULTILINE)[1].split()
        files = re.findall(r'^tls-\w+="(.+)"$', (ROOT / "configs" / "multi-node.conf").read_text(), re.MULTILINE)
        self.assertEqual(len(files), 3)
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([ROOT / "tools" / command[0], *command[1:]], cwd=folder, check=True, capture_output=True)
            for file in files:
                self.assertTrue(os.path.exists(os.path.join(folder, file)), file)


class TokenizeAndRender(unittest.TestCase):
    def test_text_is_tokenized_and_tokens_are_detokenized(self):
        code, out, _ = troupe("tokenize", MODEL, stdin=json_lines("Hello, Troupe", {"text": "Hello", "add_special_tokens": False}))
        self.assertEqual(code, 0)
        whole, bare = map(json.loads, out.splitlines())
        self.assertEqual(len(whole["tokens"]), len(whole["token_strs"]))
        self.assertEqual(len(whole["tokens"]), len(whole["offsets"]))
        self.assertLessEqual(len(bare["tokens"]), len(whole["tokens"]))
        code, out, _ = troupe("tokenize", MODEL, stdin=json_lines({"tokens": whole["tokens"], "skip_special_tokens": True}))
        self.assertEqual((code, json.loads(out)), (0, {"text": "Hello, Troupe"}))

    def test_a_conversation_is_rendered_to_a_prompt(self):
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

    def test_commands(self):
        code, out, errors = troupe("chat", stdin="/help\nHi, my name is Anna.\n/clear\n/dance\nWho are you?\n/exit\nnot reached\n")
        self.assertEqual(code, 0, errors)
        self.assertTrue(out.endswith(WHO + "\n"), out)
        self.assertEqual(len(out.splitlines()), 2)
        self.assertIn("  /clear ", errors)
        self.assertIn("unknown command '/dance'", errors)

    def test_a_full_context_forgets_the_oldest_messages(self):
        lines = ["Count from 1 to 10."] * 12 + ["Who are you?"]
        code, out, errors = troupe("chat", "--max-model-len", "256", stdin="\n".join(lines) + "\n")
        self.assertEqual(code, 0, errors)
        self.assertEqual(len(out.splitlines()), len(lines))
        self.assertIn("[the context is full: the oldest ", errors)

    def test_a_server_that_runs_answers(self):
        with Server("--served-model-name", "demo", "--api-key", "secret", "--max-model-len", "256") as server:
            for url, model in ((server.url, []), (server.url + "/v1", ["demo"])):
                code, out, errors = troupe("chat", *model, "--url", url, "--api-key", "secret",
                                           stdin="Who are you?\nWhat is the capital of France?\n")
                self.assertEqual((code, out), (0, f"{WHO}\n{FRANCE}\n"), errors)
            code, out, errors = troupe("chat", "--url", server.url, environment={"OPENAI_API_KEY": "secret"},
                                       stdin="Count from 1 to 10.\n" * 12)
            self.assertEqual((code, len(out.splitlines())), (0, 12), errors)
            self.assertIn("[the context is full: the oldest ", errors)
            code, out, errors = troupe("chat", "--url", server.url, stdin="Hi\n")
            self.assertEqual((code, out), (1, ""))
            self.assertIn("HTTP 401", errors)
            code, _, errors = troupe("chat", "dance", "--url", server.url, "--api-key", "secret", stdin="Hi\n")
            self.assertEqual(code, 1)
            self.assertIn("dance", errors)
        code, _, errors = troupe("chat", "--url", server.url, stdin="Hi\n")
        self.assertEqual(code, 1)
        self.assertIn(server.url, errors)


class ChatInATerminal(unittest.TestCase):
    def start(self, *arguments):
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.execve(BINARY, [BINARY, "chat", *arguments], {**ENVIRONMENT, "TERM": "xterm"})
        self.addCleanup(self.end)
        self.seen = ""
        self.wait_for("> ")

    def end(self):
        if self.child:
            os.kill(self.child, 9)
            os.waitpid(self.child, 0)
        os.close(self.terminal)

    def wait_for(self, text):
        """Until the terminal shows it; returns what stood before."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.seen:
            ready, _, _ = select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))
            self.assertTrue(ready, f"{text!r} did not come after {self.seen!r}")
            self.seen += os.read(self.terminal, 4096).decode(errors="replace")
        before, self.seen = self.seen.split(text, 1)
        return before

    def type(self, text):
        os.write(self.terminal, text.encode())

    def leave(self, text):
        self.type(text)
        _, status = os.waitpid(self.child, 0)
        self.child = 0
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)

    def test_ctrl_c_stops_what_is_typed_or_an_answer_and_ctrl_d_ends(self):
        self.start()
        self.type("half a mess\x03")
        self.wait_for("> ")
        self.type("Who are you?\r")
        self.wait_for("demo model")
        self.assertIn(" tokens/s, first after ", self.wait_for("> "))
        self.type("Count from 1 to 10.\r")
        self.wait_for("\n1")
        self.type("\x03")  # it may have ended already: either way there is a next prompt
        self.wait_for("> ")
        self.leave("\x04")

    def test_an_answer_of_a_server_is_stopped_too(self):
        with Server() as server:
            self.start("--url", server.url, "--max-tokens", "1900")
            self.type("Tell me a story about a dragon.\r")
            self.wait_for("agon.")
            self.type("\x03")
            self.wait_for("> ")
            server.wait_idle()
            self.type("Who are you?\r")
            self.wait_for("demo model")
            self.wait_for("> ")
            self.leave("/exit\r")

    def test_what_is_typed_can_be_edited_and_comes_back(self):
        self.start()
        self.type("Who ore you?" + "\x1b[D" * 7 + "\x7fa\r")  # the cursor goes back, the o becomes an a
        self.wait_for("I am the Troupe demo model")
        self.wait_for("> ")
        self.type("\x1b[A\r")
        self.wait_for("I am the Troupe demo model")
        self.wait_for("> ")
        self.leave("/exit\r")

    def test_a_paste_of_several_lines_is_one_message(self):
        self.start()
        self.type("\x1b[200~What is the capital\rof France?\x1b[201~")
        self.wait_for("of France?")
        self.type("\r")
        answer = self.wait_for("> ")
        self.assertEqual(answer.count("tokens/s, first after"), 1, answer)
        self.type("/help\r")
        self.wait_for("/clear")
        self.wait_for("> ")
        self.leave("/quit\r")


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
